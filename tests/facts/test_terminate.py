"""Ending processes for real: our own children, some of which do not want to go."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from guarded_serve.facts.processes import Process, read_process
from guarded_serve.facts.terminate import end_processes

STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)"
WILLING = "import time\nprint('up', flush=True)\ntime.sleep(60)"


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for child in started:
        child.kill()
        child.communicate()


def _start(children: list[subprocess.Popen[str]], code: str) -> Process:
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    children.append(child)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    return read_process(child.pid)


def test_a_willing_process_ends_at_sigterm_at_once(children: list[subprocess.Popen[str]]) -> None:
    started = time.monotonic()
    (ended,) = end_processes([_start(children, WILLING)], grace_s=10)
    assert ended.how == "TERM"
    assert children[0].wait(5) == -15
    assert time.monotonic() - started < 5


def test_a_stubborn_process_ends_at_sigkill(children: list[subprocess.Popen[str]]) -> None:
    said: list[str] = []
    both = [_start(children, STUBBORN), _start(children, WILLING)]
    stubborn, willing = end_processes(both, grace_s=0.5, say=said.append)
    assert (stubborn.how, willing.how) == ("KILL", "TERM")
    assert children[0].wait(5) == -9
    assert len([text for text in said if text.startswith("SIGTERM")]) == 2
    assert len([text for text in said if text.startswith("SIGKILL")]) == 1


def test_a_stopped_process_ends_too(children: list[subprocess.Popen[str]]) -> None:
    process = _start(children, WILLING)
    children[0].send_signal(19)
    (ended,) = end_processes([process], grace_s=0.3)
    assert ended.is_gone


def test_a_pid_that_was_given_away_is_not_touched(children: list[subprocess.Popen[str]]) -> None:
    process = _start(children, WILLING)
    (ended,) = end_processes([replace(process, started=(process.started or 0) - 1)])
    assert ended.how == "another"
    assert children[0].poll() is None


def test_one_that_is_gone_already(children: list[subprocess.Popen[str]]) -> None:
    process = _start(children, WILLING)
    children[0].kill()
    children[0].wait()
    (ended,) = end_processes([process])
    assert ended.how == "gone"


def test_a_process_that_cannot_be_held_is_left_alone(
    children: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    process = _start(children, WILLING)
    monkeypatch.setattr("os.pidfd_open", refuse)
    (ended,) = end_processes([process], grace_s=0.1, kill_wait_s=0.1)
    assert ended.how == "alive"
    assert not ended.is_gone
    assert children[0].poll() is None
