"""Percentiles in fixed memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guarded_serve.timing.histogram import LogHistogram

NUMBERS = st.lists(st.floats(min_value=1e-4, max_value=1e6), min_size=1, max_size=200)


def _of(values: list[float]) -> LogHistogram:
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(NUMBERS, st.sampled_from([50.0, 90.0, 99.0]))
def test_within_a_quarter_percent_of_the_exact_one(values: list[float], percent: float) -> None:
    exact = sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]
    assert _of(values).percentile(percent) == pytest.approx(exact, rel=0.0051)


@given(NUMBERS, NUMBERS)
def test_merged_parts_are_the_whole(first: list[float], second: list[float]) -> None:
    merged = _of(first)
    merged.merge(_of(second))
    whole = _of(first + second)
    assert merged.buckets == whole.buckets
    assert merged.count == whole.count


def test_empty_and_zero() -> None:
    assert LogHistogram().percentile(50) is None
    assert LogHistogram().mean is None
    assert _of([0.0, 0.0, 5.0]).percentile(50) == 0.0
