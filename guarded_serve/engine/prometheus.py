"""The same numbers in SGLang's own ``/metrics``, when SGLang was started with it.

SGLang collects what its processes keep with prometheus_client in multi-process mode, so it is enough to keep metrics in
the scheduler's process; the telemetry thread does, from finished records. Names and labels are those of
`guarded_serve.timing.metrics`, so that one dashboard serves both.
"""

from __future__ import annotations

from typing import Any

from guarded_serve.timing.record import Cycle
from guarded_serve.timing.totals import BUCKETS_MS, STAGES

PREFIX = "guarded_serve_"


class EngineMetrics:
    """Counters and histograms of one rank. Built after SGLang has chosen the multi-process folder."""

    def __init__(self, rank: int) -> None:
        from prometheus_client import Counter, Histogram  # noqa: PLC0415 - must not load before SGLang's own set-up

        labels = ("rank", "bs", "kind")
        edges = [edge / 1e3 for edge in BUCKETS_MS]
        stages = Histogram(PREFIX + "stage_seconds", "Time of a stage of a cycle.", ("rank", "stage"), buckets=edges)
        self._rank = str(rank)
        self._stages = [stages.labels(self._rank, stage.removesuffix("_ms")) for stage in STAGES]
        self._cycles = Counter(PREFIX + "cycles", "Cycles.", labels)
        self._rows = Counter(PREFIX + "rows", "Requests verified, a cycle each.", labels)
        self._gone = Counter(PREFIX + "rows_dropped", "Rows whose request had ended.", labels)
        self._tokens = Counter(PREFIX + "accepted_tokens", "Tokens of the rows, bonus included.", labels)
        self._period = Counter(PREFIX + "period_seconds", "Time from a cycle's start to the next one's.", labels)
        self._drafts = Counter(PREFIX + "accepted_drafts", "Rows by accepted position.", ("rank", "position"))
        self._children: dict[tuple[int, bool], tuple[Any, ...]] = {}
        self._positions: dict[int, Any] = {}

    def add(self, cycle: Cycle) -> None:
        """Count one record."""
        for child, value in zip(self._stages, cycle[6:11], strict=True):
            if value is not None:
                child.observe(value / 1e3)
        key = (cycle.bs, cycle.plain)
        counters = self._children.get(key)
        if counters is None:
            where = (self._rank, str(cycle.bs), "plain" if cycle.plain else "speculative")
            families = (self._cycles, self._rows, self._gone, self._tokens, self._period)
            counters = self._children[key] = tuple(family.labels(*where) for family in families)
        kept = cycle.kept()
        cycles, rows, gone, tokens, period = counters
        cycles.inc()
        rows.inc(len(kept))
        if len(kept) != cycle.bs:
            gone.inc(cycle.bs - len(kept))
        tokens.inc(sum(kept))
        if cycle.period_ms is not None:
            period.inc(cycle.period_ms / 1e3)
        if cycle.plain:
            return
        for position in range(1, max(kept, default=1)):
            drafts = self._positions.get(position)
            if drafts is None:
                drafts = self._positions[position] = self._drafts.labels(self._rank, str(position))
            drafts.inc(sum(count > position for count in kept))
