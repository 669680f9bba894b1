"""What the memory cgroup of this process counted: kills for want of memory. Version 2 and version 1.

``root`` is where the hierarchies are mounted; tests give a made-up tree.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def memberships(text: str) -> dict[str, str]:
    """``/proc/self/cgroup``: controller to path; version 2 is the controller ``""``."""
    found = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                found[controller] = parts[2]
    return found


def out_of_memory_kills(root: Path = ROOT, memberships_text: str | None = None) -> int | None:
    """How many processes the kernel has killed in our memory cgroup and below it; None where that is not counted."""
    if memberships_text is None:
        try:
            memberships_text = Path("/proc/self/cgroup").read_text(encoding="utf-8")
        except OSError:
            return None
    found = memberships(memberships_text)
    candidates = []
    if "memory" in found:  # version 1; in a container the path may be the host's, and the mount is our own cgroup
        candidates += [
            _below(root / "memory", found["memory"]) / "memory.oom_control",
            root / "memory/memory.oom_control",
        ]
    if "" in found:
        for mount in (root, root / "unified"):
            candidates += [_below(mount, found[""]) / "memory.events", mount / "memory.events"]
    for file in candidates:
        count = _counted(file)
        if count is not None:
            return count
    return None


def _below(mount: Path, path: str) -> Path:
    return mount / path.lstrip("/")


def _counted(file: Path) -> int | None:
    """The ``oom_kill`` line of either version's file."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None
