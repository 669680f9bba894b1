"""While the server starts: tell systemd to go on waiting, as long as there is progress.

Progress is a line of output, or processor time that the server's processes used: weights load for minutes in silence.
"""

from __future__ import annotations

import os
from pathlib import Path

from guarded_serve.supervisor.launch import Launch
from guarded_serve.supervisor.loop import Loop, Timer
from guarded_serve.supervisor.notify import Notify

_EVERY_S = 10.0
_GRACE_S = 60.0  # asked for at each sign of progress
_LEAST_CPU_S = 0.05  # in ten seconds: a server that waits for something uses less


class StartClock:
    """Runs from the start until `stop`."""

    def __init__(self, loop: Loop, launch: Launch, notify: Notify) -> None:
        self._loop = loop
        self._launch = launch
        self._notify = notify
        self._moved = True
        self._cpu_s = 0.0
        self._timer: Timer | None = None
        if notify.active:
            self._tick()

    def moved(self) -> None:
        """The server said something."""
        self._moved = True

    def stop(self) -> None:
        """It is ready, or its end has come."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        cpu_s = sum(map(_cpu_s, self._launch.child.processes()))
        if self._moved or cpu_s - self._cpu_s > _LEAST_CPU_S:
            self._notify.extend(_GRACE_S)
        self._moved, self._cpu_s = False, cpu_s
        self._timer = self._loop.call_later(_EVERY_S, self._tick)


def _cpu_s(pid: int) -> float:
    """User and system time of a process, in seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
