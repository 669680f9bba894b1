"""Zombies that were left to us: as PID 1 of a container, and as the subreaper of our own tree.

Children of our own are waited for at once by whoever started them; one that is still a zombie at the second look is
nobody's.
"""

from __future__ import annotations

import os
from pathlib import Path

from guarded_serve.supervisor.loop import Loop

_EVERY_S = 15.0


class Reaper:
    """Looks every quarter of a minute."""

    def __init__(self, loop: Loop, every_s: float = _EVERY_S) -> None:
        self._loop = loop
        self._every_s = every_s
        self._seen: set[int] = set()
        loop.call_later(every_s, self._look)

    def _look(self) -> None:
        zombies = {pid for pid in _children() if _is_zombie(pid)}
        for pid in zombies & self._seen:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass
        self._seen = zombies
        self._loop.call_later(self._every_s, self._look)


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(map(int, (task / "children").read_text(encoding="ascii").split()))
        except OSError:
            continue
    return found


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except (OSError, IndexError):
        return False
