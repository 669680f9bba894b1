"""The host's memory, and the limit of the control group that the server would live in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from guarded_serve.facts.processes import PROC

CGROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 62  # cgroup v1 writes a number near 2^63 for none


@dataclass(frozen=True)
class SystemMemory:
    """Bytes; None where it could not be read. ``limit`` and ``limit_used`` are the tightest control group's."""

    total: int | None = None
    available: int | None = None
    limit: int | None = None
    limit_used: int | None = None
    limit_path: str | None = None

    @property
    def room(self) -> int | None:
        """What the server could still take, by the host and by the control group."""
        rooms = [self.available] if self.available is not None else []
        if self.limit is not None:
            rooms.append(self.limit - (self.limit_used or 0))
        return max(0, min(rooms)) if rooms else None


def read_system_memory(root: Path = PROC, cgroups: Path = CGROUPS) -> SystemMemory:
    """From /proc/meminfo and the control groups (v2, or v1's memory controller) of this process."""
    amounts = {}
    try:
        for line in (root / "meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                amounts[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        amounts = {}
    limit, used, path = _tightest(root, cgroups)
    return SystemMemory(amounts.get("MemTotal"), amounts.get("MemAvailable"), limit, used, path)


def _tightest(root: Path, cgroups: Path) -> tuple[int | None, int | None, str | None]:
    """The group with the least room among this process's own and all above it."""
    best: tuple[int, int, str] | None = None
    for folder, limit_name, used_name in _groups(root, cgroups):
        limit, used = _number(folder / limit_name), _number(folder / used_name)
        if limit is None or limit >= _NO_LIMIT:
            continue
        used = (used or 0) - _reclaimable(folder)
        if best is None or limit - used < best[0] - best[1]:
            best = (limit, max(0, used), str(folder))
    return best or (None, None, None)


def _groups(root: Path, cgroups: Path) -> list[tuple[Path, str, str]]:
    found = []
    try:
        lines = (root / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            base, names = cgroups, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = cgroups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = base / path.lstrip("/")
        while folder == base or base in folder.parents:
            found.append((folder, *names))
            folder = folder.parent
    return found


def _reclaimable(folder: Path) -> int:
    """Page cache that the kernel gives back on demand: `inactive_file` of memory.stat."""
    try:
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        return None
