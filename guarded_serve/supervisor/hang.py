"""Whether a serving engine hangs. Pure: it is told what happened and when, and asked for a verdict.

Busy is not sick: a long prefill, a full queue or a slow answer is no hang as long as forward passes follow one another.
Listening is not healthy: SGLang answered 200 for an hour with a dead scheduler (report 6624) and during a hang inside
verify (report 35822). Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

FRESH_S = 5.0  # beats come once a second; older than this, nothing is known of the engine's health


@dataclass
class _Rank:
    beat_at: float
    forwards: int | None
    busy: bool
    moved_at: float  # the last sign that its work goes on, or that it has none


@dataclass
class HangWatch:
    """Signs of progress of one server, from the time that it serves."""

    hang_s: float
    probe_interval_s: float
    began_at: float
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _log_moved_at: float = 0.0
    _traffic_at: float = 0.0
    _probe_at: float | None = None  # when the probe that is under way began
    _probe_ended_at: float = 0.0
    _failing_since: float | None = None
    _failure: str = ""
    _successes: int = 0
    _stopped_since: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._log_moved_at = self._probe_ended_at = self._traffic_at = self.began_at

    # What happened

    def beat(self, now: float, event: Mapping[str, Any]) -> None:
        """The plugin's beat: it names the rank, its count of forward passes and whether it is at work."""
        rank, forwards = event.get("rank"), event.get("forwards")
        key = rank if isinstance(rank, int) else 0
        busy = bool(event.get("busy"))
        known = self._ranks.get(key)
        moved = known is None or known.forwards != forwards or not busy or not known.busy
        if known is not None and known.forwards != forwards and not self._may_be_the_probe(now):
            self._traffic_at = now
            self._successes = 0  # somebody else's request: probes begin anew from the short interval
        self._ranks[key] = _Rank(
            now,
            forwards if isinstance(forwards, int) else None,
            busy,
            now if known is None or moved else known.moved_at,
        )

    def log_moved(self, now: float) -> None:
        """SGLang logged a prefill or decode batch. Counts where there are no beats to go by."""
        if not self._ranks:
            self._log_moved_at = now

    def probe_began(self, now: float) -> None:
        """An own generation is under way."""
        self._probe_at = now

    def probe_ended(self, now: float, ok: bool, detail: str) -> None:
        """It came back, with its own tokens (``ok``) or otherwise."""
        started, self._probe_at, self._probe_ended_at = self._probe_at, None, now
        if ok:
            self._failing_since, self._failure = None, ""
            self._successes += 1
        else:
            self._successes = 0
            self._failure = detail
            if self._failing_since is None:
                self._failing_since = started if started is not None else now

    def stopped(self, now: float, processes: Collection[str]) -> None:
        """Which of its processes are stopped by a signal (state T) now."""
        self._stopped_since = {name: self._stopped_since.get(name, now) for name in processes}

    # What follows

    def verdict(self, now: float) -> str | None:
        """Why it hangs, or None."""
        for name, since in self._stopped_since.items():
            if now - since >= self.hang_s:
                return f"{name} is stopped (SIGSTOP) since {now - since:.0f} s"
        for number, rank in sorted(self._ranks.items()):
            if now - rank.beat_at >= self.hang_s:
                return f"the scheduler of rank {number} is silent since {now - rank.beat_at:.0f} s"
            if rank.busy and now - rank.moved_at >= self.hang_s:
                return (
                    f"rank {number} is at work, but its forward pass {rank.forwards} "
                    f"does not end since {now - rank.moved_at:.0f} s"
                )
        if self._probe_at is not None:
            quiet_since = max(self._probe_at, self._moved_at())
            if now - quiet_since >= self._probe_deadline_s():
                return (
                    f"an own generation does not come back since {now - self._probe_at:.0f} s, and nothing else moves"
                )
        if self._failing_since is not None and now - self._failing_since >= self.hang_s:
            return f"own generations fail since {now - self._failing_since:.0f} s: {self._failure}"
        return None

    def probe_due(self, now: float) -> bool:
        """Whether to try a generation of our own: one at a time, only without traffic, ever more rarely."""
        if self._probe_at is not None or any(rank.busy for rank in self._ranks.values()):
            return False
        return now - max(self._traffic_at, self._log_moved_at, self._probe_ended_at) >= self._interval_s()

    def healthy(self, now: float) -> bool:
        """Whether the newest signs are good ones: what WATCHDOG=1 stands for."""
        if self._stopped_since or self._failing_since is not None or self.verdict(now) is not None:
            return False
        if self._ranks:
            return all(now - rank.beat_at < FRESH_S for rank in self._ranks.values())
        return now - max(self._log_moved_at, self._probe_ended_at) < self.hang_s

    def _interval_s(self) -> float:
        longest = max(self.probe_interval_s, self.hang_s / 2)
        return float(min(self.probe_interval_s * 1.5 ** min(self._successes, 20), longest))

    def _probe_deadline_s(self) -> float:
        """So that a hang right after a good probe is still found within ``hang_s``; in full while somebody works."""
        if any(rank.busy for rank in self._ranks.values()):
            return self.hang_s
        return max(self.hang_s - self._interval_s(), self.hang_s / 4)

    def _moved_at(self) -> float:
        """The last sign of work going on; idleness is none."""
        if not self._ranks:
            return self._log_moved_at
        return max((rank.moved_at for rank in self._ranks.values() if rank.busy), default=self.began_at)

    def _may_be_the_probe(self, now: float) -> bool:
        """Beats lag behind by a second or two."""
        return self._probe_at is not None or now - self._probe_ended_at < 2.5
