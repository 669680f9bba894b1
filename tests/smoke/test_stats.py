"""Intervals: known quantiles, and coverage of the truth in simulation."""

from __future__ import annotations

import random

import pytest

from guarded_serve.smoke import stats


@pytest.mark.parametrize(
    ("degrees", "value"), [(1, 63.657), (2, 9.925), (3, 5.841), (5, 4.032), (10, 3.169), (30, 2.750), (120, 2.617)]
)
def test_students_t(degrees: float, value: float) -> None:
    """From the printed tables, 99 % two-sided."""
    assert stats.t_quantile(degrees) == pytest.approx(value, abs=1e-3)


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Accept lengths of 20 prompts drawn from a population of known ratio."""
    dice = random.Random(1)
    missed = 0
    for _ in range(2000):
        verifications = [dice.randint(20, 60) for _ in range(20)]
        tokens = [count * max(1.0, dice.gauss(2.0, 0.3)) for count in verifications]
        interval = stats.ratio(tokens, [float(count) for count in verifications])
        missed += not interval.low <= 2.0 <= interval.high
    assert missed < 0.02 * 2000


def test_a_gain_under_noise_of_prompts_and_repeats() -> None:
    """True gain 1.3, with 3 % noise an answer and 3 % a repeat: the interval misses it in about 1 % of the cases."""
    dice = random.Random(2)
    missed = 0
    for _ in range(1000):
        weights = [dice.uniform(0.5, 1.5) for _ in range(16)]

        def repeats(scale: float, weights: list[float] = weights) -> list[list[float]]:
            rows = []
            for _ in range(3):
                shift = 1 + dice.gauss(0, 0.03)
                rows.append([weight * scale * shift * (1 + dice.gauss(0, 0.03)) for weight in weights])
            return rows

        interval = stats.gain(repeats(1.3), repeats(1.0))
        missed += not interval.low <= 1.3 <= interval.high
    assert missed < 0.02 * 1000


def test_too_little_to_say_anything() -> None:
    one = stats.ratio([10.0], [5.0])
    assert (one.estimate, one.low) == (2.0, 0.0)
    assert one.high == float("inf")
    with pytest.raises(ValueError, match="nothing"):
        stats.ratio([], [])


def test_shares_at_the_ends_stay_honest() -> None:
    """No accepted draft in 120 tries is not certainty."""
    nothing = stats.share([0, 0, 0], [40, 40, 40])
    assert nothing.estimate == 0
    assert 0.02 < nothing.high < 0.1
    everything = stats.share([40, 40], [40, 40])
    assert everything.high == 1
    assert everything.low < 0.97
