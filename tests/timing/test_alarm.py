"""The break-even alarm and its reasons."""

from __future__ import annotations

import pytest

from guarded_serve.timing.alarm import Alarm, Reason, Reference, tell_apart
from guarded_serve.timing.live import Lately
from guarded_serve.timing.totals import BatchTotals


def _window(length: float, period_ms: float, bs: int = 1, baseline: float | None = 82.0, cycles: int = 100) -> Lately:
    tokens = round(length * bs * cycles)
    totals = BatchTotals(
        cycles=cycles,
        rows=bs * cycles,
        accepted=tokens,
        period_ms=period_ms * cycles,
        period_cycles=cycles,
        period_rows=bs * cycles,
        period_accepted=tokens,
    )
    return Lately(bs, False, totals, baseline)


LOSING, WINNING = _window(2.0, 30.0), _window(2.6, 30.0)


def test_raised_after_patience_and_not_before() -> None:
    alarm = Alarm(300, {})
    assert [alarm.feed([LOSING], 60) for _ in range(4)] == [None] * 4
    verdict = alarm.feed([LOSING], 60)
    assert verdict is not None
    assert verdict.raised
    assert (verdict.bs, verdict.losing_s) == (1, 300)
    assert verdict.break_even == pytest.approx(2.46)
    assert verdict.gain == pytest.approx(-0.187, abs=1e-3)
    assert "accept length 2.00 below break-even 2.46, -19%" in verdict.sentence
    assert alarm.feed([LOSING], 60) is None, "said once"


def test_a_winning_window_starts_the_count_again() -> None:
    alarm = Alarm(100, {})
    for _ in range(10):
        assert alarm.feed([LOSING], 60) is None
        assert alarm.feed([WINNING], 60) is None


def test_cleared_after_as_long() -> None:
    alarm = Alarm(100, {})
    assert alarm.feed([LOSING], 100) is not None
    assert alarm.feed([WINNING], 60) is None
    assert alarm.feed([LOSING], 60) is None
    assert alarm.feed([WINNING], 60) is None
    verdict = alarm.feed([WINNING], 60)
    assert verdict is not None
    assert not verdict.raised
    assert "pays again" in verdict.sentence


@pytest.mark.parametrize(
    "windows", [[], [_window(2.0, 30.0, baseline=None)], [_window(2.0, 30.0, cycles=5)]], ids=["idle", "bare", "few"]
)
def test_no_evidence_changes_nothing(windows: list[Lately]) -> None:
    alarm = Alarm(100, {})
    assert alarm.feed([LOSING], 60) is None
    for _ in range(10):
        assert alarm.feed(windows, 60) is None
    assert alarm.feed([LOSING], 60) is not None


def test_what_counts_is_the_time_over_all_batch_sizes() -> None:
    """A little lost at one batch size and much won at another is no loss."""
    alarm = Alarm(10, {})
    assert alarm.feed([LOSING, _window(3.5, 30.0, bs=8, baseline=600.0)], 60) is None
    assert not alarm.raised


@pytest.mark.parametrize(
    ("length", "period", "reason"),
    [
        (2.0, 30.0, Reason.ACCEPT_LENGTH),
        (2.6, 40.0, Reason.CYCLE_TIME),
        (2.2, 36.0, Reason.BOTH),
        (2.6, 30.2, Reason.NEVER_PAID),
        (3.0, 45.0, Reason.CYCLE_TIME),
    ],
)
def test_reasons_told_apart(length: float, period: float, reason: Reason) -> None:
    """Recorded: accept length 2.6 in cycles of 30 ms."""
    assert tell_apart(length, period, Reference(2.6, 30.0)) is reason
    assert reason.advice


def test_without_a_record_the_reason_is_unknown() -> None:
    assert tell_apart(2.0, 30.0, None) is Reason.UNKNOWN
