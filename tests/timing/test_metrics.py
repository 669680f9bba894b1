"""Prometheus metrics, as a scraper gets them over HTTP."""

from __future__ import annotations

import socket
import threading
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from guarded_serve.facts.ports import free_port
from guarded_serve.timing.live import Live
from guarded_serve.timing.metrics import EngineCollector, serve
from guarded_serve.timing.record import Cycle
from guarded_serve.timing.totals import Totals

CYCLE = Cycle(1000.0, 0, 1, 2, 3, 4, 2.0, 20.0, 2.0, 25.0, 30.0, [3, 1], "cuda-event")

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def samples() -> Samples:
    """Ten cycles of two requests, one row of one of them dropped; baseline 164 tok/s at batch size 2."""
    live, totals = Live({2: 164.0}, kept_s=60), Totals()
    for number in range(10):
        totals.add(CYCLE if number else CYCLE._replace(dropped=[1]))
    totals.prefill_tokens = 5
    losses = {"dropped": 3, "lost": 1, "faults": 0}
    live.beat({"event": "beat", "t": 1.0, "rank": 0, **losses})
    live.totals({"event": "totals", "t": 1.0, "rank": 0, "left": 0, "totals": totals.to_mapping()})
    collector = EngineCollector(live, threading.Lock(), lambda: "serving", lambda: True)
    port = free_port()
    stop = serve("127.0.0.1", port, collector)
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    stop()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _one(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def test_counters(samples: Samples) -> None:
    where = {"rank": "0", "bs": "2", "kind": "speculative"}
    assert _one(samples, "guarded_serve_cycles_total", **where) == 10
    assert _one(samples, "guarded_serve_rows_total", **where) == 19
    assert _one(samples, "guarded_serve_rows_dropped_total", **where) == 1
    assert _one(samples, "guarded_serve_accepted_tokens_total", **where) == 39
    assert _one(samples, "guarded_serve_period_seconds_total", **where) == pytest.approx(0.3)
    assert _one(samples, "guarded_serve_accepted_drafts_total", rank="0", position="1") == 10
    assert _one(samples, "guarded_serve_accepted_drafts_total", rank="0", position="2") == 10
    assert _one(samples, "guarded_serve_prefill_tokens_total", rank="0") == 5
    assert _one(samples, "guarded_serve_records_dropped_total", rank="0") == 3
    assert _one(samples, "guarded_serve_cycles_lost_total", rank="0") == 1


def test_histograms(samples: Samples) -> None:
    where = {"rank": "0", "stage": "verify"}
    assert _one(samples, "guarded_serve_stage_seconds_count", **where) == 10
    assert _one(samples, "guarded_serve_stage_seconds_sum", **where) == pytest.approx(0.2)
    assert _one(samples, "guarded_serve_stage_seconds_bucket", le="0.02", **where) == 10
    assert _one(samples, "guarded_serve_stage_seconds_bucket", le="0.015", **where) == 0


def test_gauges(samples: Samples) -> None:
    assert _one(samples, "guarded_serve_accept_length", bs="2") == pytest.approx(39 / 19)
    assert _one(samples, "guarded_serve_break_even_accept_length", bs="2") == pytest.approx(2.46)
    assert _one(samples, "guarded_serve_gain_ratio", bs="2") == pytest.approx(39 / 0.3 / 164 - 1)
    assert _one(samples, "guarded_serve_drafter_alarm") == 1
    assert _one(samples, "guarded_serve_state", state="serving") == 1


def test_a_taken_port_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        collector = EngineCollector(Live({}, kept_s=60), threading.Lock(), str, bool)
        with pytest.raises(OSError, match="in use"):
            serve("127.0.0.1", taken.getsockname()[1], collector)
