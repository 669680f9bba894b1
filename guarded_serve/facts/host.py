"""What the host offers: ports, shared memory, limits, memory, disk, clock, device nodes, PCIe peer access."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from guarded_serve.facts.environment import server_view
from guarded_serve.facts.gpu_choice import other_device
from guarded_serve.facts.memory import SystemMemory, read_system_memory
from guarded_serve.facts.ports import Port, read_ports, wanted_ports
from guarded_serve.facts.processes import PROC
from guarded_serve.facts.py_spy import find_py_spy
from guarded_serve.facts.shm import SharedMemory, read_shared_memory

if TYPE_CHECKING:
    from guarded_serve.profile.deployment import Deployment

MIB = 2**20
GIB = 2**30
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_JIT_CACHE_BYTES = 1 * GIB
_TEMPORARY_BYTES = 256 * MIB


@dataclass(frozen=True)
class Limit:
    """A resource limit; None is unlimited."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True)
class Disk:
    """A folder that is written to. Bytes. ``nearest`` is the folder that exists on the way to it.

    ``path`` is empty where there is no such folder for this user.
    """

    purpose: str
    path: str
    nearest: str
    free: int
    wanted: int
    writable: bool
    asked: bool = False  # the profile names this very folder
    why: str = ""  # what the kernel said when it was tried


@dataclass(frozen=True)
class DeviceNode:
    """A device file of the driver, and whether this user may read and write it."""

    path: str
    allowed: bool


@dataclass(frozen=True)
class Clock:
    """Unix seconds, and whether the kernel's clock is kept in step (None: cannot be told)."""

    now: float
    synchronised: bool | None


@dataclass(frozen=True)
class Iommu:
    """What the kernel says about DMA between cards. ``groups`` is 0 where no IOMMU is on."""

    groups: int = 0
    passthrough: bool = False


@dataclass(frozen=True)
class HostFacts:
    """The host as it is now."""

    ports: tuple[Port, ...] = ()
    shared_memory: SharedMemory = field(default_factory=SharedMemory)
    files: Limit = Limit(None, None)
    locked_memory: Limit = Limit(None, None)
    memory: SystemMemory = field(default_factory=SystemMemory)
    disks: tuple[Disk, ...] = ()
    clock: Clock = Clock(0.0, None)
    nodes: tuple[DeviceNode, ...] = ()
    iommu: Iommu = Iommu()
    py_spy: str | None = None
    ptrace_scope: int | None = None
    root: bool = False


def gather_host(deployment: Deployment) -> HostFacts:
    """Read everything that the host checks judge."""
    view = server_view(deployment)
    return HostFacts(
        ports=read_ports(wanted_ports(deployment)),
        shared_memory=read_shared_memory(),
        files=_limit(resource.RLIMIT_NOFILE),
        locked_memory=_limit(resource.RLIMIT_MEMLOCK),
        memory=read_system_memory(),
        disks=tuple(read_disk(*wanted) for wanted in wanted_disks(deployment, view)),
        clock=Clock(time.time(), _synchronised()),
        nodes=() if other_device(deployment, view) else read_nodes(),
        iommu=read_iommu(),
        py_spy=find_py_spy(),
        ptrace_scope=_integer(PROC / "sys/kernel/yama/ptrace_scope"),
        root=os.geteuid() == 0,
    )


def wanted_disks(deployment: Deployment, view: Mapping[str, str]) -> list[tuple[str, Path | None, int, bool]]:
    """Folders that are written to: purpose, path (None: there is none), bytes to come, whether the profile names it.

    ``view`` is the server's environment.
    """
    wanted: list[tuple[str, Path | None, int, bool]] = [
        ("compiled kernels", _cache_folder(view), _JIT_CACHE_BYTES, False),
        ("temporary files", _temporary_folder(view), _TEMPORARY_BYTES, False),
    ]
    timing = deployment.profile.timing
    if timing.directory:
        ranks = int(deployment.get("tp_size") or 1) if timing.ranks == "all" else 1
        wanted.append(("the cycle log", timing.directory, (timing.keep + 1) * timing.rotate_mib * MIB * ranks, True))
    return wanted


def _cache_folder(view: Mapping[str, str]) -> Path | None:
    """Where Triton and its like keep what they compile, unless they are told otherwise."""
    if view.get("XDG_CACHE_HOME"):
        return Path(view["XDG_CACHE_HOME"])
    try:
        return Path(view.get("HOME") or Path.home()) / ".cache"
    except RuntimeError:  # no HOME, and a user without an entry in the password file
        return None


def _temporary_folder(view: Mapping[str, str]) -> Path | None:
    """As Python's tempfile in the server will choose."""
    named = [Path(view[name]) for name in ("TMPDIR", "TEMP", "TMP") if view.get(name)]
    for folder in named:
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
            return folder
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # none of the usual folders can be written
        return None


def read_disk(purpose: str, path: Path | None, wanted: int, asked: bool = False) -> Disk:
    """Free space of the file system that a folder is on, or will be on once it is made."""
    if path is None:
        return Disk(purpose, "", "", 0, wanted, writable=False)
    # os.path: pathlib raises for what lies in a folder that may not be entered, or has too long a name.
    nearest = next((place for place in (path, *path.absolute().parents) if os.path.exists(place)), Path("/"))  # noqa: PTH110
    try:
        free = shutil.disk_usage(nearest).free
    except OSError:
        free = 0
    why = _write_trouble(path, nearest) if asked else ""
    writable = not why and nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    return Disk(purpose, str(path), str(nearest), free, wanted, writable, asked, why)


def _write_trouble(path: Path, nearest: Path) -> str:
    """Why a folder cannot be made or nothing made in it; empty where it can. ``nearest`` is what is there of its path.

    Tried, for access(2) tells root yes in /proc, and nobody of immutable folders and squashed shares. A full disk is
    no trouble of this kind: the log drops records then, and ``free`` says so.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            path.stat()
        os.rmdir(tempfile.mkdtemp(prefix=".guarded-serve-", dir=nearest))  # noqa: PTH106 - a name, not a Path
    except OSError as error:
        return "" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
    except ValueError as error:  # a NUL in it
        return str(error)
    return ""


def read_nodes(folder: Path = Path("/dev")) -> tuple[DeviceNode, ...]:
    """The driver's device files; the numbered ones are the cards."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.name.startswith("nvidia"))
    except OSError:
        return ()
    wanted = [name for name in names if name in ("nvidiactl", "nvidia-uvm") or name.removeprefix("nvidia").isdigit()]
    return tuple(DeviceNode(str(folder / name), os.access(folder / name, os.R_OK | os.W_OK)) for name in wanted)


def read_iommu(groups: Path = Path("/sys/kernel/iommu_groups"), command_line: Path = PROC / "cmdline") -> Iommu:
    """From sysfs and the kernel's command line."""
    words = _text(command_line).split()
    passthrough = "iommu=pt" in words or "iommu.passthrough=1" in words
    return Iommu(_count(groups), passthrough)


def _count(folder: Path) -> int:
    try:
        return len(os.listdir(folder))  # noqa: PTH208 - only how many
    except OSError:
        return 0


def _limit(which: int) -> Limit:
    soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which))
    return Limit(soft, hard)


def _synchronised() -> bool | None:
    """adjtimex(2) without a change; it returns TIME_ERROR while the clock is not kept in step."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        state = libc.adjtimex(ctypes.create_string_buffer(512))  # struct timex is 208 bytes; all zero changes nothing
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def _integer(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
