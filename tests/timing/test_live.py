"""Windows over the engine's beats."""

from __future__ import annotations

from typing import Any

import pytest

from guarded_serve.timing.live import Live
from guarded_serve.timing.record import Cycle
from guarded_serve.timing.totals import Totals

CYCLE = Cycle(1000.0, 0, 1, 1, 3, 4, 2.0, 20.0, 2.0, 25.0, 30.0, [2], "cuda-event")


def _beat(rank: int, t: float, totals: Totals) -> dict[str, Any]:
    return {"event": "beat", "t": t, "rank": rank, "totals": totals.to_mapping()}


def test_a_window_holds_what_happened_in_it() -> None:
    live, totals = Live({1: 82.0}), Totals()
    for second in range(100):
        totals.add(CYCLE if second < 70 else CYCLE._replace(accept=[3]))
        live.beat(_beat(0, 1000.0 + second, totals))
    (lately,) = live.window(20)
    assert lately.totals.cycles == 20
    assert lately.accept_length == 3.0
    assert lately.break_even == pytest.approx(2.46)
    assert lately.gain == pytest.approx(3 / 0.030 / 82 - 1)
    (whole,) = live.window(1000)
    assert whole.totals.cycles == 100
    assert live.newest()[0].speculative[1].cycles == 100


def test_batch_sizes_without_a_cycle_are_left_out() -> None:
    live, totals = Live({}), Totals()
    totals.add(CYCLE)
    live.beat(_beat(0, 0.0, totals))
    for second in range(1, 30):
        totals.add(CYCLE._replace(bs=2, accept=[2, 2]))
        live.beat(_beat(0, float(second), totals))
    assert [lately.bs for lately in live.window(10)] == [2]


def test_ranks_of_one_group_are_not_added_up_and_groups_are() -> None:
    live = Live({})
    for rank, first in ((0, True), (1, False), (2, True)):
        live.hello({"event": "hello", "rank": rank, "place": {"first": first}})
        totals = Totals()
        totals.add(CYCLE)
        live.beat(_beat(rank, 5.0, totals))
    (lately,) = live.window(10)
    assert lately.totals.cycles == 2
    assert set(live.beats()) == {0, 1, 2}


def test_a_restart_counts_from_zero() -> None:
    live, totals = Live({}), Totals()
    for second in range(20):
        totals.add(CYCLE)
        live.beat(_beat(0, float(second), totals))
    live.hello({"event": "hello", "rank": 0, "place": {"first": True}})
    assert live.window(100) == []
    fresh = Totals()
    fresh.add(CYCLE)
    live.beat(_beat(0, 21.0, fresh))
    assert live.window(100)[0].totals.cycles == 1


def test_beats_that_cannot_be_read_are_passed_over() -> None:
    live = Live({})
    live.beat({"event": "beat", "rank": 0, "t": 1.0, "totals": {"speculative": 7}})
    live.beat({"event": "beat"})
    assert live.newest() == {}
