"""Totals by batch size: what a scheduler tells after its beats."""

from __future__ import annotations

import json

import pytest

from guarded_serve.timing.record import Cycle
from guarded_serve.timing.totals import BUCKETS_MS, BatchTotals, Totals

FIRST = Cycle(10.0, 0, 1, 2, 3, 4, 1.0, 6.0, 0.5, 7.6, 8.0, [3, 4], "cpu-clock", [1], 1)
SECOND = Cycle(10.1, 0, 2, 2, 3, 4, 1.0, 7.0, 0.5, 8.6, None, [2, 1], "cpu-clock")


def test_sums() -> None:
    totals = Totals()
    totals.add(FIRST)
    totals.add(SECOND)
    entry = totals.speculative[2]
    assert (entry.cycles, entry.rows, entry.dropped_rows, entry.accepted, entry.cut) == (2, 3, 1, 6, 1)
    assert entry.verify_ms == 13.0
    assert (entry.period_ms, entry.period_cycles, entry.period_accepted) == (8.0, 1, 3)
    assert entry.period_verify_ms == 6.0
    assert entry.accept_counts == [0, 1, 1, 1]
    assert (totals.last_t, totals.running) == (10.1, 2)


def test_histograms_count_each_time_once() -> None:
    totals = Totals()
    totals.add(FIRST)
    totals.add(SECOND)
    assert sum(totals.histograms["verify_ms"]) == 2
    assert sum(totals.histograms["period_ms"]) == 1
    assert totals.histograms["verify_ms"][BUCKETS_MS.index(6)] == 1  # an upper edge belongs to its bucket


def test_through_json_and_the_difference_of_two_beats() -> None:
    totals = Totals()
    totals.add(FIRST)
    earlier = Totals.from_mapping(json.loads(json.dumps(totals.to_mapping())))
    assert earlier == totals
    totals.add(SECOND)
    alone = Totals()
    alone.add(SECOND)
    since = totals.speculative[2].minus(earlier.speculative[2])
    assert since.accept_counts == [0, 1, 1, 0]
    assert since.accepted == alone.speculative[2].accepted
    assert since.verify_ms == pytest.approx(7.0)
    assert totals.speculative[2].minus(None) == totals.speculative[2]


def test_plain_steps_are_apart() -> None:
    totals = Totals()
    totals.add(FIRST._replace(plain=True))
    assert not totals.speculative
    assert totals.plain[2].cycles == 1


def test_plus_is_the_whole() -> None:
    one, other = BatchTotals(), BatchTotals()
    one.add(FIRST)
    other.add(SECOND)
    both = BatchTotals()
    both.add(FIRST)
    both.add(SECOND)
    assert one.plus(other) == both
