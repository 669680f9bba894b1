"""The cycle clock: marks at the edges of draft, verify and draft-extend, joined with the accepted counts.

Runs in the scheduler's thread, inside the hooks. Under the overlap scheduler a cycle is launched (`begin`, stages,
`end`), the next one is launched, and only then is the first one's result processed (`settle`): cycles are joined to
results by SGLang's forward counter. A record is emitted when the result is known, the device has passed every mark, and
it is known whether another cycle followed directly. Events are only ever asked, never waited for, and always from this
thread: asking from another one would break a CUDA graph that is being captured here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from guarded_serve.engine.timers import (
    DRAFT_END,
    DRAFT_START,
    END,
    EXTEND_END,
    EXTEND_START,
    START,
    VERIFY_END,
    VERIFY_START,
    Slot,
    Timer,
)
from guarded_serve.timing.record import Cycle

IN_FLIGHT = 64
"""Cycles that may wait for their result or their events; SGLang has two in flight. Beyond it the oldest is given up."""


class CycleClock:
    """The clock of one scheduler. ``emit`` takes finished records and must not block; ``wall`` is `time.time`."""

    def __init__(
        self,
        timer: Timer,
        emit: Callable[[Cycle], None],
        *,
        rank: int,
        plain: bool,
        wall: Callable[[], float],
    ) -> None:
        self.on = True  # set by the telemetry thread
        self.timer = timer
        self.current: Slot | None = None  # the cycle being launched
        self.lost = 0  # cycles given up: no result, or events that never finished
        self.faults = 0
        self.last_fault = ""
        self.prefill_tokens = 0
        self.idle_forward: int | None = None  # SGLang's count of forward passes when the scheduler last had no work
        self._emit = emit
        self._rank = rank
        self._plain = plain
        self._wall = wall
        self._last: Slot | None = None  # the newest cycle, as long as another may follow it directly
        self._waiting: deque[Slot] = deque()
        self._free: list[Slot] = []
        self._settling: Slot | None = None
        self._bonus = 1
        self._grammar: list[tuple[int, int]] = []

    def fault(self, error: BaseException) -> None:
        """Count an error of ours; the telemetry thread reports it."""
        self.faults += 1
        self.last_fault = f"{type(error).__name__}: {error}"
        self.current = None

    # -- launching ---------------------------------------------------------------------------------------------------

    def begin(self, batch: Any) -> Slot | None:
        """A forward pass starts: a decode cycle, or something that ends the period of the one before."""
        self.current = None
        if not self.on or not batch.forward_mode.is_decode():
            self.interrupt()
            return None
        if len(self._waiting) >= IN_FLIGHT:
            self._release(self._waiting.popleft())
            self.lost += 1
        slot = self._free.pop() if self._free else Slot()
        slot.t = self._wall()
        slot.forward = batch.forward_iter
        slot.bs = len(batch.reqs)
        self.timer.mark(slot, START)
        last = self._last
        if last is not None:
            if last.forward + 1 == slot.forward:
                last.following = slot
            last.period_open = False
        self._last = slot
        self._waiting.append(slot)
        self.current = slot
        return slot

    def mark(self, index: int) -> None:
        """An edge of a stage, when a cycle is being launched."""
        slot = self.current
        if slot is not None:
            self.timer.mark(slot, index)

    def mark_target(self) -> None:
        """The target's forward pass starts, in a worker that has no function for verify."""
        slot = self.current
        if slot is not None and slot.marks[VERIFY_START] is None:
            self.timer.mark(slot, VERIFY_START)

    def end(self, slot: Slot, worker: Any, result: Any) -> None:
        """The forward pass was launched to its end."""
        self.current = None
        if slot.last_mark == EXTEND_END:
            slot.marks[END] = slot.marks[EXTEND_END]
        else:
            self.timer.mark(slot, END)
        if self._plain:
            slot.draft_tokens = 1
        else:
            width = getattr(result, "speculative_num_draft_tokens", None)
            if width is None:
                width = worker.speculative_num_draft_tokens
            slot.draft_tokens = width
            slot.steps = getattr(worker, "speculative_num_steps", width - 1)
        slot.closed = True

    def interrupt(self) -> None:
        """No cycle can follow the last one directly any more."""
        if self._last is not None:
            self._last.period_open = False
            self._last = None

    # -- results -----------------------------------------------------------------------------------------------------

    def settle_begin(self, batch: Any, result: Any) -> None:
        """SGLang starts to process a decode batch's result: find its cycle, and the rows that it will drop."""
        self._settling = None
        forward = batch.forward_iter
        slot = next((slot for slot in self._waiting if slot.forward == forward), None)
        if slot is None or slot.settled:
            return
        self._settling = slot
        self._bonus = getattr(result, "num_non_draft_tokens_per_req", 1)
        self._grammar = []
        for row, req in enumerate(batch.reqs):
            if req.is_retracted or req.finished():
                slot.dropped.append(row)
            elif req.grammar is not None:
                self._grammar.append((row, len(req.output_ids)))

    def counts(self, correct_drafts: list[int]) -> None:
        """Accepted drafts of the batch being processed, a number a row, bonus excluded."""
        slot = self._settling
        if slot is not None:
            bonus = self._bonus
            slot.accept = [count + bonus for count in correct_drafts]

    def settle_end(self, batch: Any) -> None:
        """SGLang has processed the result: what a stop or a grammar cut off is known now."""
        slot, self._settling = self._settling, None
        if slot is None:
            return
        if self._plain:
            slot.accept = [1] * slot.bs
        slot.settled = True
        if len(slot.accept) != slot.bs:
            slot.accept = []  # no counts came: nothing true can be said of this cycle
            return
        dropped = slot.dropped
        for row, req in enumerate(batch.reqs):
            if req.finished_len is not None and row not in dropped:
                slot.cut += len(req.output_ids) - req.finished_len
        for row, before in self._grammar:
            slot.cut += slot.accept[row] - (len(batch.reqs[row].output_ids) - before)

    def poll(self) -> None:
        """Emit every cycle, in order, whose account is complete."""
        waiting, timer = self._waiting, self.timer
        while waiting:
            slot = waiting[0]
            following = slot.following
            if not slot.settled or (following is None and slot.period_open) or not timer.ready(slot):
                return
            if following is not None and not timer.passed(following, START):
                return
            waiting.popleft()
            if slot is self._last:
                self._last = None
            if slot.accept and slot.closed:
                self._emit(self._record(slot))
            else:
                self.lost += 1
            self._release(slot)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _record(self, slot: Slot) -> Cycle:
        marks, between = slot.marks, self.timer.between
        draft = verify = extend = None
        if self._plain:
            verify = between(marks[START], marks[END])
        else:
            verify_from = marks[VERIFY_START] if marks[VERIFY_START] is not None else marks[DRAFT_END]
            verify_to = next(mark for mark in (marks[VERIFY_END], marks[EXTEND_START], marks[END]) if mark is not None)
            if verify_from is not None:
                verify = between(verify_from, verify_to)
            if marks[DRAFT_END] is not None:
                draft = between(marks[DRAFT_START], marks[DRAFT_END])
            elif marks[VERIFY_END] is None and verify_from is not None:
                draft = between(marks[START], verify_from)
            if marks[EXTEND_END] is not None:
                extend = between(marks[EXTEND_START], marks[EXTEND_END])
        following = slot.following
        return Cycle(
            slot.t,
            self._rank,
            slot.forward,
            slot.bs,
            slot.steps,
            slot.draft_tokens,
            draft,
            verify,
            extend,
            between(marks[START], marks[END]),
            None if following is None else between(marks[START], following.marks[START]),
            slot.accept,
            self.timer.source,
            tuple(slot.dropped) if slot.dropped else (),
            slot.cut,
            self._plain,
        )

    def _release(self, slot: Slot) -> None:
        slot.reset()
        self._free.append(slot)
