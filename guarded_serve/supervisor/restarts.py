"""In-process restarts: how many within a window, and how long to wait before each. Pure; times in monotonic seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

_FIRST_S = 1.0
_LONGEST_S = 60.0


@dataclass
class Restarts:
    """At most ``allowed`` restarts within ``window_s`` seconds."""

    allowed: int
    window_s: float
    _at: list[float] = field(default_factory=list)

    def next_delay_s(self, now: float) -> float | None:
        """How long to wait before the next restart, doubling within the window; None when none is left. Counts it."""
        self._at = [at for at in self._at if now - at < self.window_s]
        if len(self._at) >= self.allowed:
            return None
        self._at.append(now)
        return float(min(_FIRST_S * 2 ** (len(self._at) - 1), _LONGEST_S))

    def describe(self) -> str:
        """Such as ``restart 2 of 3 within 3600 s``."""
        return f"restart {len(self._at)} of {self.allowed} within {self.window_s:g} s"
