"""How a point in a cycle is marked and two marks are subtracted: CUDA events, or a clock where the work is synchronous.

A `Slot` holds the marks of one cycle and is reused; after warm-up nothing is allocated. Marks are recorded on the
current stream and never waited for: `ready` asks each event whether the device has passed it.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

START, DRAFT_START, DRAFT_END, VERIFY_START, VERIFY_END, EXTEND_START, EXTEND_END, END = range(8)
MARKS = 8


class Slot:
    """One cycle in flight: its marks and what is known of it so far."""

    __slots__ = (
        "accept",
        "bs",
        "closed",
        "cut",
        "draft_tokens",
        "dropped",
        "events",
        "following",
        "forward",
        "last_mark",
        "marks",
        "period_open",
        "settled",
        "steps",
        "t",
    )

    def __init__(self) -> None:
        self.marks: list[Any] = [None] * MARKS
        self.events: list[Any] = [None] * MARKS  # the events that `marks` points to, kept for reuse
        self.reset()

    def reset(self) -> None:
        """Forget the cycle, keep the events."""
        for index in range(MARKS):
            self.marks[index] = None
        self.last_mark = START
        self.t = 0.0
        self.forward = 0
        self.bs = 0
        self.steps = 0
        self.draft_tokens = 0
        self.accept: list[int] = []
        self.dropped: list[int] = []
        self.cut = 0
        self.closed = False  # its forward pass was launched to the end
        self.settled = False  # its accepted counts are known
        self.following: Slot | None = None  # the next cycle, when nothing came between
        self.period_open = True  # the next cycle may still follow directly


class Timer(Protocol):
    """A way to mark points in time."""

    source: str

    def mark(self, slot: Slot, index: int) -> None:
        """Record mark ``index`` now, on the current stream."""

    def ready(self, slot: Slot) -> bool:
        """Whether every mark that was recorded has passed."""

    def passed(self, slot: Slot, index: int) -> bool:
        """Whether one recorded mark has passed."""

    def between(self, first: Any, second: Any) -> float:
        """Milliseconds between two marks that have passed."""


class CpuTimer:
    """`perf_counter`, for the CPU engine, whose operators are done when they return."""

    source = "cpu-clock"

    def mark(self, slot: Slot, index: int) -> None:
        slot.marks[index] = time.perf_counter()
        slot.last_mark = index

    def ready(self, slot: Slot) -> bool:
        return True

    def passed(self, slot: Slot, index: int) -> bool:
        return True

    def between(self, first: Any, second: Any) -> float:
        return float(second - first) * 1e3


class EventTimer:
    """CUDA events with timing. ``make`` builds one event, so that a test can feed events that finish late or never."""

    source = "cuda-event"

    def __init__(self, make: Any, current_stream: Any) -> None:
        self._make = make
        self._current_stream = current_stream

    @classmethod
    def for_cuda(cls) -> EventTimer:
        """The real one."""
        import torch  # noqa: PLC0415

        return cls(lambda: torch.cuda.Event(enable_timing=True), torch.cuda.current_stream)

    def mark(self, slot: Slot, index: int) -> None:
        event = slot.events[index]
        if event is None:
            event = slot.events[index] = self._make()
        event.record(self._current_stream())
        slot.marks[index] = event
        slot.last_mark = index

    def ready(self, slot: Slot) -> bool:
        return all(mark is None or mark.query() for mark in slot.marks)

    def passed(self, slot: Slot, index: int) -> bool:
        return bool(slot.marks[index].query())

    def between(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second))
