"""The break-even alarm: the drafter has cost more than it brought for too long, and why.

Pure: fed with windows that follow each other (what `Live.window` gives, a window after a window), it keeps how long the
drafter has been losing. Windows without traffic, or at batch sizes without a baseline, are no evidence either way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from guarded_serve.timing.live import Lately

ENOUGH_CYCLES = 20  # a window with fewer says nothing
NOTICEABLE = 0.03  # a change below 3 % of what was recorded explains nothing


class Reason(str, Enum):
    """What changed against the last smoke test."""

    ACCEPT_LENGTH = "accept-length"  # the drafter, or the traffic it is asked to predict
    CYCLE_TIME = "cycle-time"  # software or hardware
    BOTH = "accept-length and cycle-time"
    NEVER_PAID = "never-paid"  # nothing changed: it lost in the smoke test too
    UNKNOWN = "unknown"  # no smoke test recorded this batch size

    @property
    def advice(self) -> str:
        """Where to look, in a clause."""
        return {
            Reason.ACCEPT_LENGTH: "accept length fell: look at the drafter and at what the requests are about",
            Reason.CYCLE_TIME: "the cycle got longer: look at software, GPU clocks, neighbours and links",
            Reason.BOTH: "accept length fell and the cycle got longer: look at both drafter and machine",
            Reason.NEVER_PAID: "nothing changed since the smoke test: the drafter did not pay then either",
            Reason.UNKNOWN: "no smoke test recorded this batch size, so there is nothing to compare with",
        }[self]


@dataclass(frozen=True)
class Reference:
    """What the last smoke test recorded at one batch size."""

    accept_length: float
    period_ms: float


@dataclass(frozen=True)
class Verdict:
    """One raised or cleared alarm, with its figures: of the batch size that lost most time."""

    raised: bool
    reason: Reason
    bs: int
    accept_length: float
    break_even: float
    gain: float
    losing_s: float

    @property
    def sentence(self) -> str:
        """For a person."""
        if not self.raised:
            return f"the drafter pays again: accept length {self.accept_length:.2f}, break-even {self.break_even:.2f}"
        return (
            f"the drafter has cost more than it brought for {self.losing_s:.0f} s: batch size {self.bs}, accept length"
            f" {self.accept_length:.2f} below break-even {self.break_even:.2f}, {self.gain:+.0%}; {self.reason.advice}"
        )


class Alarm:
    """Raised after ``patience_s`` seconds of losing windows in a row, cleared after as many of winning ones."""

    def __init__(self, patience_s: float, references: Mapping[int, Reference]) -> None:
        self.raised = False
        self._patience_s = patience_s
        self._references = references
        self._losing_s = 0.0
        self._winning_s = 0.0

    def feed(self, windows: Sequence[Lately], seconds: float) -> Verdict | None:
        """The next window, ``seconds`` long; a verdict when the alarm changes."""
        judged = [
            window for window in windows if window.totals.period_cycles >= ENOUGH_CYCLES and window.gain is not None
        ]
        if not judged:
            return None
        if self._lost_ms(judged) > 0:
            self._losing_s += seconds
            self._winning_s = 0.0
        else:
            self._winning_s += seconds
            if not self.raised:
                self._losing_s = 0.0
        if not self.raised and self._losing_s >= self._patience_s:
            self.raised = True
            return self._verdict(judged)
        if self.raised and self._winning_s >= self._patience_s:
            self.raised = False
            verdict = self._verdict(judged)
            self._losing_s = 0.0
            return verdict
        return None

    @staticmethod
    def _loss(window: Lately) -> float:
        """Milliseconds that the window's cycles took beyond what plain steps would have taken for the same tokens."""
        assert window.baseline_tok_s is not None
        return window.totals.period_ms - window.totals.period_accepted / window.baseline_tok_s * 1e3

    def _lost_ms(self, judged: list[Lately]) -> float:
        return sum(self._loss(window) for window in judged)

    def _verdict(self, judged: list[Lately]) -> Verdict:
        worst = max(judged, key=self._loss)
        length, even, gain = worst.accept_length, worst.break_even, worst.gain
        assert length is not None
        assert even is not None
        assert gain is not None
        assert worst.period_ms is not None
        reason = tell_apart(length, worst.period_ms, self._references.get(worst.bs))
        return Verdict(self.raised, reason, worst.bs, length, even, gain, self._losing_s)


def tell_apart(accept_length: float, period_ms: float, reference: Reference | None) -> Reason:
    """Which of the two moved away from what was recorded; both when each explains at least a third of the loss."""
    if reference is None:
        return Reason.UNKNOWN
    shorter = math.log(reference.accept_length / accept_length)
    longer = math.log(period_ms / reference.period_ms)
    loss = max(shorter, 0.0) + max(longer, 0.0)
    if loss < math.log1p(NOTICEABLE):
        return Reason.NEVER_PAID
    if shorter >= loss / 3 and longer >= loss / 3:
        return Reason.BOTH
    return Reason.ACCEPT_LENGTH if shorter > longer else Reason.CYCLE_TIME
