"""`guarded-serve holders`: the table, JSON, and --terminate, which touches proven leftovers alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.cli import main
from guarded_serve.commands import holders
from guarded_serve.facts.terminate import Ended
from tests.support.fake_driver import environment
from tests.support.fake_proc import FakeProc, nvidia


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    made = FakeProc(tmp_path / "proc")
    monkeypatch.setattr(holders, "PROC", made.root)
    return made


@pytest.fixture
def ended(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The PIDs that would have been signalled; nothing is. What was ended is gone from the made-up /proc."""
    pids: list[int] = []

    def end(processes: Any, **_: Any) -> tuple[Ended, ...]:
        for process in processes:
            pids.append(process.pid)
            proc.remove(process.pid)
        return tuple(Ended(process, "TERM", 0.2) for process in processes)

    monkeypatch.setattr(holders, "end_processes", end)
    return pids


def _driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int = 2, **cards: Any) -> None:
    for name, value in environment(tmp_path, gpus, **cards).items():
        monkeypatch.setenv(name, value)


def _three(proc: FakeProc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An orphaned scheduler, a living server's scheduler, and somebody's training."""
    proc.add(30, "sglang::scheduler_TP0", parent=1, uid=os.geteuid(), files=nvidia(0))
    proc.add(39, "python -m sglang.launch_server", parent=1)
    proc.add(40, "sglang::scheduler", parent=39, uid=os.geteuid(), files=nvidia(1))
    proc.add(50, "python train.py", uid=4242, files=nvidia(1))
    _driver(
        tmp_path,
        monkeypatch,
        gpu0={"used": "101000", "compute": "30:100900"},
        gpu1={"used": "9000", "compute": "40:5000 50:3900"},
    )


def test_the_table_names_all_and_says_why(
    proc: FakeProc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _three(proc, tmp_path, monkeypatch)
    assert main(["holders"]) == 0
    text = capsys.readouterr().out
    for part in ("101000 of 143771 MiB", "leftover  PID 30 sglang::scheduler_TP0", "user 4242", "GPU 1: 3900 MiB"):
        assert part in text
    assert "holder    PID 40" in text
    assert "holder    PID 50" in text


def test_json_is_for_programs(
    proc: FakeProc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _three(proc, tmp_path, monkeypatch)
    assert main(["holders", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(one["pid"], one["leftover"], one["would_end"]) for one in said["holders"]] == [
        (30, True, True),
        (40, False, False),
        (50, False, False),
    ]
    assert said["gpus"][0]["used"] == 101000 * 2**20


def test_terminate_ends_the_leftover_alone_and_says_that_others_are_left(
    proc: FakeProc, ended: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _three(proc, tmp_path, monkeypatch)
    assert main(["holders", "--terminate"]) == 75
    assert ended == [30]


def test_terminate_is_0_when_the_gpus_are_free_afterwards(
    proc: FakeProc, ended: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc.add(30, "sglang::detokenizer", parent=1, uid=os.geteuid())
    _driver(tmp_path, monkeypatch)
    assert main(["holders", "--terminate"]) == 0
    assert ended == [30]


def test_dry_run_ends_nothing(
    proc: FakeProc,
    ended: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _three(proc, tmp_path, monkeypatch)
    assert main(["holders", "--terminate", "--dry-run"]) == 0
    assert ended == []
    assert "would end PID 30" in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "expected"), [("n\n", []), ("\n", []), ("y\n", [30])])
def test_a_terminal_is_asked_first(
    answer: str,
    expected: list[int],
    proc: FakeProc,
    ended: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _three(proc, tmp_path, monkeypatch)

    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return answer

        def write(self, text: str) -> int:
            return len(text)

        def flush(self) -> None:
            pass

    monkeypatch.setattr(holders.sys, "stdin", Terminal())
    monkeypatch.setattr(holders.sys, "stderr", Terminal())
    main(["holders", "--terminate"])
    assert ended == expected


def test_another_users_leftover_is_named_not_touched(
    proc: FakeProc,
    ended: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    proc.add(30, "sglang::scheduler", parent=1, uid=4242, files=nvidia(0))
    _driver(tmp_path, monkeypatch, gpu0={"used": "900", "compute": "30:800"})
    assert main(["holders", "--terminate"]) == 75
    assert ended == []
    assert "--any-user" in capsys.readouterr().out
    if os.geteuid() == 0:
        main(["holders", "--terminate", "--any-user"])
        assert ended == [30]


def test_a_deployment_narrows_it_to_its_gpus(
    proc: FakeProc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _three(proc, tmp_path, monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert main(["holders", "--model-path", "/m", "--base-gpu-id", "1"]) == 0
    text = capsys.readouterr().out
    assert "PID 40" in text
    assert "PID 30" not in text


def test_no_driver_is_said_and_is_not_0(
    proc: FakeProc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _driver(tmp_path, monkeypatch)
    monkeypatch.setenv("FAKE_NVML", "/no/such/script")
    assert main(["holders"]) == 71
    assert "does not answer" in capsys.readouterr().out
