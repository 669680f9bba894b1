"""The fault matrix over a scripted server: for each fault, what must hold after it. The real engine's part is in
test_faults_engine.py."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from guarded_serve.supervisor.cgroup import memberships
from tests.support.supervised import Supervised, wait_until

QUICK = {"supervise": {"hang_s": 4.0, "probe_interval_s": 1.0, "drain_s": 2.0}}


def crash_folders(server: Supervised) -> list[Path]:
    return sorted((server.folder / "state/guarded-serve/crashes").glob("*"))


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("role", ["main", "scheduler", "detokenizer"])
def test_a_process_of_the_server_dies(tmp_path: Path, role: str, fault: signal.Signals) -> None:
    with Supervised(tmp_path, {"shared_memory": True, "leaver": True}) as server:
        server.wait_for("state=serving")
        assert wait_until(lambda: role in server.pids())
        at = time.monotonic()
        os.kill(server.pids()[role], fault)
        server.wait_for("state=failed", 2.0)
        took_s = time.monotonic() - at
        print(f"\n{role}, {fault.name}: noticed after {took_s:.2f} s")  # docs/operations.md; `pytest -s` shows it
        assert took_s < 2.0
        assert server.end() == 69
        assert server.left() == []
        what = json.loads((crash_folders(server)[0] / "what.json").read_text())
        assert what["exit"] == 69


@pytest.mark.parametrize("role", ["main", "scheduler", "detokenizer"])
def test_a_process_of_the_server_is_stopped(tmp_path: Path, role: str) -> None:
    with Supervised(tmp_path, profile=QUICK) as server:
        server.wait_for("state=serving")
        time.sleep(1)
        at = time.monotonic()
        os.kill(server.pids()[role], signal.SIGSTOP)
        server.wait_for("state=failed", 8.0)
        took_s = time.monotonic() - at
        print(f"\n{role}, SIGSTOP, hang_s 4: noticed after {took_s:.2f} s")  # docs/operations.md
        assert 2.5 < took_s < 6.0  # idle: hang_s less an interval; at most two seconds over
        assert server.end() == 69
        assert server.left() == []
        (folder,) = crash_folders(server)
        assert "hang" in folder.name
        stacks = sorted(path.name for path in folder.glob("stack-*"))
        assert len(stacks) == 3
        assert "State:\tT" in next(folder.glob(f"stack-{role}-*")).read_text()


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSEGV])
def test_the_launcher_dies(tmp_path: Path, fault: signal.Signals) -> None:
    with Supervised(tmp_path, {"leaver": True, "children_outlive": True, "ignore_sigterm": True}) as server:
        server.wait_for("state=serving")
        server.send(fault)
        assert server.end() == -fault
        assert wait_until(lambda: server.left() == [], 10), server.left()


def test_the_launcher_is_stopped_and_goes_on(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"cycles_per_s": 1, "running": 1}, QUICK) as server:
        server.wait_for("state=serving")
        server.send(signal.SIGSTOP)
        time.sleep(7)  # longer than hang_s: what was not seen is no hang
        server.send(signal.SIGCONT)
        time.sleep(3)
        assert server.process.poll() is None
        assert server.states()[-1] == "serving"
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert server.left() == []


def test_work_that_does_not_end_is_a_hang_though_everything_answers(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"running": 1}, QUICK) as server:
        server.wait_for("state=serving")
        text = server.wait_for(r"state=failed msg=.*", 8)
        assert "does not end" in text
        assert server.end() == 69
        assert server.left() == []


def test_busy_is_not_sick(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"running": 1, "cycles_per_s": 1}, QUICK) as server:
        server.wait_for("state=serving")
        time.sleep(9)
        assert server.states()[-1] == "serving"


def test_own_generations_when_idle_are_rare(tmp_path: Path) -> None:
    counter = tmp_path / "generations"
    with Supervised(tmp_path, {"connections": str(counter)}, QUICK) as server:
        server.wait_for("state=serving")
        time.sleep(8)
        count = len(counter.read_text().splitlines())
        assert 3 <= count <= 7  # one before READY, then after 1, 1.5, 2, 2 ... seconds


def test_without_any_beat_a_generation_that_does_not_come_back_is_a_hang(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"beats": False}, QUICK) as server:
        server.wait_for("state=serving")
        time.sleep(0.5)
        os.kill(server.pids()["main"], signal.SIGSTOP)
        server.wait_for("state=failed", 8)
        assert server.end() == 69


def test_restart_after_a_crash_with_the_gates_run_again(tmp_path: Path) -> None:
    profile = {"supervise": {"restarts": 1, "restart_window_s": 600.0}}
    with Supervised(tmp_path, {"shared_memory": True}, profile) as server:
        server.wait_for("state=serving")
        first = server.pids()
        os.kill(first["scheduler"], signal.SIGKILL)
        assert wait_until(lambda: server.states().count("serving") == 2, 15), server.text()
        assert server.text().count("1 checks: 1 pass") == 2
        assert server.left() != []
        os.kill(server.pids()["scheduler"], signal.SIGKILL)
        assert server.end() == 69  # the cap
        assert server.states().count("preflight") == 2
        assert server.left() == []


@pytest.mark.parametrize("dies", ["main", "scheduler", "sentinel"])
def test_a_process_that_dies_while_a_hang_is_looked_at(tmp_path: Path, dies: str) -> None:
    profile = {"supervise": {**QUICK["supervise"], "restarts": 1}}
    with Supervised(tmp_path, profile=profile, dump_s=3.0) as server:
        sentinel = int(server.wait_for(r"state=starting pid=\d+").rpartition("=")[2])
        server.wait_for("state=serving")
        time.sleep(1)
        os.kill(server.pids()["detokenizer"], signal.SIGSTOP)
        server.wait_for("state=failed", 8)
        os.kill(sentinel if dies == "sentinel" else server.pids()[dies], signal.SIGKILL)
        assert wait_until(lambda: server.states().count("serving") == 2, 15), server.text()
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert server.left() == []


def test_a_killed_sentinel_is_one_restart(tmp_path: Path) -> None:
    with Supervised(tmp_path, profile={"supervise": {"restarts": 3}}) as server:
        pid = int(server.wait_for(r"state=starting pid=\d+").rpartition("=")[2])
        server.wait_for("state=serving")
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: server.states().count("serving") == 2, 15), server.text()
        assert "restart 1 of 3" in server.text()
        assert "restart 2 of 3" not in server.text()


def test_a_drafter_that_was_swapped_is_refused_at_the_restart(tmp_path: Path) -> None:
    profile = {"supervise": {"restarts": 3}}
    with Supervised(tmp_path, None, profile, gates=(0, 65)) as server:
        server.wait_for("state=serving")
        os.kill(server.pids()["main"], signal.SIGKILL)
        assert server.end() == 65
        assert server.states()[-3:] == ["failed", "preflight", "refused"]


def test_stop_while_a_restart_is_waited_for(tmp_path: Path) -> None:
    profile = {"supervise": {"restarts": 9}}
    with Supervised(tmp_path, {"exit_at_start": 1}, profile) as server:
        server.wait_for("restart 3 of 9")
        server.send(signal.SIGTERM)
        assert server.end(3) == 0
        assert server.left() == []


def test_busy_is_waited_for(tmp_path: Path) -> None:
    with Supervised(tmp_path, None, {"gpus": {"wait_s": 30.0}}, gates=(75, 75, 0)) as server:
        server.wait_for("state=serving")
        assert "waiting for at most 30 s" in server.text()


def test_busy_to_the_end_of_the_wait(tmp_path: Path) -> None:
    with Supervised(tmp_path, None, {"gpus": {"wait_s": 3.0}}, gates=(75,)) as server:
        assert server.end() == 75
        assert server.states() == ["preflight", "refused"]


def test_stop_while_busy_is_waited_for(tmp_path: Path) -> None:
    with Supervised(tmp_path, None, gates=(75,)) as server:
        server.wait_for("waiting for at most")
        server.send(signal.SIGTERM)
        assert server.end(4) == 0


def test_the_port_is_stolen_between_check_and_start(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"start_s": 1.0}) as server:
        server.wait_for("state=starting")
        with socket.socket() as thief:
            thief.bind(("127.0.0.1", server.port))
            thief.listen()
            assert server.end() == 69
        assert "cause=port" in server.text()
        assert [item for item in server.left() if not item.startswith("port")] == []


@pytest.mark.parametrize(
    ("reason", "why"), [("[Errno 98]: address already in use", "taken"), ("[Errno 13]: permission denied", "privilege")]
)
def test_a_server_that_lives_on_without_its_port_is_given_up(tmp_path: Path, reason: str, why: str) -> None:
    """The real SGLang 0.5.23 waits for the shutdown of its application there, for ever."""
    number, _, words = reason.partition(": ")
    line = f"{number} error while attempting to bind on address ('127.0.0.1', 1): {words}"
    with Supervised(tmp_path, {"say": [line], "start_s": 300, "never_ready": True}) as server:
        assert server.end(10) == 69
        assert "cause=port" in server.text()
        assert why in server.text()
        assert server.left() == []


def test_a_thief_that_answers_200_is_not_taken_for_the_server(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"generate": "stranger"}, {"supervise": {"start_deadline_s": 4.0}}) as server:
        assert server.end() == 69
        assert "serving" not in server.states()


def test_disk_full_for_the_log(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full, Supervised(tmp_path, stdout=full.fileno()) as server:  # noqa: PTH123
        assert wait_until(lambda: "detokenizer" in server.pids())
        time.sleep(1.5)
        assert server.process.poll() is None
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert server.left() == []


def test_a_million_lines(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"flood": 1_000_000}) as server:
        server.wait_for("state=serving", 40)
        server.send(signal.SIGTERM)
        assert server.end(20) == 0
        folded = sum(map(int, re.findall(r"folded=(\d+)", server.text())))
        shown = len(re.findall(r"^flood line \d+$", server.text(), re.MULTILINE))
        assert folded + shown == 1_000_000
        assert server.log.stat().st_size < 1 << 20


def test_hang_up_of_a_terminal_stops(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with Supervised(tmp_path, stdout=theirs, stdin=theirs, start_new_session=True) as server:
        os.close(theirs)
        got = b""
        while b"Ctrl-C stops it" not in got:
            got += os.read(ours, 4096)
        assert b"curl http://127.0.0.1:" in got  # a person reads this
        server.send(signal.SIGHUP)
        os.close(ours)
        assert server.end() == 0
        assert server.left() == []


def test_hang_up_without_a_terminal_reloads(tmp_path: Path) -> None:
    with Supervised(tmp_path) as server:
        server.wait_for("state=serving")
        server.send(signal.SIGHUP)
        server.wait_for("in force now: supervise.hang_s = 77")
        assert server.process.poll() is None
        server.send(signal.SIGTERM)
        assert server.end() == 0


def test_the_wall_clock_jumps(tmp_path: Path) -> None:
    """Every deadline counts on the monotonic clock: a wall clock that jumps by days, either way, changes nothing."""
    with Supervised(tmp_path, {"running": 1, "cycles_per_s": 1}, QUICK, wild_clock=True) as server:
        server.wait_for("state=serving")
        time.sleep(6)
        assert wait_until(lambda: len(set(re.findall(r"ts=(\d{4})", server.text()))) > 1), "it did not jump"
        assert server.states()[-1] == "serving"
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert server.left() == []


def memory_group() -> Path | None:
    """A memory cgroup of our own, of either version, with room for 400 MB; None where none can be made."""
    found = memberships(Path("/proc/self/cgroup").read_text())
    if "memory" in found:
        group, limit = Path("/sys/fs/cgroup/memory" + found["memory"]), "memory.limit_in_bytes"
    else:
        group, limit = Path("/sys/fs/cgroup" + found.get("", "")), "memory.max"
    group = group / f"guarded-serve-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(400 << 20))
        (group / "cgroup.procs").stat()
    except OSError:
        return None
    return group


@pytest.mark.root
def test_out_of_memory_in_a_cgroup(tmp_path: Path) -> None:
    group = memory_group()
    if group is None:
        pytest.skip("no memory cgroup can be made here")
    try:
        join = ["sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"', "sh"]
        with Supervised(tmp_path, {"eat_memory": True, "cycles_per_s": 1}, before=join) as server:
            server.wait_for("state=serving")
            assert server.end(60) == 69
            assert "cause=memory" in server.text()
            assert "the kernel killed 1 of its processes for memory" in server.text()
            assert server.left() == []
    finally:
        assert wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
