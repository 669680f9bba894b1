"""Output to readers that do not read: nothing waits for them."""

from __future__ import annotations

import os
import pty
import threading
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guarded_serve.profile.deployment import Deployment
from guarded_serve.profile.model import Profile
from guarded_serve.supervisor import run
from guarded_serve.supervisor.loop import Loop
from guarded_serve.supervisor.output import Output
from guarded_serve.supervisor.preflight import Gate


def pipe() -> tuple[int, int]:
    return os.pipe()


def terminal() -> tuple[int, int]:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    return ours, theirs


@pytest.mark.parametrize("make", [pipe, terminal])
def test_nobody_reads_and_nothing_blocks(make: Callable[[], tuple[int, int]]) -> None:
    ours, theirs = make()
    sent = b"".join(b"%d\n" % number for number in range(50_000))
    got = bytearray()

    def read() -> None:
        while len(got) < len(sent):
            got.extend(os.read(ours, 65536))
        loop.call_from_thread(loop.stop)

    with Loop() as loop:
        output = Output(loop, theirs)
        for start in range(0, len(sent), 997):  # odd sizes, so that little room is left at times
            done = threading.Thread(target=output.write, args=(sent[start : start + 997],), daemon=True)
            done.start()
            done.join(5)
            assert not done.is_alive(), "the write blocked"
        assert os.get_blocking(theirs)  # others share it
        threading.Thread(target=read, daemon=True).start()
        loop.call_later(20, loop.stop)
        loop.run()
        assert bytes(got) == sent
        output.finish()
    os.close(ours)
    os.close(theirs)


def never(_: Deployment) -> Gate:
    raise AssertionError("no start was asked for")


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop() as made:
        yield made


def turn(loop: Loop, seconds: float) -> None:
    loop.call_later(seconds, loop.stop)
    loop.run()


def test_a_reader_that_stalls_does_not_hold_up_the_server_for_long(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_STALL_S", 0.5)
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    deployment = Deployment(profile=Profile(), profile_path=None, server={}, defaults={}, arguments=(), environment={})
    output = Output(loop, theirs)
    supervisor = run.Supervisor(loop, deployment, never, run.Options(), output)
    did: list[str] = []
    child = SimpleNamespace(pause_output=lambda: did.append("pause"), resume_output=lambda: did.append("resume"))
    launch: Any = SimpleNamespace(child=child)
    supervisor._launch = launch

    def say(lines: int) -> None:
        letters = (f"{chr(97 + i % 26)}{chr(97 + i // 26 % 26)}{chr(97 + i // 676)}" for i in range(lines))
        supervisor._on_lines("".join(f"{word} {'x' * 200}\n" for word in letters).encode())

    say(6000)
    assert did == ["pause"]
    turn(loop, 0.3)
    assert did == ["pause"]  # for a moment the server waits, as for a slow terminal
    turn(loop, 0.5)
    assert did == ["pause", "resume"]
    waiting = len(output._waiting)
    say(6000)
    say(17)
    assert len(output._waiting) == waiting
    end, got = time.monotonic() + 10, b""
    while b"nobody read them" not in got and time.monotonic() < end:
        turn(loop, 0.01)
        try:
            got += os.read(ours, 1 << 20)
        except BlockingIOError:
            pass
    assert b"left out 6017 lines of the server: nobody read them" in got
    assert got.count(b" xxx") == 6000
    say(10)
    turn(loop, 0.05)
    assert os.read(ours, 1 << 20).count(b" xxx") == 10  # it reads on
    output.finish()
    os.close(ours)
    os.close(theirs)


def test_what_waits_has_a_limit(loop: Loop) -> None:
    ours, theirs = os.pipe()
    output = Output(loop, theirs)
    for _ in range(100):
        output.write(b"x" * (1 << 20))
    assert len(output._waiting) < 6 << 20
    assert output.lost > 90 << 20
    output.finish(0.1)
    os.close(ours)
    os.close(theirs)
