"""The thread between the clock and the world: beats, faults, the control file, queues that fill."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guarded_serve.engine.clock import CycleClock
from guarded_serve.engine.cycle_file import CycleFile
from guarded_serve.engine.events import Events
from guarded_serve.engine.telemetry import QUEUE_RECORDS, Telemetry
from guarded_serve.engine.timers import CpuTimer
from guarded_serve.supervisor.run_folder import RunFolder
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
    told = launcher.next("totals")
    while not told["totals"]["speculative"]:
        told = launcher.next("totals")
    assert Totals.from_mapping(told["totals"]).speculative[1].accepted == 3
    assert told["left"] == 0
    beat = launcher.next("beat")
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


def test_a_launcher_that_does_not_read_costs_nothing(tmp_path: Path, launcher: Launcher) -> None:
    events = Events(str(tmp_path / "socket"))
    started = time.monotonic()
    sent = [events.send("beat", problem="x" * 10_000) for _ in range(200)]
    assert time.monotonic() - started < 1.0
    assert sent[0] is True
    assert sent[-1] is False


def test_three_hundred_batch_sizes_arrive(folder: RunFolder) -> None:
    """Through the launcher's own socket: beats stay small, totals come in parts, and only what changed comes again."""
    telemetry = Telemetry(Events(str(folder.socket_path)), folder.control_path, None)
    telemetry.clock = CycleClock(CpuTimer(), telemetry.take, rank=0, plain=False, wall=time.time)
    for bs in range(1, 301):
        telemetry.take(CYCLE._replace(bs=bs, forward=123_456_789, accept=[4] * bs))
    telemetry.start()
    try:
        events = _read(folder, lambda events: _told(events).sizes() == telemetry.totals.sizes() != set())
        assert _told(events) == telemetry.totals
        beats = [event for event in events if event["event"] == "beat"]
        assert max(len(json.dumps(beat)) for beat in beats) < 1000
        assert max(len(json.dumps(event)) for event in events) < 1 << 16
        telemetry.take(CYCLE)
        more = _read(folder, lambda events: any(event["totals"]["speculative"] for event in _totals(events)))
        assert [set(event["totals"]["speculative"]) for event in _totals(more)][-1] == {"1"}
        assert _told(events + more) == telemetry.totals
    finally:
        telemetry.stop()


def test_totals_that_found_no_room_come_later(folder: RunFolder) -> None:
    events = Events(str(folder.socket_path))
    telemetry = Telemetry(events, folder.control_path, None)
    telemetry.clock = CycleClock(CpuTimer(), telemetry.take, rank=0, plain=False, wall=time.time)
    telemetry.take(CYCLE)
    telemetry._drain()
    while events.send("noise", text="x" * 50_000):
        pass
    telemetry._tell()
    assert _told(list(folder.receive())) == Totals()
    telemetry._tell()
    assert _told(list(folder.receive())) == telemetry.totals


def test_an_error_in_the_thread_is_told_and_the_beats_go_on(telemetry: Telemetry, launcher: Launcher) -> None:
    """A record that cannot be counted, and totals that cannot be told, must not look like a scheduler that hangs."""
    telemetry.take(CYCLE._replace(accept=None))  # type: ignore[arg-type]
    telemetry.take(CYCLE)
    telemetry.totals.part = None  # type: ignore[method-assign, assignment]
    telemetry.start()
    for _ in range(3):
        beat = launcher.next("beat")
    assert beat["faults"] >= 3
    assert beat["dropped"] == 1
    assert telemetry.totals.speculative[1].cycles == 1


def test_a_paused_engine_says_so_and_is_not_at_work(telemetry: Telemetry, launcher: Launcher) -> None:
    telemetry.scheduler = SimpleNamespace(forward_ct=7, _engine_paused=True)
    telemetry.start()
    beat = launcher.next("beat")
    assert (beat["forwards"], beat["busy"], beat["paused"]) == (7, False, True)
    telemetry.scheduler._engine_paused = False
    while beat["paused"]:
        beat = launcher.next("beat")
    assert beat["busy"] is True


@pytest.fixture
def folder() -> Iterator[RunFolder]:
    made = RunFolder()
    yield made
    made.close()


def _read(folder: RunFolder, enough: Any) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    deadline = time.monotonic() + 10.0
    while not enough(events):
        assert time.monotonic() < deadline
        events += folder.receive()
        time.sleep(0.02)
    return events


def _totals(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "totals"]


def _told(events: list[dict[str, Any]]) -> Totals:
    told = Totals()
    for event in _totals(events):
        told = told.updated(event["totals"])
    return told


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
