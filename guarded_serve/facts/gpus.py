"""Everything about the GPUs in one value: the driver's answer, the choice, the holders, and what must fit."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from guarded_serve.facts.environment import server_view
from guarded_serve.facts.gpu import PROBE_DEADLINE_S, Driver, Gpu, ask_driver
from guarded_serve.facts.gpu_choice import Card, Device, GpuChoice, choose_gpus, other_device
from guarded_serve.facts.gpu_holders import Holders, find_holders
from guarded_serve.facts.gpu_selftest import SelfTest, run_selftest
from guarded_serve.facts.gpu_weights import WeightNeed, weight_need
from guarded_serve.facts.gpu_xid import Xid, read_xids
from guarded_serve.facts.memory import SystemMemory, read_system_memory
from guarded_serve.facts.processes import PROC
from guarded_serve.facts.reading import Reading

if TYPE_CHECKING:
    from guarded_serve.facts.model import ModelFacts
    from guarded_serve.profile.deployment import Deployment

BALANCE_SWITCH = "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"
_SYSFS_PCI = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"  # VGA and 3D controllers


@dataclass(frozen=True)
class PciCard:
    """An NVIDIA display controller as the PCI bus shows it, and the kernel driver that owns it."""

    address: str
    kernel_driver: str | None


@dataclass(frozen=True)
class GpuFacts:
    """The GPUs as they are now. ``on_bus`` is what the PCI bus shows, whatever the driver says."""

    driver: Driver
    choice: GpuChoice
    holders: Holders = field(default_factory=Holders)
    weights: WeightNeed = field(default_factory=WeightNeed)
    xids: Reading[tuple[Xid, ...]] = field(default_factory=Reading.not_supported)
    memory: SystemMemory = field(default_factory=SystemMemory)
    torch_cuda: tuple[int, int] | None = None  # of the torch that is installed here
    on_bus: tuple[PciCard, ...] = ()
    selftest: SelfTest | None = None
    balance_enforced: bool = True  # SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK

    @property
    def chosen(self) -> tuple[tuple[Gpu, Device], ...]:
        """The cards that the ranks use, with the device that CUDA gives them."""
        by_index = {gpu.index: gpu for gpu in self.driver.gpus}
        return tuple((by_index[device.index], device) for device in self.choice.chosen)


def cards_of(driver: Driver) -> tuple[Card, ...]:
    """What the choice needs to know of the cards."""
    return tuple(Card(gpu.index, gpu.uuid, gpu.name, tuple(mig.uuid for mig in gpu.mig_devices)) for gpu in driver.gpus)


def gather_gpus(
    deployment: Deployment,
    environment: Mapping[str, str] | None = None,
    root: Path = PROC,
    deadline_s: float = PROBE_DEADLINE_S,
    model: ModelFacts | None = None,
) -> GpuFacts | None:
    """Ask the driver, resolve the choice, look for holders; None for one that is not on CUDA. Touches no GPU memory."""
    view = server_view(deployment, environment)
    if other_device(deployment, view):
        return None
    driver = ask_driver(deadline_s=deadline_s)
    if driver.trouble is not None:
        return GpuFacts(driver, GpuChoice(), on_bus=cards_on_bus())
    return GpuFacts(
        driver=driver,
        choice=choose_gpus(deployment, cards_of(driver), view),
        holders=find_holders(driver.gpus, root),
        weights=weight_need(deployment, model),
        xids=read_xids(),
        memory=read_system_memory(root),
        torch_cuda=installed_torch_cuda(),
        on_bus=cards_on_bus(),
        balance_enforced=view.get(BALANCE_SWITCH, "true").lower() not in ("0", "false", "no", "n"),
    )


def with_selftest(facts: GpuFacts, deployment: Deployment) -> GpuFacts:
    """The same facts with a self-test of the chosen GPUs, which must be empty: it allocates memory on them."""
    if not facts.choice.ranks:
        return facts
    view = server_view(deployment)
    return replace(facts, selftest=run_selftest(deployment, facts.choice, view))


def installed_torch_cuda() -> tuple[int, int] | None:
    """The CUDA version that torch was built for, from its version.py, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return None
    match = re.search(r"^cuda[^=]*=\s*['\"](\d+)\.(\d+)", text, re.MULTILINE)
    return (int(match.group(1)), int(match.group(2))) if match else None


def cards_on_bus(devices: Path = _SYSFS_PCI) -> tuple[PciCard, ...]:
    """NVIDIA's display controllers, from sysfs."""
    found = []
    try:
        entries = sorted(devices.iterdir())
    except OSError:
        return ()
    for entry in entries:
        try:
            vendor = (entry / "vendor").read_text().strip()
            kind = (entry / "class").read_text().strip()
        except OSError:
            continue
        if vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASS):
            driver = entry / "driver"
            found.append(PciCard(entry.name, driver.resolve().name if driver.exists() else None))
    return tuple(found)
