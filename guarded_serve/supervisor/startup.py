"""Until the server serves: tell systemd to go on waiting, as long as there is progress.

Runs from the preflight to READY, and between two lives of a server from its end to the next READY: there the unit is
active already, and its watchdog wants to be fed. While the gates run or a restart is waited for, time passes by
intention; once the server starts, progress is a line of its output, or processor time that its processes used: weights
load for minutes in silence. `supervise.start_deadline_s` bounds it all, and is the owner's to watch.
"""

from __future__ import annotations

import os
from pathlib import Path

from guarded_serve.supervisor.launch import Launch
from guarded_serve.supervisor.loop import Loop, Timer
from guarded_serve.supervisor.notify import Notify

_EVERY_S = 10.0
_GRACE_S = 60.0  # asked for at each sign of progress
_LEAST_CPU = 0.005  # of one processor: a server that waits for something uses less


class StartClock:
    """Runs from its making until `stop`."""

    def __init__(self, loop: Loop, notify: Notify) -> None:
        self._loop = loop
        self._notify = notify
        self._launch: Launch | None = None
        self._every_s = min(_EVERY_S, (notify.watchdog_s or _EVERY_S) / 4)
        self._moved = True
        self._cpu_s = 0.0
        self._timer: Timer | None = None
        if notify.active:
            self._tick()

    def started(self, launch: Launch) -> None:
        """From now on, only what this launch does is progress."""
        self._launch = launch
        self._moved, self._cpu_s = True, 0.0

    def moved(self) -> None:
        """The server said something."""
        self._moved = True

    def stop(self) -> None:
        """It is ready, or its end has come."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        if self._launch is None or self._progress(self._launch):
            self._notify.extend(_GRACE_S)
            self._notify.alive()
        self._timer = self._loop.call_later(self._every_s, self._tick)

    def _progress(self, launch: Launch) -> bool:
        cpu_s = sum(map(_cpu_s, launch.child.processes()))
        progress = self._moved or cpu_s - self._cpu_s > _LEAST_CPU * self._every_s
        self._moved, self._cpu_s = False, cpu_s
        return progress


def _cpu_s(pid: int) -> float:
    """User and system time of a process, in seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
