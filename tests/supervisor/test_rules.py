"""The supervisor's plain rules: deaths, folding, secrets, cgroups, restarts, reload, states."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from guarded_serve.profile.deployment import Deployment, Setting
from guarded_serve.profile.model import Profile
from guarded_serve.supervisor import cgroup, crash, death, sentinel
from guarded_serve.supervisor.fold import PASSED, Folder
from guarded_serve.supervisor.lines import Format, Lines
from guarded_serve.supervisor.loop import Loop
from guarded_serve.supervisor.output import Output
from guarded_serve.supervisor.preflight import Gate
from guarded_serve.supervisor.redact import Redactor
from guarded_serve.supervisor.reload import what_changes
from guarded_serve.supervisor.restarts import Restarts
from guarded_serve.supervisor.run import Options, Supervisor
from guarded_serve.supervisor.secrets import KEY_FILE_VARIABLE, exposed, out_of_sight, with_api_key
from guarded_serve.supervisor.states import ENDS, State, may_follow


@pytest.mark.parametrize(
    ("kind", "status", "line"),
    [
        ("cuda-memory", -9, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("cuda", -9, "RuntimeError: CUDA error: an illegal memory access was encountered"),
        ("xid", -9, "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus."),
        ("port", 1, "ERROR: [Errno 98] error while attempting to bind on address: address already in use"),
        ("shared-memory", -7, "[rank 0] Scheduler died: exit code: -7"),
        ("disk", 1, "OSError: [Errno 28] No space left on device: '/root/.cache/x'"),
        ("memory", 1, "MemoryError"),
        ("watchdog", -9, "Watchdog timeout (self.watchdog_last_forward_ct=9)"),
        ("killed", -9, "Decode batch, #running-req: 1"),
        ("exit", 0, "Decode batch, #running-req: 1"),
    ],
)
def test_death_is_read_from_the_tail(kind: str, status: int, line: str) -> None:
    found = death.classify(status, ["some line", line, "another"])
    assert found.kind == kind
    assert found.remedy


def test_death_names_the_exception_of_a_traceback() -> None:
    tail = ["Traceback (most recent call last):", '  File "x.py", line 3', "ValueError: ids [1,3,9] of 9 layers", "bye"]
    found = death.classify(-9, tail)
    assert found.kind == "crash"
    assert found.message == "ValueError: ids [1,3,9] of 9 layers (signal SIGKILL)"


def test_the_kernels_count_of_memory_kills_comes_first() -> None:
    found = death.classify(-9, ["CUDA error: something"], out_of_memory_kills=1, lost_process="scheduler 7")
    assert found.kind == "memory"
    assert "scheduler 7 ended first" in found.message


def test_memory_kills_of_both_cgroup_versions(tmp_path: Path) -> None:
    first = tmp_path / "one/memory/system.slice/serve"
    first.mkdir(parents=True)
    (first / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert cgroup.out_of_memory_kills(tmp_path / "one", "4:memory:/system.slice/serve\n0::/\n") == 3
    second = tmp_path / "two/system.slice/serve"
    second.mkdir(parents=True)
    (second / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 2\noom_kill 2\noom_group_kill 0\n")
    assert cgroup.out_of_memory_kills(tmp_path / "two", "0::/system.slice/serve\n") == 2
    assert cgroup.out_of_memory_kills(tmp_path / "two", "0::/elsewhere\n") is None
    # in a container the path is the host's, and the mount shows our own cgroup at its root
    (tmp_path / "two/memory.events").write_text("oom_kill 1\n")
    assert cgroup.out_of_memory_kills(tmp_path / "two", "0::/docker/123\n") == 1


def test_floods_are_folded_by_template_and_counted() -> None:
    folder = Folder()
    lines = [f"thread {number}: invalid eagle tree".encode() for number in range(1000)]
    kept = folder.keep([*lines[:500], b"something else", *lines[500:]])
    assert kept == [*lines[:PASSED], b"something else"]
    assert folder.close_window() == [(1000 - PASSED, lines[PASSED])]
    assert folder.keep(lines[:1]) == lines[:1]
    assert folder.close_window() == []


def test_lines_that_differ_in_words_are_no_flood() -> None:
    lines = [b"word " + bytes([97 + i % 26, 97 + i // 26 % 26, 97 + i // 676]) for i in range(3000)]
    assert Folder().keep(lines) == lines


def with_arguments(*arguments: str, **server: object) -> Deployment:
    return replace(deployment(**server), arguments=arguments)


def deployment(**server: object) -> Deployment:
    return Deployment(
        profile=Profile(),
        profile_path=None,
        server={name: Setting(value, "test") for name, value in server.items()},
        defaults={"port": 30000},
        arguments=(),
        environment={"HF_TOKEN": Setting("hf_abcdefgh", "profile"), "NCCL_DEBUG": Setting("INFO", "profile")},
    )


def test_secrets_are_masked_in_text_bytes_and_fields(tmp_path: Path) -> None:
    redactor = Redactor.of(deployment(api_key="sk-12345678"))
    assert redactor.text("--api-key sk-12345678 hf_abcdefgh INFO") == "--api-key *** *** INFO"
    assert redactor.block(b"sk-12345678\n") == b"***\n"
    with Loop() as loop, (tmp_path / "out").open("wb") as file:
        output = Output(loop, file.fileno())
        for style in Format:
            lines = Lines(output, style, redactor)
            lines.info("key sk-12345678", found="hf_abcdefgh")
        output.finish()
    text = (tmp_path / "out").read_text()
    assert "sk-12345678" not in text
    assert "hf_abcdefgh" not in text
    assert text.count("***") == 8


def test_restarts_back_off_and_end() -> None:
    restarts = Restarts(3, 100)
    assert [restarts.next_delay_s(now) for now in (0, 10, 20, 30)] == [1, 2, 4, None]
    assert restarts.next_delay_s(105) == 4  # the first has left the window
    assert Restarts(0, 100).next_delay_s(0) is None


def test_reload_changes_limits_at_once_and_the_rest_later() -> None:
    before = deployment(port=30000, api_key="old-secret")
    profile = Profile.model_validate({"supervise": {"hang_s": 60.0}, "timing": {"keep": 3}})
    after = Deployment(**{**vars(deployment(port=30001, api_key="new-secret")), "profile": profile})
    change = what_changes(before, after)
    assert change.live == ("supervise.hang_s = 60.0 (was 120)",)
    assert change.later == ("timing.keep = 3 (was 40)", "server.api_key", "server.port = 30001 (was 30000)")
    assert change.limits.hang_s == 60
    assert change.deployment.profile.timing.keep == 40
    assert change.deployment.get("port") == 30000


@pytest.mark.parametrize("state", [State.FAILED, State.REFUSED])
def test_a_stop_between_an_end_and_its_restart_is_heeded(state: State, tmp_path: Path) -> None:
    with Loop() as loop, (tmp_path / "out").open("wb") as file:

        def preflight(_: Deployment) -> Gate:
            raise AssertionError("it started again")

        supervisor = Supervisor(loop, deployment(), preflight, Options(), Output(loop, file.fileno()))
        supervisor._state = state
        supervisor._later("restart", 0, supervisor._restart)
        supervisor._on_signal(signal.SIGTERM)
        assert supervisor._state is State.STOPPED
        assert supervisor._timers == {}


def test_states_follow_each_other_as_documented() -> None:
    assert may_follow(None, State.PREFLIGHT)
    assert not may_follow(None, State.SERVING)
    assert not may_follow(State.STARTING, State.SERVING)  # probing lies between
    assert not may_follow(State.STOPPED, State.PREFLIGHT)
    assert all(any(may_follow(state, end) for end in ENDS) for state in State if state not in ENDS)


def test_a_full_disk_for_the_log_loses_lines_only() -> None:
    with Loop() as loop, open("/dev/full", "wb") as full:  # noqa: PTH123
        output = Output(loop, os.dup(full.fileno()))
        output.write(b"lost\n")
        assert output.lost == 5
        assert not output.gone


def test_keys_go_through_a_private_file(tmp_path: Path) -> None:
    arguments = ("--port", "1", "--api-key", 'a"b:c', "--admin-api-key=xyz", "--tp", "2")
    made = out_of_sight(with_arguments(*arguments), tmp_path)
    assert made == ("--config", str(tmp_path / "server.yaml"), "--port", "1", "--tp", "2")
    assert yaml.safe_load((tmp_path / "server.yaml").read_text()) == {"api-key": 'a"b:c', "admin-api-key": "xyz"}
    assert (tmp_path / "server.yaml").stat().st_mode & 0o777 == 0o600
    assert exposed(with_arguments(*arguments)) == ()
    own = with_arguments("--config", "mine.yaml", "--api-key", "abc")
    assert out_of_sight(own, tmp_path) == own.arguments  # SGLang reads one such file
    (note,) = exposed(own)
    assert "--api-key stays on SGLang's command line" in note
    assert out_of_sight(with_arguments("--port", "1"), tmp_path) == ("--port", "1")


def test_an_abbreviated_flag_is_a_key_as_well_and_other_flags_are_not(tmp_path: Path) -> None:
    arguments = ("--ssl-keyfile", "/k", "--api-k", "secret-1", "--admin-api=secret-2")
    abbreviated = with_arguments(*arguments, api_key="secret-1", admin_api_key="secret-2")
    assert out_of_sight(abbreviated, tmp_path)[2:] == ("--ssl-keyfile", "/k")
    written = yaml.safe_load((tmp_path / "server.yaml").read_text())
    assert written == {"api-key": "secret-1", "admin-api-key": "secret-2"}


@pytest.mark.parametrize("key", ["plain", "with space", 'a"b:c', "123", "true", "null", "-x", "--port", "-5", "=", "ü"])
def test_keys_that_begin_with_a_dash_stay_and_others_go(key: str, tmp_path: Path) -> None:
    """What SGLang itself makes of them is in test_keys_as_sglang_reads_them.py."""
    (tmp_path / "key").write_text(key)
    made = with_api_key(deployment(), {KEY_FILE_VARIABLE: str(tmp_path / "key")})
    arguments = out_of_sight(made, tmp_path)
    if key.startswith("-"):
        assert arguments == (f"--api-key={key}",)
        assert len(exposed(made)) == 1
    else:
        assert arguments == ("--config", str(tmp_path / "server.yaml"))
        assert exposed(made) == ()


def test_a_key_from_a_credential_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "api-key").write_text("from-systemd\n")
    (tmp_path / "other").write_text("from-a-file\n")
    found = with_api_key(deployment(), {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert found.get("api_key") == "from-systemd"
    assert found.arguments == ("--api-key", "from-systemd")
    assert with_api_key(deployment(), {KEY_FILE_VARIABLE: str(tmp_path / "other")}).get("api_key") == "from-a-file"
    assert with_api_key(deployment(api_key="set"), {"CREDENTIALS_DIRECTORY": str(tmp_path)}).get("api_key") == "set"
    assert with_api_key(deployment(), {}).get("api_key") is None
    with pytest.raises(FileNotFoundError):
        with_api_key(deployment(), {KEY_FILE_VARIABLE: str(tmp_path / "absent")})


def test_a_semaphore_is_known_by_its_inode() -> None:
    """As every SGLang leaves one: glibc maps it under another name than the one that stays."""
    holder = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import _multiprocessing as m, sys\n"
            f"s = m.SemLock(1, 1, 1, '/sem-test-{os.getpid()}', False)\n"
            "print('made', flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    path = f"/dev/shm/sem.sem-test-{os.getpid()}"
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"made\n"
        assert sentinel.shared_memory_of([holder.pid]) == {path}
        assert sentinel.remove_shared_memory({path}, ()) == []  # somebody maps it
    finally:
        holder.communicate()
    assert sentinel.remove_shared_memory({path}, {path}) == []  # it was there before
    assert sentinel.remove_shared_memory({path}, ()) == [path]
    assert not Path(path).exists()


def test_the_journal_is_known_by_its_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "out").open("wb") as file:
        status = os.fstat(file.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        assert Format.suited_to(file.fileno()) is Format.JOURNAL
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino + 1}")  # redirected to somewhere else
        assert Format.suited_to(file.fileno()) is Format.PLAIN


def test_the_journal_gets_levels(tmp_path: Path) -> None:
    with Loop() as loop, (tmp_path / "out").open("wb") as file:
        output = Output(loop, file.fileno())
        lines = Lines(output, Format.JOURNAL, Redactor(()))
        lines.error("it ended", state="failed")
        lines.server([b"[2026] ERROR: no", b"[2026] WARNING: hm", b"RuntimeError: x", b"Decode batch"])
        output.finish()
    assert (tmp_path / "out").read_text().splitlines() == [
        '<3>level=error from=guard state=failed msg="it ended"',
        "<3>[2026] ERROR: no",
        "<4>[2026] WARNING: hm",
        "<3>RuntimeError: x",
        "<6>Decode batch",
    ]


def test_a_crash_folder_is_missed_where_there_is_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("LOGS_DIRECTORY", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    deployment = Deployment(Profile(), None, {}, {}, ())
    assert crash.base(deployment) is None
    assert crash.write(crash.base(deployment), "hang", {}, [b"line"], Redactor.of(deployment)) is None
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = crash.write(crash.base(deployment), "hang", {}, [b"line"], Redactor.of(deployment))
    assert folder is not None
    assert folder.parent == tmp_path / "guarded-serve/crashes"
