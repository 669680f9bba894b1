"""The thread that takes finished cycles off the engine's hands: totals, lines for the disk, beats, the control file.

It never touches the device. It gives up the interpreter lock after every few records, so that the scheduler's thread
does not wait for it.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guarded_serve.engine.clock import CycleClock
from guarded_serve.engine.cycle_file import CycleFile
from guarded_serve.engine.events import Events
from guarded_serve.engine.prometheus import EngineMetrics
from guarded_serve.engine_link import BEAT, FAULT, TOTALS
from guarded_serve.timing.record import Cycle
from guarded_serve.timing.totals import Totals

QUEUE_RECORDS = 20_000
DRAIN_S = 0.2
BEAT_S = 1.0
SLICE = 16
CHUNK_SIZES = 32  # batch sizes in one datagram: about 16 KiB, of which the kernel takes 200 by default


class Telemetry:
    """Started once in a scheduler process."""

    def __init__(self, events: Events, control: Path, cycle_file: CycleFile | None) -> None:
        self.clock: CycleClock | None = None  # set before `start`
        self.scheduler: Any = None  # SGLang's, for its count of forward passes; set before `start`
        self.clocked = True  # cycles come, so there are totals to tell
        self.knows_idle = True  # the hook that tells idleness from work took hold
        self.totals = Totals()
        self._changed: set[tuple[bool, int]] = set()  # batch sizes that the launcher has not been told of
        self.dropped = 0  # records that found the queue full
        self._events = events
        self._control = control
        self._control_seen: tuple[int, int] | None = None
        self._file = cycle_file
        self.metrics: EngineMetrics | None = None  # set before `start`, when SGLang's own /metrics is on
        self._queue: deque[Cycle] = deque()
        self._faults_told = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guarded-serve-telemetry", daemon=True)

    def take(self, cycle: Cycle) -> None:
        """Called by the clock, in the scheduler's thread."""
        if len(self._queue) >= QUEUE_RECORDS:
            self.dropped += 1
        else:
            self._queue.append(cycle)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Drain and write what is there, for at most ``timeout`` seconds each; called when the process ends."""
        self._stop.set()
        self._thread.join(timeout)
        if self._file is not None:
            self._file.close(timeout)

    def _run(self) -> None:
        next_beat = time.monotonic()
        while True:
            stopping = self._stop.wait(DRAIN_S)
            self._guarded(self._drain)
            if stopping or time.monotonic() >= next_beat:
                next_beat = time.monotonic() + BEAT_S
                self._guarded(self._obey)
                self._guarded(self._beat)
                self._guarded(self._tell)
            if stopping:
                return

    def _guarded(self, part: Callable[[], None]) -> None:
        """An error is told and costs this one time: without beats the launcher would take the engine for hung."""
        try:
            part()
        except Exception as error:
            if self.clock is not None:
                self.clock.fault(error)

    def _drain(self) -> None:
        lines: list[str] = []
        for position in range(len(self._queue)):
            cycle = self._queue.popleft()
            try:
                self.totals.add(cycle)
                self._changed.add((cycle.plain, cycle.bs))
                self._measure(cycle)
                if self._file is not None:
                    lines.append(cycle.to_line())
            except Exception as error:  # one record that is not what it should be
                self.dropped += 1
                if self.clock is not None:
                    self.clock.fault(error)
            if position % SLICE == SLICE - 1:
                time.sleep(0)
        if lines and self._file is not None:
            self._file.put("".join(lines).encode(), len(lines))

    def _measure(self, cycle: Cycle) -> None:
        """Count into SGLang's own metrics; given up for good at the first error, the rest goes on."""
        if self.metrics is None:
            return
        try:
            self.metrics.add(cycle)
        except Exception as error:
            self.metrics = None
            if self.clock is not None:
                self.clock.fault(error)

    def _beat(self) -> None:
        clock, written = self.clock, self._file
        assert clock is not None
        if clock.faults != self._faults_told:
            self._faults_told = clock.faults
            self._events.send(FAULT, faults=clock.faults, message=clock.last_fault)
        forwards = getattr(self.scheduler, "forward_ct", None)
        paused = bool(getattr(self.scheduler, "_engine_paused", False))
        at_work = forwards is not None and forwards != clock.idle_forward
        self._events.send(
            BEAT,
            forwards=forwards,
            busy=at_work and self.knows_idle and not paused,
            paused=paused,
            clock=clock.on,
            dropped=self.dropped + (written.dropped if written else 0),
            lost=clock.lost,
            faults=clock.faults,
            problem=written.problem if written else "",
        )

    def _tell(self) -> None:
        """Totals of what changed, a few batch sizes at a time; what finds no room is told after the next beat."""
        clock = self.clock
        assert clock is not None
        if not self.clocked:
            return
        self.totals.prefill_tokens = clock.prefill_tokens
        changed = sorted(self._changed)
        chunks = [changed[start : start + CHUNK_SIZES] for start in range(0, len(changed), CHUNK_SIZES)] or [[]]
        for number, chunk in enumerate(chunks, start=1):
            if not self._events.send(TOTALS, totals=self.totals.part(chunk), left=len(chunks) - number):
                return
            self._changed.difference_update(chunk)

    def _obey(self) -> None:
        """Switch the clock as the control file says; a missing or broken file changes nothing."""
        assert self.clock is not None
        try:
            stat = self._control.stat()
            seen = (stat.st_mtime_ns, stat.st_ino)
            if seen == self._control_seen:
                return
            wanted = json.loads(self._control.read_text(encoding="utf-8"))["clock"]
        except (OSError, ValueError, KeyError, TypeError):
            return
        self._control_seen = seen
        self.clock.on = bool(wanted)
