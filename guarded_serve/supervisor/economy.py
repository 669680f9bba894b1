"""What the drafter brings while it serves: the line every ten seconds, the break-even alarm, the metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from guarded_serve.profile.model import Profile
from guarded_serve.timing.alarm import Alarm, Verdict
from guarded_serve.timing.live import Lately, Live
from guarded_serve.timing.reference import BadRecord, References, read_references

WINDOW_S = 10.0
_KEPT_S = 90.0  # the metrics' windows are 60 s long
_SPACING_S = 1.9  # of the totals that are kept: every other second's


class Economy:
    """Fed with the engine's events; asked once a window."""

    def __init__(self, profile: Profile, state: Callable[[], str]) -> None:
        self._lock = threading.Lock()  # the metrics are read in their own server's threads
        known = _recorded(profile)
        self._live = Live({**known.baseline_tok_s, **profile.break_even.baseline_tok_s}, _KEPT_S, _SPACING_S)
        self._alarm = Alarm(profile.break_even.patience_s, known.references)
        self._state = state
        self._stop_metrics: Callable[[], None] | None = None

    def serve_metrics(self, host: str, port: int) -> None:
        """Serve ``/metrics``. Raises OSError when the port is taken, or the address is none of this machine's."""
        from guarded_serve.timing import metrics  # noqa: PLC0415 - 14 MB that only this needs

        collector = metrics.EngineCollector(self._live, self._lock, self._state, lambda: self._alarm.raised)
        self._stop_metrics = metrics.serve(host, port, collector)

    def close(self) -> None:
        """End the metrics server."""
        if self._stop_metrics is not None:
            self._stop_metrics()
            self._stop_metrics = None

    def reload(self, profile: Profile) -> None:
        """A profile that was read again."""
        known = _recorded(profile)
        with self._lock:
            self._live.baselines = {**known.baseline_tok_s, **profile.break_even.baseline_tok_s}
        raised = self._alarm.raised
        self._alarm = Alarm(profile.break_even.patience_s, known.references)
        self._alarm.raised = raised  # it clears when the drafter pays again, not when a file is read

    def hello(self, event: Mapping[str, Any]) -> None:
        """A scheduler's greeting: its counts begin at zero."""
        with self._lock:
            self._live.hello(event)

    def beat(self, event: Mapping[str, Any]) -> None:
        """A beat."""
        with self._lock:
            self._live.beat(event)

    def totals(self, event: Mapping[str, Any]) -> None:
        """A part of a scheduler's totals."""
        with self._lock:
            self._live.totals(event)

    def take(self) -> tuple[str, Verdict | None]:
        """The line for the last window, empty without traffic, and the alarm where it changed."""
        with self._lock:
            windows = self._live.window(WINDOW_S)
        return describe(windows), self._alarm.feed(windows, WINDOW_S)


def _recorded(profile: Profile) -> References:
    """What the last smoke test recorded; nothing where there is no record or it cannot be read."""
    if profile.smoke.record is None:
        return References()
    try:
        return read_references(Path(profile.smoke.record))
    except (BadRecord, OSError):
        return References()


def describe(windows: Sequence[Lately]) -> str:
    """The busiest batch size in one line. Times in milliseconds; tokens per second over the whole batch."""
    if not windows:
        return ""
    window = max(windows, key=lambda lately: lately.totals.cycles)
    totals = window.totals
    parts = [f"bs {window.bs}", f"{totals.cycles} {'plain steps' if window.plain else 'cycles'}"]
    if window.period_ms is not None:
        parts.append(f"cycle {window.period_ms:.2f} ms")
    if not window.plain:
        timed = totals.draft_ms + totals.verify_ms + totals.extend_ms
        if timed:
            stages = (totals.draft_ms, totals.verify_ms, totals.extend_ms)
            parts.append("draft/verify/extend " + "/".join(f"{100 * part / timed:.0f}" for part in stages) + " %")
        if window.accept_length is not None:
            parts.append(f"accept length {window.accept_length:.2f}")
    if window.tok_s is not None:
        parts.append(f"{window.tok_s:.1f} tok/s")
    if window.break_even is not None:
        parts.append(f"break-even {window.break_even:.2f}")
    if window.gain is not None:
        parts.append(f"gain {window.gain:+.0%}")
    others = sum(lately.totals.cycles for lately in windows) - totals.cycles
    return ", ".join(parts) + (f"; {others} cycles at other batch sizes" if others else "")
