"""Cycles of any number, summed up by batch size in fixed memory: what a report is made from.

Summaries of parts of a log merge into the summary of the whole, so that the parts can be read by several processes.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Any

from guarded_serve.timing.histogram import PER_E, ZERO, LogHistogram
from guarded_serve.timing.totals import STAGES, BatchTotals

SLOWEST = 20
BIN_S = 10.0
"""Width of a point on the time axis, seconds: 8,640 points a day and batch size."""


@dataclass
class TimeBin:
    """Sums of one batch size over `BIN_S` seconds."""

    cycles: int = 0
    rows: int = 0
    accepted: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    extend_ms: float = 0.0
    gpu_ms: float = 0.0
    period_ms: float = 0.0
    period_cycles: int = 0

    def merge(self, other: TimeBin) -> None:
        """Add another bin of the same time."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class BatchSummary:
    """Everything about the cycles of one batch size."""

    totals: BatchTotals = field(default_factory=BatchTotals)
    stages: dict[str, LogHistogram] = field(default_factory=lambda: {stage: LogHistogram() for stage in STAGES})
    steps: set[int] = field(default_factory=set)
    sources: set[str] = field(default_factory=set)
    bins: dict[int, TimeBin] = field(default_factory=dict)

    def merge(self, other: BatchSummary) -> None:
        """Add another part of the log."""
        self.totals = self.totals.plus(other.totals)
        self.steps |= other.steps
        self.sources |= other.sources
        for stage, histogram in other.stages.items():
            self.stages[stage].merge(histogram)
        for moment, part in other.bins.items():
            self.bins.setdefault(moment, TimeBin()).merge(part)


@dataclass
class Summary:
    """A whole log. Keys are (batch size, plain)."""

    batches: dict[tuple[int, bool], BatchSummary] = field(default_factory=dict)
    records: int = 0
    bad_lines: int = 0  # whole lines that are no cycle record
    cut_lines: int = 0  # last lines without their end: a crash
    first_t: float = math.inf
    last_t: float = -math.inf
    ranks: set[int] = field(default_factory=set)
    slowest: list[tuple[float, float, int, int, int]] = field(default_factory=list)  # ms, t, rank, forward, bs: a heap

    def merge(self, other: Summary) -> None:
        """Add another part of the log."""
        for key, batch in other.batches.items():
            self.batches.setdefault(key, BatchSummary()).merge(batch)
        self.records += other.records
        self.bad_lines += other.bad_lines
        self.cut_lines += other.cut_lines
        self.first_t = min(self.first_t, other.first_t)
        self.last_t = max(self.last_t, other.last_t)
        self.ranks |= other.ranks
        self.slowest = heapq.nlargest(SLOWEST, self.slowest + other.slowest)
        heapq.heapify(self.slowest)

    def add(self, record: dict[str, Any]) -> None:
        """Count one record in, as `record.read_line` gives it."""
        t, rank, bs, accept = record["t"], record["rank"], record["bs"], record["accept"]
        steps, width, source = record["steps"], record["draft_tokens"], record["source"]
        draft, verify, extend = record["draft_ms"], record["verify_ms"], record["extend_ms"]
        gpu, period = record["gpu_ms"], record["period_ms"]
        dropped = record.get("dropped")
        if dropped:
            gone = set(dropped)
            accept = [count for row, count in enumerate(accept) if row not in gone]
        accepted = sum(accept)
        moment = int(t // BIN_S)
        key = (bs, record.get("plain", False))
        batch = self.batches.get(key)
        if batch is None:
            batch = self.batches[key] = BatchSummary()
        bin_ = batch.bins.get(moment)
        if bin_ is None:
            bin_ = batch.bins[moment] = TimeBin()

        rows = len(accept)
        totals = batch.totals
        totals.cycles += 1
        totals.rows += rows
        totals.dropped_rows += bs - rows
        totals.accepted += accepted
        totals.cut += record.get("cut", 0)
        totals.draft_tokens += rows * width
        counts = totals.accept_counts
        for count in accept:
            try:
                counts[count] += 1
            except IndexError:
                counts.extend([0] * (count + 1 - len(counts)))
                counts[count] += 1
        batch.steps.add(steps)
        batch.sources.add(source)
        bin_.cycles += 1
        bin_.rows += rows
        bin_.accepted += accepted
        stages = batch.stages
        if draft is not None:
            totals.draft_ms += draft
            bin_.draft_ms += draft
            _count(stages["draft_ms"], draft)
        else:
            draft = 0.0
        if verify is not None:
            totals.verify_ms += verify
            bin_.verify_ms += verify
            _count(stages["verify_ms"], verify)
        else:
            verify = 0.0
        if extend is not None:
            totals.extend_ms += extend
            bin_.extend_ms += extend
            _count(stages["extend_ms"], extend)
        else:
            extend = 0.0
        if gpu is not None:
            totals.gpu_ms += gpu
            bin_.gpu_ms += gpu
            _count(stages["gpu_ms"], gpu)
        else:
            gpu = 0.0
        if period is not None:
            totals.period_ms += period
            totals.period_cycles += 1
            totals.period_rows += rows
            totals.period_accepted += accepted
            totals.period_draft_ms += draft
            totals.period_verify_ms += verify
            totals.period_extend_ms += extend
            totals.period_gpu_ms += gpu
            bin_.period_ms += period
            bin_.period_cycles += 1
            _count(stages["period_ms"], period)

        self.records += 1
        self.first_t = min(self.first_t, t)
        self.last_t = max(self.last_t, t)
        self.ranks.add(rank)
        slowest = self.slowest
        if len(slowest) < SLOWEST:
            heapq.heappush(slowest, (gpu, t, rank, record["forward"], bs))
        elif gpu > slowest[0][0]:
            heapq.heapreplace(slowest, (gpu, t, rank, record["forward"], bs))


def _count(histogram: LogHistogram, value: float) -> None:
    """`LogHistogram.add`, without the bound method."""
    histogram.count += 1
    histogram.total += value
    histogram.highest = max(histogram.highest, value)
    bucket = math.floor(math.log(value) * PER_E) if value > 0 else ZERO
    buckets = histogram.buckets
    buckets[bucket] = buckets.get(bucket, 0) + 1
