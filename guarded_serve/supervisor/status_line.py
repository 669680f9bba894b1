"""One line every ten seconds under traffic: cycle time, its shares, accept length and, with a baseline, break-even.

Made of the first rank's beats: all ranks of a tensor-parallel group run the same cycles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guarded_serve.timing.totals import BatchTotals, Totals


class StatusLine:
    """Keeps the newest totals of the lowest rank and says what happened since the last line."""

    def __init__(self, baseline_tok_s: Mapping[int, float]) -> None:
        self.baseline = baseline_tok_s
        self._rank: int | None = None
        self._newest: Totals | None = None
        self._told: dict[tuple[bool, int], BatchTotals] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """A beat of the engine; one that cannot be read is passed over."""
        rank = event.get("rank")
        if self._rank is not None and isinstance(rank, int) and rank > self._rank:
            return
        try:
            self._newest = Totals.from_mapping(event["totals"])
        except (KeyError, TypeError, ValueError):
            return
        self._rank = rank if isinstance(rank, int) else self._rank

    def restarted(self) -> None:
        """A fresh server counts from zero."""
        self._rank, self._newest, self._told = None, None, {}

    def take(self) -> str:
        """The line for the time since the last call; empty when no cycle ran."""
        totals = self._newest
        if totals is None:
            return ""
        busiest: tuple[int, bool, int, BatchTotals] | None = None
        others = 0
        for plain, table in ((False, totals.speculative), (True, totals.plain)):
            for batch_size, entry in table.items():
                news = entry.minus(self._told.get((plain, batch_size)))
                self._told[plain, batch_size] = entry
                if news.cycles <= 0:
                    continue
                others += news.cycles
                if busiest is None or news.cycles > busiest[0]:
                    busiest = (news.cycles, plain, batch_size, news)
        if busiest is None:
            return ""
        cycles, plain, batch_size, news = busiest
        text = describe(news, batch_size, plain, self.baseline.get(batch_size))
        return text + (f"; {others - cycles} cycles at other batch sizes" if others > cycles else "")


def describe(news: BatchTotals, batch_size: int, plain: bool, baseline_tok_s: float | None) -> str:
    """The account of ``news`` in one line. Times in milliseconds; tokens per second over the whole batch."""
    stages = {"draft": news.draft_ms, "verify": news.verify_ms, "extend": news.extend_ms}
    timed = sum(stages.values())
    period = news.period_ms / news.period_cycles if news.period_cycles else None
    tok_s = 1000 * news.period_accepted / news.period_ms if news.period_ms else None
    parts = [f"bs {batch_size}", f"{news.cycles} {'plain steps' if plain else 'cycles'}"]
    parts.append(f"cycle {period if period is not None else timed / news.cycles:.2f} ms")
    if not plain and timed:
        parts.append("draft/verify/extend " + "/".join(f"{100 * part / timed:.0f}" for part in stages.values()) + " %")
    if not plain and news.rows:
        parts.append(f"accept length {news.accepted / news.rows:.2f}")
    if tok_s is not None:
        parts.append(f"{tok_s:.1f} tok/s")
    if baseline_tok_s and period is not None and not plain:
        parts.append(f"break-even {period * baseline_tok_s / 1000 / batch_size:.2f}")
        if tok_s is not None:
            parts.append(f"gain {100 * (tok_s / baseline_tok_s - 1):+.0f} %")
    return ", ".join(parts)
