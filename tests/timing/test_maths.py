"""The arithmetic, against figures that others published."""

from __future__ import annotations

import pytest

from guarded_serve.timing import maths
from guarded_serve.timing.record import Cycle
from guarded_serve.timing.report import by_position
from guarded_serve.timing.totals import BatchTotals


def test_identities_of_one_request() -> None:
    """SGLang report 33518: 106 tokens in 43 verifications of 5 drafts, and its histogram of right drafts."""
    totals = _totals([11, 14, 11, 4, 0, 3])
    assert (totals.accepted, totals.rows) == (106, 43)
    assert maths.accept_length(totals.accepted, totals.rows) == pytest.approx(2.4651, abs=5e-5)
    right, proposed = totals.accepted - totals.rows, totals.draft_tokens - totals.rows
    assert (right, proposed) == (63, 215)
    assert right / proposed == pytest.approx(0.2930, abs=5e-5)
    assert sum(by_position(totals.accept_counts)) == pytest.approx(63 / 43)


def test_the_bonus_counts() -> None:
    """A drafter that is always wrong has accept length 1, not 0."""
    totals = _totals([7])
    assert maths.accept_length(totals.accepted, totals.rows) == 1.0


def _totals(histogram: list[int]) -> BatchTotals:
    """Cycles of one request: ``histogram[n]`` of them with n right drafts out of 5."""
    totals = BatchTotals()
    for right, times in enumerate(histogram):
        for _ in range(times):
            totals.add(Cycle(0.0, 0, 1, 1, 5, 6, 1.0, 6.0, 0.5, 7.5, 8.0, [right + 1], "cpu-clock"))
    return totals


def test_founding_case() -> None:
    """30 ms and 82 tok/s: break-even 2.46; at 2.0 the arithmetic says -19 %, the client said -27 %."""
    assert maths.break_even(30.0, 82.0, 1) == pytest.approx(2.46)
    by_arithmetic = maths.tok_s(2.0, 30.0, 1)
    assert by_arithmetic == pytest.approx(66.67, abs=0.01)
    assert maths.gain(by_arithmetic, 82.0) == pytest.approx(-0.187, abs=5e-4)
    assert maths.gain(60.0, 82.0) == pytest.approx(-0.268, abs=5e-4)
    # The difference is time that belongs to no cycle: 60 tok/s at 2.0 is a period of 33.3 ms.
    period = 2.0 / 60.0 * 1e3
    assert period == pytest.approx(33.33, abs=0.01)
    assert maths.break_even(period, 82.0, 1) == pytest.approx(2.733, abs=1e-3)


@pytest.mark.parametrize(
    ("steps", "tok_s", "length", "break_even"),
    [("3/1/4", 159.78, 1.86, 2.59), ("8/8/60", 177.5, 3.2, 4.01)],
)
def test_specforge_339(steps: str, tok_s: float, length: float, break_even: float) -> None:
    """Qwen3-30B-A3B on two H100, batch size 1, baseline 222.47 tok/s: both settings lose, the longer one too."""
    cycle = length / tok_s * 1e3
    assert maths.break_even(cycle, 222.47, 1) == pytest.approx(break_even, abs=0.005), steps
    assert maths.gain(tok_s, 222.47) < 0
    assert length < break_even


def test_break_even_is_where_the_gain_is_zero() -> None:
    """At any batch size the accept length equal to break-even brings exactly the baseline."""
    for bs, baseline, cycle in ((1, 82.0, 30.0), (8, 900.0, 21.5), (32, 2500.0, 40.0)):
        even = maths.break_even(cycle, baseline, bs)
        assert maths.gain(maths.tok_s(even, cycle, bs), baseline) == pytest.approx(0, abs=1e-12)
        assert maths.gain(maths.tok_s(even * 0.99, cycle, bs), baseline) < 0 < maths.tok_s(even, cycle, bs)


def test_a_plain_step_of_a_batch() -> None:
    """The baseline is the whole batch's rate: 8 requests at 400 tok/s together take 20 ms a step."""
    assert maths.plain_step_ms(400.0, 8) == pytest.approx(20.0)


def test_a_baseline_between_two_measured_batch_sizes() -> None:
    """Step times 10 ms at 1 and 20 ms at 11: 15 ms at 6, and nothing outside."""
    table = {1: 100.0, 11: 550.0}
    assert maths.baseline_at(6, table) == pytest.approx(6 / 0.015)
    assert maths.baseline_at(11, table) == 550.0
    assert maths.baseline_at(12, table) is None
    assert maths.baseline_at(5, {}) is None
