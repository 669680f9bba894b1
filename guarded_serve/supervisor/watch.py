"""The watch over a serving engine: once a second, does it hang? systemd hears of it while it is well."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from guarded_serve.profile.model import Supervise
from guarded_serve.supervisor import ready
from guarded_serve.supervisor.hang import HangWatch
from guarded_serve.supervisor.launch import Launch
from guarded_serve.supervisor.loop import Loop, Timer
from guarded_serve.supervisor.notify import Notify

_TICK_S = 1.0
_BATCH_LINES = (b"Decode batch", b"Prefill batch")
_ASK_S = 5.0
_ASLEEP_S = 5.0  # a tick that comes so late means that this process itself did not run


class Watch:
    """Runs from READY until `stop`."""

    def __init__(
        self, loop: Loop, launch: Launch, limits: Supervise, notify: Notify, on_hung: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._launch = launch
        self._notify = notify
        self._on_hung = on_hung
        now = time.monotonic()
        self._hang = HangWatch(limits.hang_s, limits.probe_interval_s, now)
        self._last_tick = now
        self._last_ping = 0.0
        self._last_ask: float | None = None  # whether the server is paused; None while no generation is under way
        self._timer: Timer | None = loop.call_later(_TICK_S, self._tick)

    def limits(self, limits: Supervise) -> None:
        """New limits from a reload."""
        self._hang.hang_s = limits.hang_s
        self._hang.probe_interval_s = limits.probe_interval_s

    def stop(self) -> None:
        """No verdict after this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def beat(self, event: Mapping[str, Any]) -> None:
        """A beat of the plugin."""
        self._hang.beat(time.monotonic(), event)

    def lines(self, block: bytes) -> None:
        """The server's output."""
        if any(marker in block for marker in _BATCH_LINES):
            self._hang.log_moved(time.monotonic())

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._last_tick > _ASLEEP_S:
            # We were stopped or starved; what came meanwhile is still to be read. Judge from now on.
            self._hang = HangWatch(self._hang.hang_s, self._hang.probe_interval_s, now)
        self._last_tick = now
        if not self._launch.has_scheduler:
            self._hang.log_moved(now)  # that its processes are there and run is all that there is to go by
        self._hang.stopped(now, [name for name, pid in self._launch.watched().items() if _stopped(pid)])
        reason = self._hang.verdict(now)
        if reason is not None:
            self._timer = None
            self._on_hung(reason)
            return
        self._ping(now)
        if self._launch.address.answers and self._hang.probe_due(now):
            self._probe(now)
        elif self._last_ask is not None and now - self._last_ask >= min(_ASK_S, self._hang.hang_s / 4):
            self._ask(now)
        self._timer = self._loop.call_later(_TICK_S, self._tick)

    def _ping(self, now: float) -> None:
        interval = self._notify.watchdog_s
        if interval is not None and now - self._last_ping >= interval / 4 and self._hang.healthy(now):
            self._notify.send(WATCHDOG=1)
            self._last_ping = now

    def _probe(self, now: float) -> None:
        watch, address, limit = self._hang, self._launch.address, self._hang.hang_s + 10
        watch.probe_began(now)
        self._last_ask = now

        def done(answer: object) -> None:
            self._last_ask = None
            if answer is None:
                watch.probe_put_off(time.monotonic())
                return
            ok = isinstance(answer, ready.Answer) and answer.ok
            detail = answer.detail if isinstance(answer, ready.Answer) else repr(answer)
            watch.probe_ended(time.monotonic(), ok, detail)

        def generate() -> ready.Answer | None:
            return None if ready.paused(address) else ready.generate(address, limit, tokens=1)

        self._loop.in_thread(generate, done)

    def _ask(self, now: float) -> None:
        """A generation that is long under way may have been overtaken by a pause."""
        watch, address = self._hang, self._launch.address
        self._last_ask = now

        def done(answer: object) -> None:
            if answer is True:
                watch.paused(time.monotonic())

        self._loop.in_thread(lambda: ready.paused(address), done)


def _stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"
    except (OSError, IndexError):
        return False  # its end is noticed elsewhere
