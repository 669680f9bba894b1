"""Who holds the GPUs: NVML's lists joined with the open handles on /dev/nvidia* and with /proc.

NVML's PIDs are the host's inside a container, may be dead, and may be another process's number here. The open handles
are this namespace's own truth, but a CUDA program opens every card it can see. So a process counts as seen here when it
has a handle, and NVML alone says which card it uses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from guarded_serve.facts.gpu import MIB, Gpu
from guarded_serve.facts.processes import (
    PROC,
    SGLANG_TITLE,
    OpenFiles,
    Process,
    open_files,
    process_ids,
    read_process,
    read_title,
    unix_sockets,
)

_NODE = re.compile(r"/dev/nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset|-caps/.*)$")
_MPS_SERVER = ("nvidia-cuda-mps-server", "nvidia-cuda-mps-control")


@dataclass(frozen=True)
class Use:
    """One card in NVML's list of one process. ``kind`` is compute, graphics or mps; ``used`` in bytes."""

    gpu: int
    uuid: str
    kind: str
    used: int | None


@dataclass(frozen=True)
class Holder:
    """A process that holds GPUs. ``nodes`` are its open device files; none: NVML names it and it is not seen here."""

    process: Process
    uses: tuple[Use, ...] = ()
    nodes: tuple[str, ...] = ()
    another_here: bool = False  # the PID is NVML's; here it is the number of a process that has no handle
    parent: Process | None = None
    launcher_alive: bool | None = None  # None: it carries no marker of a guarded launch

    @property
    def seen_here(self) -> bool:
        """Whether the process of that PID, here, really is the one: it has a device open, or was found by its title."""
        return bool(self.nodes) or (not self.uses and self.process.is_sglang)

    @property
    def is_mps_server(self) -> bool:
        """The MPS daemon itself, rather than a program that computes."""
        return self.process.title.split("/")[-1].split(" ")[0] in _MPS_SERVER

    def kinds_on(self, gpu: int) -> tuple[str, ...]:
        """How it uses one card."""
        return tuple(sorted({use.kind for use in self.uses if use.gpu == gpu}))

    def describe(self) -> str:
        """One phrase with the memory that it holds."""
        held = ", ".join(
            f"GPU {use.gpu}: {'?' if use.used is None else use.used // MIB} MiB {use.kind}" for use in self.uses
        )
        if self.another_here:
            text = f"PID {self.process.pid} as another PID namespace counts (here that number is an unrelated process)"
        else:
            text = self.process.describe()
        if held:
            return f"{text} [{held}]"
        return f"{text} [{', '.join(self.nodes)} open, no memory listed]" if self.nodes else f"{text} [no GPU]"


@dataclass(frozen=True)
class Holders:
    """All holders, and how many processes' handles this user may not see."""

    holders: tuple[Holder, ...] = ()
    unreadable: int = 0

    def on(self, gpu: int) -> tuple[Holder, ...]:
        """Those that NVML lists on one card."""
        return tuple(holder for holder in self.holders if holder.kinds_on(gpu))

    def suspects(self, minor: int) -> tuple[Holder, ...]:
        """Those with that card's device file open that NVML does not list anywhere."""
        return tuple(h for h in self.holders if f"/dev/nvidia{minor}" in h.nodes and not h.uses)


@dataclass
class _Found:
    uses: list[Use] = field(default_factory=list)
    nodes: tuple[str, ...] = ()


def find_holders(gpus: Sequence[Gpu], root: Path = PROC) -> Holders:
    """Join NVML's lists with /proc; processes with a title of SGLang's count even where they have no GPU open."""
    handles = open_files(lambda target: _NODE.match(target) is not None, root)
    titled = [pid for pid in process_ids(root) if read_title(pid, root).startswith(SGLANG_TITLE)]
    handles = OpenFiles({**dict.fromkeys(titled, ()), **handles.by_pid}, handles.unreadable)
    return join_holders(gpus, handles, root)


def join_holders(gpus: Sequence[Gpu], handles: OpenFiles, root: Path = PROC) -> Holders:
    """The same, from handles that were read already."""
    found: dict[int, _Found] = {pid: _Found(nodes=nodes) for pid, nodes in handles.by_pid.items()}
    for gpu in gpus:
        for pid, use in _uses(gpu):
            found.setdefault(pid, _Found()).uses.append(use)
    holders, sockets = [], unix_sockets(root)
    for pid, one in sorted(found.items()):
        process = read_process(pid, root)
        known_closed = bool(one.uses) and process.alive and not one.nodes and pid not in handles.unreadable
        holders.append(
            Holder(
                process=process,
                uses=tuple(one.uses),
                nodes=one.nodes,
                another_here=known_closed,
                parent=read_process(process.parent, root) if process.parent else None,
                launcher_alive=None if process.launch_socket is None else process.launch_socket in sockets,
            )
        )
    return Holders(tuple(holders), len(handles.unreadable))


def _uses(gpu: Gpu) -> list[tuple[int, Use]]:
    lists = [("compute", gpu.compute.value), ("graphics", gpu.graphics.value), ("mps", gpu.mps.value)]
    lists += [("compute", mig.compute.value) for mig in gpu.mig_devices]
    found: dict[tuple[int, str], Use] = {}
    for kind, processes in lists:
        for process in processes or ():
            found.setdefault((process.pid, kind), Use(gpu.index, gpu.uuid, kind, process.used))
    return [(pid, use) for (pid, _), use in found.items()]


@dataclass(frozen=True)
class Leftover:
    """Whether a holder is provably what an earlier server left behind, and by what it is known."""

    proven: bool
    why: str


def leftover(holder: Holder) -> Leftover:
    """Judge one holder. Proof is that no living server owns it; in doubt nothing is proven.

    SGLang's children carry a title (`sglang::scheduler`) and are spawned by a Python program: one whose parent is an
    init or another reaper was orphaned. A process with a guarded launch's marker is a leftover when the launcher's
    socket is bound no more.
    """
    process = holder.process
    if holder.another_here or process.state == "gone":
        return Leftover(False, "it lives in another PID namespace, or is dead: it cannot be signalled from here")
    if not process.alive:
        return Leftover(False, "it is dead, and its parent has yet to collect it: there is nothing to end")
    if not holder.seen_here:
        return Leftover(False, "its open files may not be read: nothing is proven about it")
    if holder.launcher_alive is not None:
        if holder.launcher_alive:
            return Leftover(False, f"it belongs to launch {process.launch_id}, whose launcher is alive")
        return Leftover(True, f"it carries the marker of launch {process.launch_id}, whose launcher is gone")
    if not process.is_sglang:
        return Leftover(False, "it is no process of SGLang's")
    if holder.parent is not None and holder.parent.adopts_orphans:
        return Leftover(True, f"it is {process.title.split(' ')[0]}, orphaned: the server that started it is gone")
    return Leftover(False, f"its parent, PID {process.parent}, may be its server: stop that instead")
