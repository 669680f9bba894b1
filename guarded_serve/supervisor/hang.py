"""Whether a serving engine hangs. Pure: it is told what happened and when, and asked for a verdict.

Busy is not sick: a long prefill, a full queue or a slow answer is no hang as long as forward passes follow one another.
Listening is not healthy: SGLang answered 200 for an hour with a dead scheduler (report 6624) and during a hang inside
verify (report 35822). Silent is not dead: when no rank is heard of at all, the way here may be broken (somebody cleans
/tmp), and the log and generations of our own tell. Paused is not stuck: then a generation waits for somebody to go on.
Times are monotonic seconds.
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
    paused: bool


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
    _proved_at: float = 0.0  # when an own generation last came back as it should
    _failing_since: float | None = None
    _failure: str = ""
    _successes: int = 0
    _stopped_since: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._log_moved_at = self._probe_ended_at = self._traffic_at = self._proved_at = self.began_at

    # What happened

    def beat(self, now: float, event: Mapping[str, Any]) -> None:
        """The plugin's beat: the rank, its count of forward passes, whether it is at work, whether it is paused."""
        rank, forwards = event.get("rank"), event.get("forwards")
        key = rank if isinstance(rank, int) else 0
        busy, paused = bool(event.get("busy")), bool(event.get("paused"))
        known = self._ranks.get(key)
        moved = known is None or known.forwards != forwards or not busy or not known.busy
        if known is not None and known.forwards != forwards and not self._may_be_the_probe(now):
            self._traffic_at = now
            self._successes = 0  # somebody else's request: probes begin anew from the short interval
            self._failing_since = None  # and what failed before is over, or will be found out again
        self._ranks[key] = _Rank(
            now,
            forwards if isinstance(forwards, int) else None,
            busy,
            now if known is None or moved else known.moved_at,
            paused,
        )
        if paused:
            self.paused(now)

    def paused(self, now: float) -> None:
        """Somebody paused the engine: a generation under way waits from now on, and what failed says nothing."""
        self._failing_since = None
        if self._probe_at is not None:
            self._probe_at = now

    def log_moved(self, now: float) -> None:
        """SGLang logged a prefill or decode batch. Counts where there are no beats to go by."""
        if not self._heard(now):
            self._log_moved_at = now

    def probe_began(self, now: float) -> None:
        """An own generation is under way."""
        self._probe_at = now

    def probe_ended(self, now: float, ok: bool, detail: str) -> None:
        """It came back, with its own tokens (``ok``) or otherwise."""
        started, self._probe_at, self._probe_ended_at = self._probe_at, None, now
        if ok:
            self._failing_since, self._failure = None, ""
            self._proved_at = now
            self._successes += 1
        else:
            self._successes = 0
            self._failure = detail
            if self._failing_since is None:
                self._failing_since = started if started is not None else now

    def probe_put_off(self, now: float) -> None:
        """It was not sent, because the server says that it is paused."""
        self._probe_at, self._probe_ended_at = None, now
        self._proved_at = now  # there is no asking more of it before somebody lets it go on
        self.paused(now)

    def stopped(self, now: float, processes: Collection[str]) -> None:
        """Which of its processes are stopped by a signal (state T) now."""
        self._stopped_since = {name: self._stopped_since.get(name, now) for name in processes}

    # What follows

    def verdict(self, now: float) -> str | None:
        """Why it hangs, or None."""
        for name, since in self._stopped_since.items():
            if now - since >= self.hang_s:
                return f"{name} is stopped (SIGSTOP) since {now - since:.0f} s"
        heard = self._heard(now)
        for number, rank in sorted(self._ranks.items()):
            alive_at = rank.beat_at if heard else max(rank.beat_at, self._proved_at, self._log_moved_at)
            if now - alive_at >= self.hang_s:
                return f"the scheduler of rank {number} is silent since {now - rank.beat_at:.0f} s"
            if heard and rank.busy and now - rank.moved_at >= self.hang_s:
                return (
                    f"rank {number} is at work, but its forward pass {rank.forwards} "
                    f"does not end since {now - rank.moved_at:.0f} s"
                )
        if self._probe_at is not None:
            quiet_since = max(self._probe_at, self._moved_at(now))
            if now - quiet_since >= self._probe_deadline_s(now):
                return (
                    f"an own generation does not come back since {now - self._probe_at:.0f} s, and nothing else moves"
                )
        if self._failing_since is not None and now - self._failing_since >= self.hang_s:
            return f"own generations fail since {now - self._failing_since:.0f} s: {self._failure}"
        return None

    def probe_due(self, now: float) -> bool:
        """Whether to try a generation of our own: one at a time, only without traffic, ever more rarely.

        At once when no rank is heard of any more: it is what is left to go by.
        """
        if self._probe_at is not None:
            return False
        quiet_s = now - max(self._traffic_at, self._log_moved_at, self._probe_ended_at)
        if self._ranks and not self._heard(now):
            first = self._probe_ended_at <= max(rank.beat_at for rank in self._ranks.values())
            return first or quiet_s >= min(self._interval_s(), self.hang_s / 4)
        if any(rank.busy or rank.paused for rank in self._ranks.values()):
            return False
        return quiet_s >= self._interval_s()

    def healthy(self, now: float) -> bool:
        """Whether the newest signs are good ones: what WATCHDOG=1 stands for."""
        if self._stopped_since or self._failing_since is not None or self.verdict(now) is not None:
            return False
        if self._heard(now):
            return all(now - rank.beat_at < self._fresh_s() for rank in self._ranks.values())
        if self._ranks:
            return max(self._proved_at, self._log_moved_at) > max(rank.beat_at for rank in self._ranks.values())
        return now - max(self._log_moved_at, self._probe_ended_at) < self.hang_s

    def _heard(self, now: float) -> bool:
        """Whether beats come at all. A rank that is silent beside others that are not is silent by itself."""
        return any(now - rank.beat_at < self._fresh_s() for rank in self._ranks.values())

    def _fresh_s(self) -> float:
        return min(FRESH_S, self.hang_s / 2)

    def _interval_s(self) -> float:
        longest = max(self.probe_interval_s, self.hang_s / 2)
        return float(min(self.probe_interval_s * 1.5 ** min(self._successes, 20), longest))

    def _probe_deadline_s(self, now: float) -> float:
        """So that a hang right after a good probe is still found within ``hang_s``; in full while somebody works, or
        may do so unheard."""
        if any(rank.busy for rank in self._ranks.values()) or (self._ranks and not self._heard(now)):
            return self.hang_s
        return max(self.hang_s - self._interval_s(), self.hang_s / 4)

    def _moved_at(self, now: float) -> float:
        """The last sign of work going on; idleness is none."""
        if not self._heard(now):
            return self._log_moved_at
        return max((rank.moved_at for rank in self._ranks.values() if rank.busy), default=self.began_at)

    def _may_be_the_probe(self, now: float) -> bool:
        """Beats lag behind by a second or two."""
        return self._probe_at is not None or now - self._probe_ended_at < 2.5
