"""Windows over what the engine tells."""

from __future__ import annotations

import json
from typing import Any

import pytest

from guarded_serve.timing.live import Live
from guarded_serve.timing.record import Cycle
from guarded_serve.timing.totals import Totals

CYCLE = Cycle(1000.0, 0, 1, 1, 3, 4, 2.0, 20.0, 2.0, 25.0, 30.0, [2], "cuda-event")


def _told(rank: int, t: float, totals: Totals) -> dict[str, Any]:
    return {"event": "totals", "t": t, "rank": rank, "left": 0, "totals": totals.to_mapping()}


def test_a_window_holds_what_happened_in_it() -> None:
    live, totals = Live({1: 82.0}, kept_s=1000), Totals()
    for second in range(100):
        totals.add(CYCLE if second < 70 else CYCLE._replace(accept=[3]))
        live.totals(_told(0, 1000.0 + second, totals))
    (lately,) = live.window(20)
    assert lately.totals.cycles == 20
    assert lately.accept_length == 3.0
    assert lately.break_even == pytest.approx(2.46)
    assert lately.gain == pytest.approx(3 / 0.030 / 82 - 1)
    (whole,) = live.window(1000)
    assert whole.totals.cycles == 100
    assert live.newest()[0].speculative[1].cycles == 100


def test_batch_sizes_without_a_cycle_are_left_out() -> None:
    live, totals = Live({}, kept_s=600), Totals()
    totals.add(CYCLE)
    live.totals(_told(0, 0.0, totals))
    for second in range(1, 30):
        totals.add(CYCLE._replace(bs=2, accept=[2, 2]))
        live.totals(_told(0, float(second), totals))
    assert [lately.bs for lately in live.window(10)] == [2]


def test_ranks_of_one_group_are_not_added_up_and_groups_are() -> None:
    live = Live({}, kept_s=600)
    for rank, first in ((0, True), (1, False), (2, True)):
        live.hello({"event": "hello", "rank": rank, "place": {"first": first}})
        totals = Totals()
        totals.add(CYCLE)
        live.totals(_told(rank, 5.0, totals))
        live.beat({"event": "beat", "rank": rank, "t": 5.0, "dropped": 0})
    (lately,) = live.window(10)
    assert lately.totals.cycles == 2
    assert set(live.beats()) == {0, 1, 2}


def test_a_restart_counts_from_zero() -> None:
    live, totals = Live({}, kept_s=600), Totals()
    for second in range(20):
        totals.add(CYCLE)
        live.totals(_told(0, float(second), totals))
    live.hello({"event": "hello", "rank": 0, "place": {"first": True}})
    assert live.window(100) == []
    fresh = Totals()
    fresh.add(CYCLE)
    live.totals(_told(0, 21.0, fresh))
    assert live.window(100)[0].totals.cycles == 1


def test_what_cannot_be_read_is_passed_over() -> None:
    live = Live({}, kept_s=600)
    live.totals({"event": "totals", "rank": 0, "t": 1.0, "left": 0, "totals": {"speculative": 7}})
    live.totals({"event": "totals"})
    live.beat({"event": "beat"})
    assert live.newest() == {}


def test_parts_make_up_the_whole_and_count_when_all_of_them_came() -> None:
    live, totals = Live({}, kept_s=60), Totals()
    totals.add(CYCLE)
    totals.add(CYCLE._replace(bs=2, accept=[2, 2]))
    first, second = totals.part([(False, 1)]), totals.part([(False, 2)])
    live.totals({"rank": 0, "t": 1.0, "left": 1, "totals": json.loads(json.dumps(first))})
    assert live.newest() == {}
    live.totals({"rank": 0, "t": 1.0, "left": 0, "totals": json.loads(json.dumps(second))})
    assert live.newest() == {0: totals}
    totals.add(CYCLE)
    live.totals({"rank": 0, "t": 2.0, "left": 0, "totals": json.loads(json.dumps(totals.part([(False, 1)])))})
    assert live.newest() == {0: totals}


def test_the_newest_is_there_at_once_and_the_past_is_spaced() -> None:
    live, totals = Live({}, kept_s=60, spacing_s=2), Totals()
    for second in range(100):
        totals.add(CYCLE)
        live.totals(_told(0, float(second), totals))
        assert live.newest()[0].speculative[1].cycles == second + 1
    (lately,) = live.window(10)
    assert 10 <= lately.totals.cycles <= 12
    (lately,) = live.window(60)
    assert 60 <= lately.totals.cycles <= 62
