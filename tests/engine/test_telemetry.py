"""The thread between the clock and the world: beats, faults, the control file, queues that fill."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.engine.clock import CycleClock
from guarded_serve.engine.cycle_file import CycleFile
from guarded_serve.engine.events import Events
from guarded_serve.engine.telemetry import QUEUE_RECORDS, Telemetry
from guarded_serve.engine.timers import CpuTimer
from guarded_serve.timing.record import Cycle
from guarded_serve.timing.totals import Totals

CYCLE = Cycle(1000.0, 0, 1, 1, 3, 4, 1.0, 6.0, 0.5, 7.6, 8.0, [3], "cpu-clock")


class Launcher:
    """The launcher's end of the socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(5.0)

    def next(self, kind: str) -> dict[str, Any]:
        while True:
            event: dict[str, Any] = json.loads(self.socket.recv(1 << 20))
            if event["event"] == kind:
                return event


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    end = Launcher(tmp_path / "socket")
    yield end
    end.socket.close()


@pytest.fixture
def telemetry(tmp_path: Path, launcher: Launcher) -> Iterator[Telemetry]:
    file = CycleFile(tmp_path / "cycles", 0, rotate_bytes=1 << 20, keep=2)
    made = Telemetry(Events(str(tmp_path / "socket")), tmp_path / "control", file)
    made.clock = CycleClock(CpuTimer(), made.take, rank=0, plain=False, wall=time.time)
    yield made
    made.stop(5.0)


def test_a_record_is_on_disk_and_in_a_beat_within_a_second(
    tmp_path: Path, telemetry: Telemetry, launcher: Launcher
) -> None:
    telemetry.start()
    launcher.next("beat")
    telemetry.take(CYCLE)
    time.sleep(1.0)
    assert (tmp_path / "cycles" / "cycles-0-000001.jsonl").read_text() == CYCLE.to_line()
    beat = launcher.next("beat")
    while not beat["totals"]["speculative"]:
        beat = launcher.next("beat")
    totals = Totals.from_mapping(beat["totals"])
    assert totals.speculative[1].accepted == 3
    assert (beat["clock"], beat["dropped"], beat["lost"], beat["faults"], beat["problem"]) == (True, 0, 0, 0, "")


def test_the_control_file_switches_the_clock(tmp_path: Path, telemetry: Telemetry, launcher: Launcher) -> None:
    clock = telemetry.clock
    assert clock is not None
    telemetry.start()
    assert launcher.next("beat")["clock"] is True
    (tmp_path / "control").write_text('{"clock": false}')
    _until(lambda: not clock.on)
    (tmp_path / "control").write_text("half a fi")  # being written, or a stranger's: changes nothing
    time.sleep(1.3)
    assert not clock.on
    replacement = tmp_path / "control.new"
    replacement.write_text('{"clock": true}')
    replacement.rename(tmp_path / "control")
    _until(lambda: clock.on)


def test_faults_are_said(telemetry: Telemetry, launcher: Launcher) -> None:
    assert telemetry.clock is not None
    telemetry.clock.fault(RuntimeError("a hook broke"))
    telemetry.start()
    fault = launcher.next("fault")
    assert (fault["faults"], fault["message"]) == (1, "RuntimeError: a hook broke")


def test_a_full_queue_drops_and_counts(tmp_path: Path) -> None:
    telemetry = Telemetry(Events(str(tmp_path / "nobody")), tmp_path / "control", None)
    for _ in range(QUEUE_RECORDS + 5):
        telemetry.take(CYCLE)
    assert telemetry.dropped == 5


def test_a_launcher_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    events = Events(str(tmp_path / "nobody"))
    assert events.send("beat") is False
    assert events.unsent == 1


def test_a_launcher_that_does_not_read_costs_nothing(tmp_path: Path, launcher: Launcher) -> None:
    events = Events(str(tmp_path / "socket"))
    started = time.monotonic()
    sent = [events.send("beat", totals="x" * 10_000) for _ in range(200)]
    assert time.monotonic() - started < 1.0
    assert sent[0] is True
    assert sent[-1] is False


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
