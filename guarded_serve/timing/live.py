"""What the cycles did lately, from what the engine tells or from anything else that yields cumulative totals.

Pure: the clock is the events' own. Only one rank of each data-parallel group is listened to, since the ranks of a group
run the same cycles; the groups are added up, and a batch size is what one group runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from guarded_serve.timing import maths
from guarded_serve.timing.report import batch_tok_s, by_position, shares
from guarded_serve.timing.totals import BatchTotals, Totals


@dataclass(frozen=True)
class Lately:
    """One batch size over a window. None where nothing can be said."""

    bs: int
    plain: bool
    totals: BatchTotals
    baseline_tok_s: float | None

    @property
    def accept_length(self) -> float | None:
        """Mean tokens a row, bonus included."""
        return maths.accept_length(self.totals.accepted, self.totals.rows) if self.totals.rows else None

    @property
    def period_ms(self) -> float | None:
        """Mean time from a cycle's start to the next one's."""
        return self.totals.period_ms / self.totals.period_cycles if self.totals.period_cycles else None

    @property
    def tok_s(self) -> float | None:
        """The whole batch's tokens per second while cycle followed cycle."""
        return batch_tok_s(self.totals)

    @property
    def break_even(self) -> float | None:
        """The accept length from which on the drafter pays."""
        if self.plain or self.baseline_tok_s is None or self.period_ms is None:
            return None
        return maths.break_even(self.period_ms, self.baseline_tok_s, self.bs)

    @property
    def gain(self) -> float | None:
        """What the drafter brings, as a fraction of the baseline."""
        if self.plain or self.baseline_tok_s is None or self.tok_s is None:
            return None
        return maths.gain(self.tok_s, self.baseline_tok_s)

    @property
    def shares(self) -> dict[str, float | None]:
        """Draft, verify, extend and other as parts of the period."""
        return shares(self.totals)

    @property
    def by_position(self) -> list[float]:
        """Share of rows whose n-th draft was accepted."""
        return by_position(self.totals.accept_counts)


class Live:
    """Newest totals of every rank that is listened to, and enough of the past for windows of up to ``kept_s`` seconds.

    Totals of the past lie ``spacing_s`` apart; a window is longer than asked for by up to that much.
    """

    def __init__(self, baselines: Mapping[int, float], kept_s: float, spacing_s: float = 0.0) -> None:
        self.baselines = dict(baselines)
        self._kept_s = kept_s
        self._spacing_s = spacing_s
        self._told: dict[int, Totals] = {}  # by rank, as far as it has told
        self._first: dict[int, bool] = {}  # by rank: is it the first of its group
        self._past: dict[int, deque[tuple[float, Totals]]] = {}
        self._beats: dict[int, Mapping[str, Any]] = {}

    def hello(self, event: Mapping[str, Any]) -> None:
        """A scheduler said where it stands. Its counts begin at zero."""
        rank = event.get("rank")
        if isinstance(rank, int):
            place = event.get("place")
            self._first[rank] = bool(place.get("first", True)) if isinstance(place, Mapping) else True
            self._told.pop(rank, None)
            self._past.pop(rank, None)
            self._beats.pop(rank, None)

    def beat(self, event: Mapping[str, Any]) -> None:
        """A rank's beat."""
        rank = event.get("rank")
        if isinstance(rank, int):
            self._beats[rank] = event

    def totals(self, event: Mapping[str, Any]) -> None:
        """A part of a rank's newest totals; what cannot be read is passed over."""
        try:
            rank, t, left = int(event["rank"]), float(event["t"]), int(event["left"])
            if not self._first.get(rank, True):
                return
            totals = self._told[rank] = self._told.get(rank, Totals()).updated(event["totals"])
        except (KeyError, TypeError, ValueError):
            return
        if left == 0:
            self.take(rank, t, totals)

    def take(self, rank: int, t: float, totals: Totals) -> None:
        """Cumulative totals of a rank at a time; the caller does not change them afterwards."""
        past = self._past.setdefault(rank, deque())
        if len(past) > 1 and past[-1][0] - past[-2][0] < self._spacing_s:
            past.pop()
        past.append((t, totals))
        while len(past) > 2 and past[1][0] <= t - self._kept_s:
            past.popleft()

    def newest(self) -> dict[int, Totals]:
        """Cumulative totals by rank."""
        return {rank: past[-1][1] for rank, past in self._past.items()}

    def beats(self) -> dict[int, Mapping[str, Any]]:
        """The newest beat of every rank, as it came."""
        return dict(self._beats)

    def window(self, seconds: float) -> list[Lately]:
        """What happened in the last ``seconds`` of each rank, by batch size, where a cycle ran.

        Of a rank that is younger than the window, all that it ever did.
        """
        merged: dict[tuple[bool, int], BatchTotals] = {}
        for past in self._past.values():
            t, now = past[-1]
            earlier = next((totals for moment, totals in reversed(past) if moment <= t - seconds), None)
            for plain, table, before in (
                (False, now.speculative, earlier.speculative if earlier else {}),
                (True, now.plain, earlier.plain if earlier else {}),
            ):
                for bs, entry in table.items():
                    news = entry.minus(before.get(bs))
                    if news.cycles > 0:
                        known = merged.get((plain, bs))
                        merged[plain, bs] = news if known is None else known.plus(news)
        return [
            Lately(bs, plain, totals, maths.baseline_at(bs, self.baselines))
            for (plain, bs), totals in sorted(merged.items())
        ]
