"""Cumulative totals of cycles by batch size: what the engine tells after its beats, and what live views are made of.

Additive and monotone, so that the difference of two tellings is the account of the time between them. They are told in
parts: one holds some batch sizes only, those that changed. Imported by the engine: standard library only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

from guarded_serve.timing.record import Cycle

BUCKETS_MS = (0.25, 0.5, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000)
"""Upper edges of the histograms of stage times, in milliseconds; the last bucket, above them all, is unbounded."""

STAGES = ("draft_ms", "verify_ms", "extend_ms", "gpu_ms", "period_ms")


@dataclass
class BatchTotals:
    """Sums over the cycles of one batch size. Rows and tokens are those that SGLang counted (dropped rows are not)."""

    cycles: int = 0
    rows: int = 0
    dropped_rows: int = 0
    accepted: int = 0  # tokens, bonus included
    cut: int = 0  # accepted tokens that a stop or a grammar cut off
    draft_tokens: int = 0  # tokens verified: rows times draft tokens
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    extend_ms: float = 0.0
    gpu_ms: float = 0.0
    period_ms: float = 0.0
    period_cycles: int = 0  # cycles that have a period
    period_rows: int = 0
    period_accepted: int = 0  # tokens of the cycles that have a period: the numerator of tokens per second
    period_draft_ms: float = 0.0  # stages of the cycles that have a period: the numerators of the shares
    period_verify_ms: float = 0.0
    period_extend_ms: float = 0.0
    period_gpu_ms: float = 0.0
    accept_counts: list[int] = field(default_factory=list)  # rows by accepted tokens: index 1 is the bonus alone

    def add(self, cycle: Cycle) -> None:
        """Count one cycle in."""
        kept = cycle.kept()
        rows = len(kept)
        accepted = sum(kept)
        self.cycles += 1
        self.rows += rows
        self.dropped_rows += cycle.bs - rows
        self.accepted += accepted
        self.cut += cycle.cut
        self.draft_tokens += rows * cycle.draft_tokens
        draft, verify = cycle.draft_ms or 0.0, cycle.verify_ms or 0.0
        extend, gpu = cycle.extend_ms or 0.0, cycle.gpu_ms or 0.0
        self.draft_ms += draft
        self.verify_ms += verify
        self.extend_ms += extend
        self.gpu_ms += gpu
        if cycle.period_ms is not None:
            self.period_ms += cycle.period_ms
            self.period_cycles += 1
            self.period_rows += rows
            self.period_accepted += accepted
            self.period_draft_ms += draft
            self.period_verify_ms += verify
            self.period_extend_ms += extend
            self.period_gpu_ms += gpu
        counts = self.accept_counts
        for count in kept:
            while count >= len(counts):
                counts.append(0)
            counts[count] += 1

    def plus(self, other: BatchTotals) -> BatchTotals:
        """Both together."""
        mine, theirs = asdict(self), asdict(other)
        first, second = mine.pop("accept_counts"), theirs.pop("accept_counts")
        counts = [sum(pair) for pair in zip_longest(first, second, fillvalue=0)]
        return BatchTotals(accept_counts=counts, **{name: value + theirs[name] for name, value in mine.items()})

    def minus(self, earlier: BatchTotals | None) -> BatchTotals:
        """What happened since ``earlier``."""
        if earlier is None:
            return self
        mine, theirs = asdict(self), asdict(earlier)
        past = theirs.pop("accept_counts")
        counts = [count - (past[i] if i < len(past) else 0) for i, count in enumerate(mine.pop("accept_counts"))]
        return BatchTotals(accept_counts=counts, **{name: value - theirs[name] for name, value in mine.items()})


@dataclass
class Totals:
    """All totals of one rank."""

    speculative: dict[int, BatchTotals] = field(default_factory=dict)
    plain: dict[int, BatchTotals] = field(default_factory=dict)
    histograms: dict[str, list[int]] = field(
        default_factory=lambda: {stage: [0] * (len(BUCKETS_MS) + 1) for stage in STAGES}
    )
    last_t: float | None = None  # start of the last cycle, Unix seconds
    running: int = 0  # rows of the last cycle
    prefill_tokens: int = 0  # tokens that prefills emitted: one a request, and one after each retraction

    def add(self, cycle: Cycle) -> None:
        """Count one cycle in."""
        table = self.plain if cycle.plain else self.speculative
        entry = table.get(cycle.bs)
        if entry is None:
            entry = table[cycle.bs] = BatchTotals()
        entry.add(cycle)
        self.last_t = cycle.t
        self.running = cycle.bs
        for stage, value in zip(STAGES, cycle[6:11], strict=True):
            if value is not None:
                self.histograms[stage][bisect_left(BUCKETS_MS, value)] += 1

    def sizes(self) -> set[tuple[bool, int]]:
        """Every (plain, batch size) that has a cycle."""
        return {(False, bs) for bs in self.speculative} | {(True, bs) for bs in self.plain}

    def part(self, sizes: Collection[tuple[bool, int]]) -> dict[str, Any]:
        """Plain JSON values, with some batch sizes only; they become strings. Lists are shared: for sending at once."""
        return {
            **vars(self),
            "speculative": {str(bs): vars(self.speculative[bs]) for plain, bs in sizes if not plain},
            "plain": {str(bs): vars(self.plain[bs]) for plain, bs in sizes if plain},
        }

    def to_mapping(self) -> dict[str, Any]:
        """All of it as plain JSON values, shared with nothing."""
        return deepcopy(self.part(self.sizes()))

    def updated(self, part: Mapping[str, Any]) -> Totals:
        """With a newer part put in; what the part does not hold is shared with these totals.

        Raises KeyError, TypeError or ValueError when it is not what `part` gave.
        """
        tables = {
            name: {**getattr(self, name), **{int(bs): BatchTotals(**entry) for bs, entry in dict(part[name]).items()}}
            for name in ("speculative", "plain")
        }
        return Totals(**{**part, **tables})

    @classmethod
    def from_mapping(cls, value: Mapping[str, Any]) -> Totals:
        """Raises KeyError, TypeError or ValueError when it is not what `to_mapping` gave."""
        return cls().updated(value)
