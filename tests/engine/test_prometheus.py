"""The engine's metrics inside SGLang's /metrics carry the launcher's names and numbers."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.core import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from guarded_serve.engine.prometheus import EngineMetrics
from guarded_serve.timing.live import Live
from guarded_serve.timing.metrics import EngineCollector
from guarded_serve.timing.record import Cycle
from guarded_serve.timing.totals import Totals

CYCLES = [
    Cycle(1000.0, 0, 1, 2, 3, 4, 2.0, 20.0, 2.0, 25.0, 30.0, [3, 1], "cuda-event"),
    Cycle(1000.0, 0, 2, 2, 3, 4, None, 21.0, 2.0, 25.0, None, [4, 2], "cuda-event", [0]),
    Cycle(1000.0, 0, 3, 1, 0, 1, None, 9.0, None, 9.0, 9.5, [1], "cuda-event", plain=True),
]


def _samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.name.startswith("guarded_serve") and not sample.name.endswith("_created")
    }


def test_same_names_labels_and_values_in_both_places() -> None:
    metrics, totals = EngineMetrics(0), Totals()
    for cycle in CYCLES:
        metrics.add(cycle)
        totals.add(cycle)
    theirs = _samples(generate_latest(REGISTRY).decode())
    live = Live({}, kept_s=60)
    live.totals({"t": 1.0, "rank": 0, "left": 0, "totals": totals.to_mapping()})
    registry = CollectorRegistry()
    registry.register(EngineCollector(live, threading.Lock(), lambda: "serving", lambda: False))
    ours = _samples(generate_latest(registry).decode())
    assert theirs
    for sample, value in theirs.items():
        assert ours[sample] == pytest.approx(value), sample
