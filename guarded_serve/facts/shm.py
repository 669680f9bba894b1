"""/dev/shm: how much room there is, and what dead servers left in it.

SGLang, NCCL, loky and multiprocessing keep shared memory there; a killed process leaves its own behind, and when the
file system is full the next scheduler dies with a bus error (sglang 40723: 852 segments, 18 GiB).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from guarded_serve.facts.processes import PROC, process_ids

SHARED_MEMORY = Path("/dev/shm")
_FAMILIES = ("sgl_shm", "sglang_loads_", "multi_tokenizer_args_", "sem.loky-", "loky-", "psm_", "torch_", "nccl-")
"""Name prefixes of SGLang (utils/stale_shm_cleanup.py and our own runs), loky, multiprocessing, torch and NCCL."""
_PID_FAMILIES = ("sgl_shm", "multi_tokenizer_args_", "sem.loky-", "loky-", "torch_")
_INITIAL_PID_NAMESPACE, _INITIAL_IPC_NAMESPACE = "pid:[4026531836]", "ipc:[4026531839]"
_NUMBER = re.compile(r"(?<![0-9a-zA-Z])(\d{1,7})(?![0-9a-zA-Z])")


@dataclass(frozen=True)
class Segment:
    """A file of one of the known families. ``size`` in bytes; ``in_use``: None where that cannot be told."""

    name: str
    size: int
    uid: int
    in_use: bool | None


@dataclass(frozen=True)
class SharedMemory:
    """Bytes; None where there is no such file system."""

    total: int | None = None
    free: int | None = None
    segments: tuple[Segment, ...] = ()

    @property
    def leftovers(self) -> tuple[Segment, ...]:
        """What no living process can still be using."""
        return tuple(segment for segment in self.segments if segment.in_use is False)


def read_shared_memory(folder: Path = SHARED_MEMORY, root: Path = PROC) -> SharedMemory:
    """Room and known segments; /proc is searched for users only if there are any."""
    try:
        space = os.statvfs(folder)
        names = sorted(entry.name for entry in folder.iterdir() if entry.name.startswith(_FAMILIES))
    except OSError:
        return SharedMemory()
    mapped, closed = _mapped(folder, root) if names else (set(), False)
    alive = set(process_ids(root))
    foreign = _others_write_here(root)
    segments = []
    for name in names:
        try:
            status = (folder / name).stat()
        except OSError:
            continue  # its owner removed it meanwhile
        use: bool | None = str(folder / name) in mapped
        if not use:
            maker = None if foreign else _maker(name)
            if maker is not None:
                use = maker in alive
            elif closed or foreign:
                use = None  # somebody whom we may not look into could have it mapped
        segments.append(Segment(name, status.st_blocks * 512, status.st_uid, use))
    return SharedMemory(space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize, tuple(segments))


def _others_write_here(root: Path) -> bool:
    """In a container with PIDs of its own and the host's /dev/shm (--ipc=host), the PIDs in names are foreign."""
    try:
        pid, ipc = (os.readlink(root / "self" / "ns" / name) for name in ("pid", "ipc"))  # noqa: PTH115
    except OSError:
        return False
    return pid != _INITIAL_PID_NAMESPACE and ipc == _INITIAL_IPC_NAMESPACE


def _maker(name: str) -> int | None:
    """The PID in a name of a family that carries its maker's: `sem.loky-PID-...`, `sgl_shm_KIND_PID_...`."""
    if not name.startswith(_PID_FAMILIES):
        return None
    numbers = _NUMBER.findall(name.replace("_", "-"))
    return int(numbers[0]) if numbers else None


def _mapped(folder: Path, root: Path) -> tuple[set[str], bool]:
    """Files of the folder that some process has mapped, and whether there are processes we may not look into."""
    found: set[str] = set()
    closed = False
    prefix = f"{folder}/"
    for pid in process_ids(root):
        try:
            with (root / str(pid) / "maps").open(errors="replace") as file:
                for line in file:
                    at = line.find(prefix)
                    if at > 0:
                        found.add(line[at:].rstrip("\n"))
        except PermissionError:
            closed = True
        except OSError:
            continue
    return found, closed
