"""The GPU gate against a scripted driver: the real probe, the real pynvml, a made-up /proc, every check.

Each scenario says which checks must refuse, which must warn, and with what exit code; everything else must pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.checks.gpu import CHECKS
from guarded_serve.checks.runner import exit_code, run_checks
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts import gpus as gpus_module
from guarded_serve.facts.bag import Facts
from guarded_serve.facts.gather import gather
from guarded_serve.facts.gpu_xid import Xid
from guarded_serve.facts.gpus import PciCard, gather_gpus
from guarded_serve.facts.reading import Reading
from guarded_serve.findings import Report, Status
from tests.support.fake_driver import environment as fake_environment
from tests.support.fake_driver import gpu_uuid
from tests.support.fake_proc import FakeProc, nvidia
from tests.support.gpu_deployments import deployment

Values = Mapping[str, str | None]
EIGHT = {f"gpu{index}": {"used": "0"} for index in range(8)}
MIG_0, MIG_1 = "MIG-11111111-0000-4000-8000-000000000001", "MIG-22222222-0000-4000-8000-000000000002"
MIG_ON = {
    "mig": "1 1",
    "mig.0": f"{MIG_0} 33792 0",
    "mig.1": f"{MIG_1} 33792 20000 701:19000",
    "nvmlDeviceGetMemoryInfo_v2": "error 4",
    "nvmlDeviceGetComputeRunningProcesses_v3": "error 4",
}
CONTAINER = "/docker/" + "ab" * 32


@dataclass(frozen=True)
class Scenario:
    """What the driver and /proc say, what is asked for, and what must come of it."""

    name: str
    gpus: int = 1
    cards: Mapping[str, Values] = field(default_factory=dict)
    system: Mapping[str, str] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    profile: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    processes: Callable[[FakeProc], object] = lambda proc: None
    old_driver: bool = False
    torch: tuple[int, int] | None = (13, 0)
    xids: tuple[Xid, ...] = ()
    bus: tuple[PciCard, ...] = ()
    deadline_s: float = 20.0
    refuses: tuple[str, ...] = ()
    warns: tuple[str, ...] = ()
    code: ExitCode = ExitCode.OK
    says: tuple[str, ...] = ()


def _orphan(proc: FakeProc, pid: int = 701, card: int = 0) -> int:
    return proc.add(pid, "sglang::scheduler_TP0", parent=1, age_s=7300, files=nvidia(card))


def _desktop(proc: FakeProc) -> None:
    proc.add(801, "/usr/lib/xorg/Xorg", files=nvidia(0))
    proc.add(802, "/usr/bin/gnome-shell", files=nvidia(0), uid=1000)


SCENARIOS = (
    # Healthy
    Scenario("one idle H200: v1 says 645 MiB, v2 says 0"),
    Scenario("eight idle H200s", gpus=8, server={"tp_size": 8}),
    Scenario("the generation of the link has dropped while idle", cards={"every": {"pcie_generation": "1"}}),
    Scenario("no fabric, no MIG, no ECC: a consumer card", cards={"every": {"fabric": None, "mig": None, "ecc": None,
             "ecc_volatile": None, "ecc_aggregate": None, "remapped": None, "recovery": None}}),
    Scenario("a driver that knows no recovery action", cards={"every": {"recovery.error": "3"}}),
    Scenario("another server on cards that are not ours", gpus=8, server={"tp_size": 4},
             cards={"gpu5": {"used": "101000", "compute": "701:100900"}}, processes=lambda p: _orphan(p, card=5)),
    Scenario("63 MiB used are under the limit", cards={"gpu0": {"used": "63"}}),
    Scenario("persistence mode off is information", cards={"every": {"persistence": "0"}}),
    Scenario("at the software power cap is information", cards={"every": {"clocks": "4"}}),
    # Driver
    Scenario("the driver is not loaded", system={"nvmlInitWithFlags": "error 9"}, refuses=("gpu.driver",),
             code=ExitCode.UNFIT, says=("kernel driver is not loaded",)),
    Scenario("driver and library do not match", system={"nvmlInitWithFlags": "error 18"}, refuses=("gpu.driver",),
             code=ExitCode.UNFIT, says=("mismatch", "restart the machine")),
    Scenario("not permitted to ask", system={"nvmlInitWithFlags": "error 4"}, refuses=("gpu.driver",),
             code=ExitCode.PERMISSION, says=("Insufficient Permissions",)),
    Scenario("an unknown error of the driver", system={"nvmlInitWithFlags": "error 999"}, refuses=("gpu.driver",),
             code=ExitCode.UNFIT, says=("refuses to answer",)),
    Scenario("the first call never returns", system={"nvmlInitWithFlags": "hang"}, deadline_s=1,
             refuses=("gpu.driver",), code=ExitCode.UNFIT, says=("no answer within 1 s to nvmlInit",)),
    Scenario("a call on card 5 of 8 never returns", gpus=8, cards={"gpu5": {"nvmlDeviceGetRemappedRows": "hang"}},
             deadline_s=1, refuses=("gpu.driver",), code=ExitCode.UNFIT, says=("nvmlDeviceGetRemappedRows on GPU 5",)),
    Scenario("the library dies", cards={"gpu0": {"nvmlDeviceGetName": "die"}}, refuses=("gpu.driver",),
             code=ExitCode.UNFIT, says=("signal 6",)),
    Scenario("the driver knows no GPU, the bus shows one", gpus=0, bus=(PciCard("0000:3b:00.0", None),),
             refuses=("gpu.driver",), code=ExitCode.UNFIT, says=("knows no GPU", "0000:3b:00.0")),
    Scenario("the driver is too old for torch", system={"cuda": "12080"}, refuses=("gpu.driver_version",),
             code=ExitCode.UNFIT, says=("CUDA 12.8", "CUDA 13.0")),
    Scenario("the driver's minor version is below torch's", system={"cuda": "12060"}, torch=(12, 9)),
    Scenario("a driver from before R510: v1 memory, v2 lists", old_driver=True, warns=("gpu.memory",),
             says=("old memory query",)),
    Scenario("a driver from before R510 with a server up", old_driver=True, processes=_orphan,
             cards={"gpu0": {"used": "101000", "compute": "701:100900"}}, warns=(),
             refuses=("gpu.memory", "gpu.processes"), code=ExitCode.BUSY),
    # Lost cards, failed fields
    Scenario("a chosen card fell off the bus", gpus=8, server={"tp_size": 8},
             cards={"gpu3": {"nvmlDeviceGetHandleByIndex_v2": "error 15"}}, refuses=("gpu.lost",),
             code=ExitCode.UNFIT, says=("GPU 3", "GPU is lost")),
    Scenario("a card that is not used fell off the bus", gpus=8, variables={"CUDA_VISIBLE_DEVICES": "0,1"},
             cards={"gpu7": {"nvmlDeviceGetHandleByIndex_v2": "error 15"}}, server={"tp_size": 2}, warns=("gpu.lost",)),
    Scenario("a lost card shifts the indices of those after it", gpus=4, server={"tp_size": 2},
             variables={"CUDA_VISIBLE_DEVICES": "2,3"}, cards={"gpu0": {"nvmlDeviceGetHandleByIndex_v2": "error 15"}},
             refuses=("gpu.lost",), code=ExitCode.UNFIT),
    Scenario("the bus shows a card that the driver does not", gpus=1, warns=("gpu.lost",),
             bus=(PciCard("0000:1a:00.0", "nvidia"), PciCard("0000:1b:00.0", "nvidia")), says=("shows 2 cards",)),
    Scenario("ECC counters cannot be read", cards={"gpu0": {"nvmlDeviceGetTotalEccErrors": "error 999"}},
             refuses=("gpu.readable",), code=ExitCode.UNFIT, says=("ecc volatile",)),
    Scenario("the card requires a reset", cards={"gpu0": {"nvmlDeviceGetMemoryInfo_v2": "error 16"}},
             refuses=("gpu.readable",), code=ExitCode.UNFIT, says=("GPU requires re", "memory")),
    Scenario("the recovery action cannot be read", cards={"gpu0": {"recovery.error": "999"}},
             refuses=("gpu.readable",), code=ExitCode.UNFIT),
    Scenario("one card of eight has a field that fails", gpus=8, server={"tp_size": 8},
             cards={"gpu6": {"nvmlDeviceGetCurrPcieLinkWidth": "error 999"}}, refuses=("gpu.readable",),
             code=ExitCode.UNFIT, says=("GPU 6", "pcie width")),
    Scenario("a failed field of a card that is not ours", gpus=8, server={"tp_size": 4},
             cards={"gpu6": {"nvmlDeviceGetCurrPcieLinkWidth": "error 999"}}),
    Scenario("memory Not Supported on an ordinary card is unknown, not healthy",
             cards={"gpu0": {"nvmlDeviceGetMemoryInfo_v2": "error 3", "nvmlDeviceGetMemoryInfo": "error 3"}},
             refuses=("gpu.readable",), code=ExitCode.UNFIT, says=("none of the known",)),
    Scenario("process list Not Supported is unknown", refuses=("gpu.readable",), code=ExitCode.UNFIT,
             cards={"gpu0": {"nvmlDeviceGetComputeRunningProcesses_v3": "error 3"}}),
    # Busy
    Scenario("23627: an orphaned scheduler holds 101 GB", processes=_orphan,
             cards={"gpu0": {"used": "96300", "compute": "701:96200"}}, refuses=("gpu.memory", "gpu.processes"),
             code=ExitCode.BUSY, says=("PID 701 sglang::scheduler_TP0", "orphaned", "holders --terminate")),
    Scenario("eight busy cards, each named", gpus=8, server={"tp_size": 8},
             cards={f"gpu{i}": {"used": "90000", "compute": f"{700 + i}:89900"} for i in range(8)},
             processes=lambda p: [_orphan(p, 700 + i, i) for i in range(8)],
             refuses=("gpu.memory", "gpu.processes"), code=ExitCode.BUSY, says=("PID 707",)),
    Scenario("one of eight busy: also out of balance", gpus=8, server={"tp_size": 8},
             processes=lambda p: _orphan(p, card=2), cards={"gpu2": {"used": "90000", "compute": "701:89900"}},
             refuses=("gpu.memory", "gpu.processes", "gpu.balance"), code=ExitCode.BUSY, says=("GPU 2",)),
    Scenario("a CUDA program that is no SGLang", cards={"gpu0": {"used": "512", "compute": "900:510"}},
             processes=lambda p: p.add(900, "python train.py", parent=50, uid=0, files=nvidia(0)),
             refuses=("gpu.memory", "gpu.processes"), code=ExitCode.BUSY, says=("PID 900 python train.py", "510 MiB")),
    Scenario("nvidia-docker 1483: empty list, 7325 MiB used", cards={"gpu0": {"used": "7325"}},
             refuses=("gpu.memory",), code=ExitCode.BUSY, says=("7325 MiB", "outside this container")),
    Scenario("memory held by a process that NVML does not list", cards={"gpu0": {"used": "7325"}},
             processes=lambda p: p.add(901, "python hidden.py", files=nvidia(0)),
             refuses=("gpu.memory",), code=ExitCode.BUSY, says=("open in PID 901 python hidden.py",)),
    Scenario("VisEdit 5: a dead PID, the memory still held", cards={"gpu0": {"used": "9000", "compute": "999:8990"}},
             refuses=("gpu.memory", "gpu.processes"), code=ExitCode.BUSY, says=("PID 999 (no such process here",)),
    Scenario("a dead PID and no memory is still refused", cards={"gpu0": {"compute": "999:-"}},
             refuses=("gpu.processes",), code=ExitCode.BUSY, says=("? MiB",)),
    Scenario("the host's PID is another process's number here", cards={"gpu0": {"used": "9000", "compute": "950:8990"}},
             processes=lambda p: p.add(950, "sleep 1000"), refuses=("gpu.memory", "gpu.processes"), code=ExitCode.BUSY,
             says=("another PID namespace counts", "cannot be signalled from here")),
    Scenario("a process in a container is named with it", cards={"gpu0": {"used": "9000", "compute": "951:8990"}},
             processes=lambda p: p.add(951, "python -m vllm", files=nvidia(0), cgroup=CONTAINER),
             refuses=("gpu.memory", "gpu.processes"), code=ExitCode.BUSY, says=("container abababababab",)),
    Scenario("a process of a systemd unit is named with it", cards={"gpu0": {"used": "9000", "compute": "952:8990"}},
             processes=lambda p: p.add(952, "python -m x", files=nvidia(0), cgroup="/system.slice/llm.service"),
             refuses=("gpu.memory", "gpu.processes"), code=ExitCode.BUSY, says=("unit llm.service",)),
    Scenario("65 MiB used are over the limit", cards={"gpu0": {"used": "65"}}, refuses=("gpu.memory",),
             code=ExitCode.BUSY, says=("65 MiB in use, 64 MiB allowed",)),
    Scenario("the profile allows more", cards={"gpu0": {"used": "500"}}, profile={"max_used_mib": 512}),
    Scenario("a monitor has the card open and uses nothing",
             processes=lambda p: p.add(990, "nvidia-persistenced", files=nvidia(0))),
    # Graphics, MPS, compute mode
    Scenario("dynamo 1889: Xorg and gnome-shell, no allowance", processes=_desktop,
             cards={"gpu0": {"used": "371", "graphics": "801:207 802:164"}}, refuses=("gpu.memory", "gpu.graphics"),
             code=ExitCode.BUSY, says=("371 MiB", "Xorg", "graphics_mib = 371")),
    Scenario("dynamo 1889: Xorg and gnome-shell under the allowance", processes=_desktop, profile={"graphics_mib": 512},
             cards={"gpu0": {"used": "371", "graphics": "801:207 802:164"}}, warns=("gpu.graphics",)),
    Scenario("graphics under the allowance and something else", processes=_desktop, profile={"graphics_mib": 512},
             cards={"gpu0": {"used": "9371", "graphics": "801:207 802:164"}}, warns=("gpu.graphics",),
             refuses=("gpu.memory",), code=ExitCode.BUSY),
    Scenario("a program that computes and draws is no desktop", profile={"graphics_mib": 512},
             processes=lambda p: p.add(801, "blender", files=nvidia(0)),
             cards={"gpu0": {"used": "371", "graphics": "801:207", "compute": "801:207"}},
             refuses=("gpu.memory", "gpu.processes"), code=ExitCode.BUSY),
    Scenario("the MPS daemon runs", processes=lambda p: p.add(960, "nvidia-cuda-mps-server", files=nvidia(0)),
             cards={"gpu0": {"used": "30", "compute": "960:27"}}, warns=("gpu.mps",)),
    Scenario("an MPS client computes", processes=lambda p: p.add(961, "python x.py", files=nvidia(0)),
             cards={"gpu0": {"used": "3000", "mps": "961:2900"}}, warns=("gpu.mps",),
             refuses=("gpu.memory", "gpu.processes"), code=ExitCode.BUSY),
    Scenario("compute mode prohibited", cards={"gpu0": {"compute_mode": "2"}}, refuses=("gpu.compute_mode",),
             code=ExitCode.UNFIT, says=("-c DEFAULT",)),
    Scenario("exclusive process, tp 1", cards={"gpu0": {"compute_mode": "3"}}, warns=("gpu.compute_mode",)),
    Scenario("exclusive process, tp 2", gpus=2, server={"tp_size": 2}, cards={"every": {"compute_mode": "3"}},
             warns=("gpu.compute_mode",), says=("peer access",)),
    # Health
    Scenario("gpud 80: a row waits to be remapped", cards={"gpu0": {"remapped": "0 1 1 0"}},
             refuses=("gpu.remapped_rows",), code=ExitCode.UNFIT, says=("waits to be remapped",)),
    Scenario("a row could not be remapped, on one of eight", gpus=8, server={"tp_size": 8},
             cards={"gpu4": {"remapped": "0 8 0 1"}}, refuses=("gpu.remapped_rows",), code=ExitCode.UNFIT,
             says=("GPU 4", "replacement")),
    Scenario("rows that were remapped long ago are healthy", cards={"gpu0": {"remapped": "3 1 0 0"}}),
    Scenario("DCGM 263: recovery action reset", cards={"gpu0": {"recovery": "1"}}, refuses=("gpu.recovery",),
             code=ExitCode.UNFIT, says=("reset of the GPU",)),
    Scenario("recovery action restart", cards={"gpu0": {"recovery": "2"}}, refuses=("gpu.recovery",),
             code=ExitCode.UNFIT, says=("restart of the machine",)),
    Scenario("uncorrected ECC errors since the driver was loaded", cards={"gpu0": {"ecc_volatile": "2"}},
             warns=("gpu.ecc",), says=("2 uncorrected",)),
    Scenario("uncorrected ECC errors of the past alone", cards={"gpu0": {"ecc_aggregate": "2"}}),
    Scenario("Xid 79 in the kernel log", xids=(Xid("0000:1a:00", 79, 12.0, "GPU has fallen off the bus."),),
             warns=("gpu.xid",), says=("Xid 79",)),
    Scenario("an Xid of a card that is not ours", gpus=2, xids=(Xid("0000:1b:00", 79, 12.0, ""),)),
    Scenario("thermal slowdown", cards={"gpu0": {"clocks": "0x40", "temperature": "91"}}, warns=("gpu.clocks",),
             says=("91 °C", "hardware thermal slowdown")),
    Scenario("power brake", cards={"gpu0": {"clocks": "0x88"}}, warns=("gpu.clocks",), says=("power brake",)),
    Scenario("eight of sixteen lanes", cards={"gpu0": {"pcie_width": "8"}}, warns=("gpu.pcie",), says=("8 of its 16",)),
    Scenario("the fabric manager is not running", gpus=8, server={"tp_size": 8}, cards={"every": {"fabric": "1 0"}},
             refuses=("gpu.fabric",), code=ExitCode.UNFIT, says=("error 802",)),
    Scenario("the fabric is being joined", gpus=8, server={"tp_size": 8}, cards={"every": {"fabric": "2 0"}},
             refuses=("gpu.fabric",), code=ExitCode.BUSY),
    Scenario("joining the fabric failed", cards={"every": {"fabric": "3 999"}}, refuses=("gpu.fabric",),
             code=ExitCode.UNFIT),
    # MIG
    Scenario("MIG is on and the whole card was meant", cards={"gpu0": MIG_ON}, refuses=("gpu.mig",),
             code=ExitCode.UNFIT, says=("MIG on (2 devices)", MIG_0)),
    Scenario("a MIG device by its UUID", cards={"gpu0": MIG_ON}, variables={"CUDA_VISIBLE_DEVICES": MIG_0}),
    Scenario("a busy MIG device", cards={"gpu0": MIG_ON}, variables={"CUDA_VISIBLE_DEVICES": MIG_1},
             processes=_orphan, refuses=("gpu.memory", "gpu.processes"), code=ExitCode.BUSY, says=(MIG_1, "20000 MiB")),
    Scenario("a MIG device whose processes cannot be listed", cards={"gpu0": {**MIG_ON,
             "mig.nvmlDeviceGetComputeRunningProcesses_v3": "error 999"}}, variables={"CUDA_VISIBLE_DEVICES": MIG_0},
             refuses=("gpu.readable",), code=ExitCode.UNFIT, says=(f"compute processes of {MIG_0}",)),
    Scenario("a MIG device whose memory cannot be read", cards={"gpu0": {**MIG_ON,
             "mig.nvmlDeviceGetMemoryInfo_v2": "error 999"}}, variables={"CUDA_VISIBLE_DEVICES": MIG_0},
             refuses=("gpu.readable",), code=ExitCode.UNFIT, says=(f"memory of {MIG_0}",)),
    Scenario("a MIG device whose processes are Not Supported", cards={"gpu0": {**MIG_ON,
             "mig.nvmlDeviceGetComputeRunningProcesses_v3": "error 3"}}, variables={"CUDA_VISIBLE_DEVICES": MIG_0},
             refuses=("gpu.readable",), code=ExitCode.UNFIT, says=(f"compute processes of {MIG_0}",)),
    Scenario("two ranks on MIG devices", cards={"gpu0": MIG_ON}, variables={"CUDA_VISIBLE_DEVICES": f"{MIG_0},{MIG_1}"},
             server={"tp_size": 2}, refuses=("gpu.choice",), code=ExitCode.USAGE, says=("NCCL does not join",)),
    Scenario("MIG will be on after a reset", cards={"gpu0": {"mig": "0 1"}}, warns=("gpu.mig",)),
    # Unified memory
    Scenario("GB10: memory Not Supported, process list empty", cards={"every": {"name": "NVIDIA GB10",
             "nvmlDeviceGetMemoryInfo_v2": "error 3", "nvmlDeviceGetMemoryInfo": "error 3", "mig": None,
             "ecc": None, "fabric": None, "remapped": None}}),
    Scenario("GB10 with a server up", processes=_orphan, cards={"every": {"name": "NVIDIA GB10",
             "compute": "701:50000", "nvmlDeviceGetMemoryInfo_v2": "error 3", "nvmlDeviceGetMemoryInfo": "error 3"}},
             refuses=("gpu.processes",), code=ExitCode.BUSY, says=("PID 701",)),
    Scenario("GB10 whose process list cannot be read", cards={"every": {"name": "NVIDIA GB10",
             "nvmlDeviceGetComputeRunningProcesses_v3": "error 3",
             "nvmlDeviceGetMemoryInfo_v2": "error 3", "nvmlDeviceGetMemoryInfo": "error 3"}},
             refuses=("gpu.readable",), code=ExitCode.UNFIT),
    # Several cards
    Scenario("mixed models", gpus=2, server={"tp_size": 2}, cards={"gpu1": {"name": "NVIDIA H100 80GB HBM3"}},
             warns=("gpu.mixed",)),
    Scenario("mixed sizes are out of balance for good", gpus=2, server={"tp_size": 2}, warns=("gpu.mixed",),
             cards={"gpu1": {"name": "NVIDIA H100 80GB HBM3", "total": "81559"}}, refuses=("gpu.balance",),
             code=ExitCode.UNFIT, says=("below 90 %",)),
    Scenario("out of balance, SGLang's own check switched off", gpus=2, server={"tp_size": 2},
             variables={"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "false"}, profile={"max_used_mib": 60000},
             cards={"gpu1": {"used": "50000"}}, warns=("gpu.balance",)),
    Scenario("replicas need no balance", gpus=2, server={"dp_size": 2}, profile={"max_used_mib": 60000},
             cards={"gpu1": {"used": "50000"}}),
    Scenario("no peer access is information", gpus=8, server={"tp_size": 8}, cards={"every": {"p2p.read": "4",
             "p2p.nvlink": "5"}}, says=("28 of 28 pairs", "across sockets")),
    Scenario("PCIe and no NVLink is information", gpus=2, server={"tp_size": 2}, cards={"every": {"p2p.nvlink": "5"}},
             says=("joined by PCIe",)),
    # Choice
    Scenario("eight ranks on four cards", gpus=4, server={"tp_size": 8}, refuses=("gpu.choice",), code=ExitCode.USAGE,
             says=("tp_size 8 needs 8 GPUs", "4 are visible")),
    Scenario("vLLM 41848: UUID prefixes", gpus=8, server={"tp_size": 2},
             variables={"CUDA_VISIBLE_DEVICES": "GPU-a3,GPU-a5"}),
    Scenario("a prefix of two UUIDs", gpus=8, variables={"CUDA_VISIBLE_DEVICES": "GPU-a"}, refuses=("gpu.choice",),
             code=ExitCode.USAGE, says=("beginning of 8 UUIDs",)),
    Scenario("an index that is not there, CUDA would stop in silence", gpus=4, server={"tp_size": 2},
             variables={"CUDA_VISIBLE_DEVICES": "0,9,1"}, refuses=("gpu.choice",), code=ExitCode.USAGE,
             says=("there is no GPU 9",)),
    Scenario("ollama 7429: indices with mixed cards and no order set", gpus=2, warns=("gpu.choice",),
             variables={"CUDA_VISIBLE_DEVICES": "1"}, cards={"gpu0": {"name": "NVIDIA RTX 3080", "total": "10240"}},
             says=("PCI order",)),
)  # fmt: skip


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def _run(scenario: Scenario, proc: FakeProc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Report, Facts]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in fake_environment(
        tmp_path, scenario.gpus, scenario.system, scenario.old_driver, **scenario.cards
    ).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gpus_module, "read_xids", lambda: Reading.of(scenario.xids))
    monkeypatch.setattr(gpus_module, "installed_torch_cuda", lambda: scenario.torch)
    monkeypatch.setattr(gpus_module, "cards_on_bus", lambda: scenario.bus)
    scenario.processes(proc)
    asked = deployment(dict(scenario.profile), **scenario.server)
    gathered = gather_gpus(asked, {**os.environ, **scenario.variables}, root=proc.root, deadline_s=scenario.deadline_s)
    facts = Facts(asked, gpus=gathered)
    return run_checks(CHECKS, facts), facts


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])
def test_scenario(scenario: Scenario, proc: FakeProc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, _ = _run(scenario, proc, tmp_path, monkeypatch)
    said = "\n".join(f"{one.check}: {one.message} | {one.found} | {one.remedy}" for one in report.findings)
    refused = {outcome.check for outcome in report.outcomes if outcome.status is Status.FAIL}
    warned = {outcome.check for outcome in report.outcomes if outcome.status is Status.WARN}
    assert not [outcome for outcome in report.outcomes if outcome.status is Status.CRASHED], said
    assert (refused, warned) == (set(scenario.refuses), set(scenario.warns)), said
    assert exit_code(report) == scenario.code, said
    for part in scenario.says:
        assert part in said


def test_there_are_enough_scenarios() -> None:
    assert len(SCENARIOS) >= 40
    assert sum(scenario.gpus == 8 for scenario in SCENARIOS) >= 8
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)


def test_the_gate_is_fast_with_eight_cards(proc: FakeProc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, facts = _run(Scenario("eight", gpus=8, server={"tp_size": 8}), proc, tmp_path, monkeypatch)
    assert facts.gpus is not None
    assert len(facts.gpus.chosen) == 8
    assert facts.gpus.driver.seconds < 2.0


def test_several_ranks_get_indices_in_pci_order(
    proc: FakeProc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"CUDA_VISIBLE_DEVICES": f"{gpu_uuid(6)},GPU-a2"}
    scenario = Scenario("x", gpus=8, server={"tp_size": 2}, variables=variables)
    _, facts = _run(scenario, proc, tmp_path, monkeypatch)
    assert facts.gpus is not None
    assert facts.gpus.choice.environment == {"CUDA_VISIBLE_DEVICES": "6,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_a_machine_with_no_driver_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no libnvidia-ml.so.1 anywhere; a machine that has one runs the other tests against the fake."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a driver")
    report = run_checks(CHECKS, Facts(deployment(), gpus=gather_gpus(deployment())))
    (finding,) = report.findings
    assert exit_code(report) == ExitCode.UNFIT
    assert "there is no NVIDIA driver here" in finding.message
    assert {outcome.status for outcome in report.outcomes[1:]} == {Status.SKIPPED}


@pytest.mark.parametrize("asked", [deployment(device="cpu")])
def test_a_deployment_on_the_cpu_looks_at_no_gpu(asked: Any) -> None:
    assert gather_gpus(asked) is None
    report = run_checks(CHECKS, gather(asked, ("gpu",)))
    assert {outcome.status for outcome in report.outcomes} == {Status.SKIPPED}
    assert "runs on cpu" in (report.outcomes[0].reason or "")
