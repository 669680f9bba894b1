"""What the driver says about the GPUs, as typed values; and the child process that asks it, with a deadline."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from guarded_serve.facts.gpu_probe import ASKING
from guarded_serve.facts.own_module import NEUTRAL_FOLDER, own_command, own_environment
from guarded_serve.facts.reading import Reading, State

T = TypeVar("T")
U = TypeVar("U")

PROBE_DEADLINE_S = 45.0
"""A first NVML call without persistence mode starts every card, at 1 to 3 s each; a wedged one never returns."""
MIB = 2**20
UNIFIED_MEMORY = ("GB10", "Thor", "Orin", "Xavier", "Tegra")
"""Products whose GPU uses the system's memory; NVML answers Not Supported to the memory query there."""


class Trouble(str, Enum):
    """Why there is nothing to say about any GPU."""

    NO_LIBRARY = "no library"
    NO_DRIVER = "no driver"
    MISMATCH = "mismatch"
    PERMISSION = "permission"
    HUNG = "hung"
    CRASHED = "crashed"
    FAILED = "failed"


_TROUBLES = {4: Trouble.PERMISSION, 9: Trouble.NO_DRIVER, 12: Trouble.NO_LIBRARY, 18: Trouble.MISMATCH}


@dataclass(frozen=True)
class DriverTrouble:
    """The driver did not answer. ``asking`` is the call that never came back, with its device."""

    kind: Trouble
    text: str
    asking: str | None = None


@dataclass(frozen=True)
class Memory:
    """Bytes. ``reserved`` is what the driver keeps for itself, None where only version 1 of the query is known."""

    total: int
    used: int
    free: int
    reserved: int | None

    @property
    def usable(self) -> int:
        """What programs could have on an empty card."""
        return self.total - (self.reserved or 0)


@dataclass(frozen=True)
class GpuProcess:
    """A process as NVML lists it. The PID may be the host's (in a container), or dead. ``used`` in bytes."""

    pid: int
    used: int | None


Processes = Reading[tuple[GpuProcess, ...]]


@dataclass(frozen=True)
class RemappedRows:
    """Rows of memory that were replaced; ``pending`` takes hold at the next reset."""

    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


@dataclass(frozen=True)
class MigDevice:
    """One MIG device of a card."""

    uuid: str
    memory: Reading[Memory]
    compute: Processes


def _absent() -> Reading[Any]:
    return Reading.not_supported()


@dataclass(frozen=True)
class Gpu:
    """One card. ``index`` is NVML's (PCI order). ``lost`` says why there is no handle to it; then all else is empty."""

    index: int
    uuid: str = ""
    name: str = ""
    pci: str = ""
    lost: str | None = None
    minor: Reading[int] = field(default_factory=_absent)
    capability: Reading[tuple[int, int]] = field(default_factory=_absent)
    memory: Reading[Memory] = field(default_factory=_absent)
    compute: Processes = field(default_factory=_absent)
    graphics: Processes = field(default_factory=_absent)
    mps: Processes = field(default_factory=_absent)
    compute_mode: Reading[int] = field(default_factory=_absent)
    mig_mode: Reading[tuple[int, int]] = field(default_factory=_absent)  # now, after the next reset
    mig_devices: tuple[MigDevice, ...] = ()
    ecc_mode: Reading[tuple[int, int]] = field(default_factory=_absent)
    ecc_volatile: Reading[int] = field(default_factory=_absent)  # uncorrected, since the driver was loaded
    ecc_aggregate: Reading[int] = field(default_factory=_absent)  # uncorrected, in the card's life
    remapped_rows: Reading[RemappedRows] = field(default_factory=_absent)
    recovery_action: Reading[int] = field(default_factory=_absent)
    clocks_reasons: Reading[int] = field(default_factory=_absent)
    temperature: Reading[int] = field(default_factory=_absent)  # degrees Celsius
    pcie_width: Reading[int] = field(default_factory=_absent)
    pcie_width_max: Reading[int] = field(default_factory=_absent)
    pcie_generation: Reading[int] = field(default_factory=_absent)
    pcie_generation_max: Reading[int] = field(default_factory=_absent)
    persistence: Reading[int] = field(default_factory=_absent)
    fabric: Reading[tuple[int, int]] = field(default_factory=_absent)  # state, status
    identity: tuple[Reading[str], ...] = ()  # UUID, name and PCI id as they were read

    @property
    def label(self) -> str:
        """How a person knows it: index, name, PCI address."""
        return f"GPU {self.index}" + (f" ({self.name}, {self.pci})" if self.name else "")

    @property
    def unified_memory(self) -> bool:
        """Whether it is one of the known products whose memory is the system's."""
        return any(product in self.name for product in UNIFIED_MEMORY)

    @property
    def mig_enabled(self) -> bool:
        """Whether MIG is on now."""
        return bool(self.mig_mode.value and self.mig_mode.value[0])


@dataclass(frozen=True)
class Peer:
    """What two cards are to each other. ``ancestor`` is nvmlGpuTopologyLevel_t: 0 one board, 50 across sockets."""

    pair: tuple[int, int]
    read: Reading[int]
    nvlink: Reading[int]
    ancestor: Reading[int]


@dataclass(frozen=True)
class Driver:
    """One answer of the driver. ``cuda`` is its CUDA version as (major, minor)."""

    trouble: DriverTrouble | None = None
    version: Reading[str] = field(default_factory=_absent)
    cuda: Reading[tuple[int, int]] = field(default_factory=_absent)
    gpus: tuple[Gpu, ...] = ()
    peers: tuple[Peer, ...] = ()
    seconds: float = 0.0  # for the whole child, its start included


def ask_driver(environment: Mapping[str, str] | None = None, deadline_s: float = PROBE_DEADLINE_S) -> Driver:
    """Run the probe in a child and read its answer; never raises and never takes much longer than the deadline."""
    started = time.perf_counter()
    child = subprocess.Popen(
        own_command("facts.gpu_probe"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=own_environment(os.environ if environment is None else environment),
        cwd=NEUTRAL_FOLDER,
        start_new_session=True,
    )
    try:
        output, errors = child.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired as expired:
        return Driver(trouble=_hung(child, expired.stdout or b"", deadline_s), seconds=time.perf_counter() - started)
    seconds = time.perf_counter() - started
    lines = output.decode(errors="replace").splitlines()
    if child.returncode != 0 or not lines or lines[-1].startswith(ASKING):
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit {child.returncode}"
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        text = f"the probe ended with {how}" + (f": {last[0]}" if last else "")
        return Driver(DriverTrouble(Trouble.CRASHED, text, _asking(lines)), seconds=seconds)
    try:
        return read_answer(json.loads(lines[-1]), seconds)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
    ):  # a line of the driver's own, or of a shell's start-up file
        text = f"the probe's answer cannot be read: {lines[-1][:120]!r}"
        return Driver(DriverTrouble(Trouble.CRASHED, text, _asking(lines)), seconds=seconds)


def _hung(child: subprocess.Popen[bytes], output: bytes, deadline_s: float) -> DriverTrouble:
    """Kill the child; one that waits inside the kernel cannot be killed and is left behind, not waited for."""
    child.kill()
    text = f"no answer within {deadline_s:.0f} s"
    try:
        child.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        text += f"; the probe (PID {child.pid}) waits inside the kernel and cannot be killed"
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    return DriverTrouble(Trouble.HUNG, text, _asking(output.decode(errors="replace").splitlines()))


def _asking(lines: list[str]) -> str | None:
    asked = [line.removeprefix(ASKING).split() for line in lines if line.startswith(ASKING)]
    if not asked or len(asked[-1]) != 2:
        return None
    device, call = asked[-1]
    return call if device == "-" else f"{call} on GPU {device}"


def read_answer(answer: Mapping[str, Any], seconds: float = 0.0) -> Driver:
    """The probe's JSON as typed values."""
    initialised = _reading(answer["init"])
    if initialised.state is not State.VALUE:
        kind = _TROUBLES.get(initialised.code or 0, Trouble.FAILED)
        return Driver(DriverTrouble(kind, initialised.error, "nvmlInit"), seconds=seconds)
    count = _reading(answer["count"])
    if count.state is not State.VALUE:
        return Driver(DriverTrouble(Trouble.FAILED, count.error, "nvmlDeviceGetCount"), seconds=seconds)
    return Driver(
        version=_map(_reading(answer["driver"]), str),
        cuda=_map(_reading(answer["cuda"]), lambda version: (version // 1000, version % 1000 // 10)),
        gpus=tuple(_gpu(device) for device in answer["devices"]),
        peers=tuple(
            Peer(tuple(peer["pair"]), *(_reading(peer[key]) for key in ("read", "nvlink", "ancestor")))
            for peer in answer["peers"]
        ),
        seconds=seconds,
    )


def _gpu(device: Mapping[str, Any]) -> Gpu:
    if "lost" in device:
        return Gpu(device["index"], lost=_reading(device["lost"]).error)
    identity = tuple(_reading(device[key]) for key in ("uuid", "name", "pci"))
    return Gpu(
        index=device["index"],
        uuid=identity[0].value or "",
        name=identity[1].value or "",
        pci=identity[2].value or "",
        identity=identity,
        capability=_map(_reading(device["capability"]), tuple),
        memory=_map(_reading(device["memory"]), _memory),
        compute=_map(_reading(device["compute"]), _processes),
        graphics=_map(_reading(device["graphics"]), _processes),
        mps=_map(_reading(device["mps"]), _processes),
        mig_mode=_map(_reading(device["mig_mode"]), tuple),
        mig_devices=tuple(_mig(mig) for mig in device["mig_devices"]),
        ecc_mode=_map(_reading(device["ecc_mode"]), tuple),
        remapped_rows=_map(
            _reading(device["remapped_rows"]), lambda rows: RemappedRows(rows[0], rows[1], bool(rows[2]), bool(rows[3]))
        ),
        fabric=_map(_reading(device["fabric"]), lambda value: (value["state"], value["status"])),
        minor=_reading(device["minor"]),
        compute_mode=_reading(device["compute_mode"]),
        ecc_volatile=_reading(device["ecc_volatile"]),
        ecc_aggregate=_reading(device["ecc_aggregate"]),
        recovery_action=_reading(device["recovery_action"]),
        clocks_reasons=_reading(device["clocks_reasons"]),
        temperature=_reading(device["temperature"]),
        pcie_width=_reading(device["pcie_width"]),
        pcie_width_max=_reading(device["pcie_width_max"]),
        pcie_generation=_reading(device["pcie_generation"]),
        pcie_generation_max=_reading(device["pcie_generation_max"]),
        persistence=_reading(device["persistence"]),
    )


def _mig(device: Mapping[str, Any]) -> MigDevice:
    return MigDevice(
        uuid=_reading(device["uuid"]).value or "",
        memory=_map(_reading(device["memory"]), _memory),
        compute=_map(_reading(device["compute"]), _processes),
    )


def _memory(value: Mapping[str, Any]) -> Memory:
    return Memory(value["total"], value["used"], value["free"], value["reserved"])


def _processes(value: list[Mapping[str, Any]]) -> tuple[GpuProcess, ...]:
    return tuple(GpuProcess(process["pid"], process["used"]) for process in value)


def _reading(answer: Mapping[str, Any]) -> Reading[Any]:
    if "value" in answer:
        return Reading.of(answer["value"])
    if "not_supported" in answer:
        return Reading.not_supported(answer["not_supported"], answer.get("code"))
    return Reading.failed(answer["failed"], answer.get("code"))


def _map(reading: Reading[T], change: Callable[[T], U]) -> Reading[U]:
    if reading.state is not State.VALUE or reading.value is None:
        return Reading(reading.state, None, reading.error, reading.code)
    return Reading.of(change(reading.value))
