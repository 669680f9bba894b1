"""Who a process is, and whether it is provably a leftover, from a made-up /proc."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from guarded_serve.engine_link import ENVIRONMENT_KEY, EngineSettings
from guarded_serve.facts.gpu import Gpu, GpuProcess
from guarded_serve.facts.gpu_holders import Holder, find_holders, join_holders, leftover
from guarded_serve.facts.processes import OpenFiles, age, open_files, read_process
from guarded_serve.facts.reading import Reading
from tests.support.fake_proc import FakeProc, nvidia

SOCKET = "/run/guarded-serve-x/events.sock"
MARKER = f"PATH=/bin\0{ENVIRONMENT_KEY}={EngineSettings('launch-1', SOCKET, '/run/x/control').to_json()}\0"


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def _gpu(*pids: int, index: int = 0) -> Gpu:
    listed = tuple(GpuProcess(pid, 2**30) for pid in pids)
    return Gpu(index, f"GPU-{index}", "H200", "0000:1a:00", compute=Reading.of(listed))


def _only(proc: FakeProc, *pids: int) -> Holder:
    (holder,) = find_holders([_gpu(*pids)], proc.root).holders
    return holder


def test_this_process_reads_as_itself() -> None:
    me = read_process(os.getpid())
    assert me.alive
    assert me.parent == os.getppid()
    assert me.uid == os.geteuid()
    assert me.age_s is not None
    assert "pytest" in me.title
    assert not me.other_pid_namespace


def test_a_pid_that_is_not_there_is_gone_not_an_error(proc: FakeProc) -> None:
    found = read_process(4711, proc.root)
    assert not found.alive
    assert "no such process here" in found.describe()


def test_title_unit_container_and_namespace(proc: FakeProc) -> None:
    pod = "/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + "12" * 32 + ".scope"
    proc.add(10, "python -m vllm", cgroup=pod, namespace="pid:[4026532999]")
    proc.add(11, "python serve.py", cgroup="/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service")
    podded, unit = read_process(10, proc.root), read_process(11, proc.root)
    assert (podded.container, podded.unit, podded.other_pid_namespace) == ("12" * 32, None, True)
    assert (unit.container, unit.unit, unit.other_pid_namespace) == (None, "llm.service", False)


def test_a_title_with_brackets_and_blanks_does_not_confuse_the_parser(proc: FakeProc) -> None:
    proc.add(12, ") R 1 (x", parent=7)
    assert read_process(12, proc.root).parent == 7


def test_open_files_are_those_asked_for(proc: FakeProc) -> None:
    proc.add(20, "python a.py", files=(*nvidia(0, 3), "/tmp/log", "socket:[1]"))
    proc.add(21, "python b.py", files=("/tmp/log",))
    found = open_files(lambda target: target.startswith("/dev/nvidia"), proc.root)
    assert found.by_pid == {20: ("/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia3", "/dev/nvidiactl")}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_what_another_user_may_not_read_is_counted() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setresuid(65534, 65534, 65534)
        found = open_files(lambda target: True)
        os.write(writer, json.dumps([len(found.unreadable), os.getppid() in found.unreadable]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    count, parent_is_closed = json.loads(os.read(reader, 100))
    assert count > 0
    assert parent_is_closed


@pytest.mark.parametrize(
    ("seconds", "text"), [(42, "42 s"), (600, "10 min"), (7300, "2 h"), (90000, "25 h"), (400000, "5 d")]
)
def test_age(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_an_orphaned_scheduler_is_a_leftover(proc: FakeProc) -> None:
    proc.add(30, "sglang::scheduler_TP0", parent=1, files=nvidia(0))
    judged = leftover(_only(proc, 30))
    assert judged.proven
    assert "orphaned" in judged.why


def test_an_orphan_of_a_user_manager_is_a_leftover(proc: FakeProc) -> None:
    proc.add(900, "/usr/lib/systemd/systemd --user", exe=None)
    proc.add(30, "sglang::scheduler", parent=900, files=nvidia(0))
    assert leftover(_only(proc, 30)).proven


def test_a_scheduler_whose_server_lives_is_not(proc: FakeProc) -> None:
    proc.add(29, "python -m sglang.launch_server", parent=1)
    proc.add(30, "sglang::scheduler", parent=29, files=nvidia(0))
    assert not leftover(_only(proc, 30)).proven


@pytest.mark.parametrize("exe", ["/usr/bin/python3.12", None])
def test_a_scheduler_of_a_server_that_is_pid_1_of_its_container_is_not(tmp_path: Path, exe: str | None) -> None:
    proc = FakeProc(tmp_path / "proc", init="python3 -m sglang.launch_server", init_exe=exe)
    proc.add(30, "sglang::scheduler", parent=1, files=nvidia(0))
    assert not leftover(_only(proc, 30)).proven


def test_a_shell_that_started_the_server_adopts_its_orphans(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc", init="sh -c python -m sglang.launch_server; true", init_exe="/usr/bin/dash")
    proc.add(30, "sglang::scheduler", parent=1, files=nvidia(0))
    assert leftover(_only(proc, 30)).proven


def test_an_unreadable_init_of_another_name_adopts_orphans(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc", init="/agent --serve", init_exe=None)
    proc.add(30, "sglang::scheduler", parent=1, files=nvidia(0))
    assert leftover(_only(proc, 30)).proven


@pytest.mark.parametrize(
    ("exe", "proven"),
    [
        ("/opt/tritonserver/backends/python/triton_python_backend_stub", False),  # Python embedded: it is the server
        ("/usr/bin/tmux", False),
        (None, False),
        ("/usr/bin/containerd-shim-runc-v2", True),
        ("/usr/libexec/podman/conmon", True),
        ("/usr/lib/systemd/systemd (deleted)", True),  # updated while it runs
    ],
)
def test_only_known_reapers_adopt_orphans(proc: FakeProc, exe: str | None, proven: bool) -> None:
    proc.add(29, "serve --model x", parent=1, exe=exe)
    proc.add(30, "sglang::scheduler", parent=29, files=nvidia(0))
    assert leftover(_only(proc, 30)).proven is proven


def test_an_ordinary_program_is_never_a_leftover(proc: FakeProc) -> None:
    proc.add(30, "python train.py", parent=1, files=nvidia(0))
    proc.add(31, "python sglang::scheduler", parent=1, files=nvidia(1))
    assert [leftover(holder).proven for holder in find_holders([_gpu(30, 31)], proc.root).holders] == [False, False]


def test_the_marker_of_a_launch_whose_launcher_is_gone(proc: FakeProc) -> None:
    proc.add(40, "python -m sglang.launch_server", parent=39, environ=MARKER, files=nvidia(0))
    judged = leftover(_only(proc, 40))
    assert judged.proven
    assert "launch-1" in judged.why


def test_the_marker_of_a_launch_whose_launcher_lives(proc: FakeProc) -> None:
    proc.add(40, "python -m sglang.launch_server", parent=39, environ=MARKER, files=nvidia(0))
    proc.bind_unix(SOCKET)
    assert not leftover(_only(proc, 40)).proven


def test_a_pid_of_another_namespace_is_never_taken_for_the_process_here(proc: FakeProc) -> None:
    proc.add(50, "sglang::scheduler_TP0", parent=1)  # has no device open: the number is NVML's, the process is not
    holder = _only(proc, 50)
    assert holder.another_here
    assert not leftover(holder).proven


def test_a_dead_pid_is_never_a_leftover(proc: FakeProc) -> None:
    assert not leftover(_only(proc, 999)).proven


def test_closed_files_prove_nothing(proc: FakeProc) -> None:
    proc.add(60, "sglang::scheduler", parent=1, files=())
    (holder,) = join_holders([_gpu(60)], OpenFiles({}, unreadable=(60,)), proc.root).holders
    assert not holder.another_here
    assert not leftover(holder).proven


def test_a_detokenizer_without_a_gpu_is_found_by_its_title(proc: FakeProc) -> None:
    proc.add(70, "sglang::detokenizer", parent=1)
    (holder,) = find_holders([_gpu()], proc.root).holders
    assert leftover(holder).proven
    assert "[no GPU]" in holder.describe()


def test_one_process_on_eight_cards_is_one_holder(proc: FakeProc) -> None:
    proc.add(80, "python x.py", files=nvidia(*range(8)))
    (holder,) = find_holders([_gpu(80, index=index) for index in range(8)], proc.root).holders
    assert [use.gpu for use in holder.uses] == list(range(8))


def test_a_zombie_is_said_to_be_dead(proc: FakeProc) -> None:
    proc.add(90, "", state="Z")
    judged = leftover(_only(proc, 90))
    assert not judged.proven
    assert "it is dead" in judged.why
