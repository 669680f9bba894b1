"""Judges of a card's health and settings. What a restart of the server cannot mend is unfit: exit 71."""

from __future__ import annotations

from collections.abc import Iterator

from guarded_serve.checks.gpu_common import chosen, gpu_facts
from guarded_serve.checks.interface import Check, Skip, check
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.bag import Facts
from guarded_serve.facts.gpu_xid import short_pci
from guarded_serve.findings import Finding

_NEEDS = ("gpu.driver", "gpu.choice")
_PROHIBITED, _EXCLUSIVE = 2, (1, 3)
_RECOVERY = {
    1: "reset of the GPU",
    2: "restart of the machine",
    3: "draining of its peer-to-peer traffic",
    4: "draining, then a reset",
    5: "recovery of the IMEX domain",
    6: "reset of its bus",
    7: "restart of the whole system",
}
_SLOWDOWNS = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_POWER_CAP = 0x4
_FABRIC_NOT_STARTED, _FABRIC_IN_PROGRESS, _FABRIC_DONE = 1, 2, 3
_XIDS = {
    48: "double-bit ECC error",
    63: "row remap recorded",
    64: "row remap failed",
    74: "NVLink error",
    79: "the card fell off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP did not answer",
    120: "GSP error",
    140: "unrecovered ECC error",
    154: "recovery action changed",
}


@check("gpu.compute_mode", needs=_NEEDS, source="nvmlComputeMode_t", exit_code=ExitCode.UNFIT)
def compute_mode(self: Check, facts: Facts) -> Iterator[Finding]:
    """The compute mode lets the server, and what SGLang starts beside it, use the card."""
    ranks = len(gpu_facts(facts).choice.ranks)
    for gpu in chosen(facts):
        mode = gpu.compute_mode.value
        if mode == _PROHIBITED:
            yield self.error(
                f"{gpu.label}: the compute mode prohibits every CUDA program",
                expected="Default",
                found="Prohibited",
                where=gpu.uuid,
                remedy=f"nvidia-smi -i {gpu.index} -c DEFAULT",
            )
        elif mode in _EXCLUSIVE:
            why = (
                "SGLang's test of peer access opens each card from a second process, which fails"
                if ranks > 1
                else "one process alone can use it; a profiler or a second engine beside the server cannot"
            )
            yield self.warning(
                f"{gpu.label}: exclusive-process mode: {why}",
                expected="Default",
                found="Exclusive_Process",
                where=gpu.uuid,
                remedy=f"nvidia-smi -i {gpu.index} -c DEFAULT",
            )


@check("gpu.mig", needs=_NEEDS, source="CUDA shows one MIG device a process", exit_code=ExitCode.UNFIT)
def mig(self: Check, facts: Facts) -> Iterator[Finding]:
    """MIG is as meant: a whole card has it off, a MIG device is named as one."""
    for gpu, device in gpu_facts(facts).chosen:
        mode = gpu.mig_mode.value
        if mode is None:
            continue
        if mode[0] and not device.mig:
            yield self.error(
                f"{gpu.label} has MIG on ({len(gpu.mig_devices)} devices): as a whole it cannot be used",
                expected="MIG off, or a MIG device by its UUID",
                found=", ".join(one.uuid for one in gpu.mig_devices) or "no MIG device",
                where=gpu.uuid,
                remedy=f"name a MIG device in [gpus] devices, or `nvidia-smi -i {gpu.index} -mig 0`",
            )
        if mode[0] != mode[1]:
            yield self.warning(
                f"{gpu.label}: MIG will be {'on' if mode[1] else 'off'} after the next reset, it is "
                f"{'on' if mode[0] else 'off'} now",
                expected="no change pending",
                found=f"{mode[0]} now, {mode[1]} pending",
                where=gpu.uuid,
                remedy=f"nvidia-smi -i {gpu.index} -r",
            )


@check("gpu.remapped_rows", needs=_NEEDS, source="gpud 80; nvmlDeviceGetRemappedRows", exit_code=ExitCode.UNFIT)
def remapped_rows(self: Check, facts: Facts) -> Iterator[Finding]:
    """No row of memory waits to be remapped, and no remap failed."""
    for gpu in chosen(facts):
        rows = gpu.remapped_rows.value
        if rows is None:
            continue
        counts = f"{rows.correctable} after correctable errors, {rows.uncorrectable} after uncorrectable ones"
        if rows.failed:
            yield self.error(
                f"{gpu.label}: a row of memory could not be remapped ({counts}): the card is due for replacement",
                expected="no failed remap",
                found=counts,
                where=gpu.uuid,
                remedy="take the card out of service and return it",
            )
        if rows.pending:
            yield self.error(
                f"{gpu.label}: a row of memory waits to be remapped ({counts}); until a reset it is still in use",
                expected="no pending remap",
                found=counts,
                where=gpu.uuid,
                remedy=f"nvidia-smi -i {gpu.index} -r, or restart the machine",
            )


@check("gpu.recovery", needs=_NEEDS, source="NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", exit_code=ExitCode.UNFIT)
def recovery(self: Check, facts: Facts) -> Iterator[Finding]:
    """The driver asks for no recovery."""
    for gpu in chosen(facts):
        action = gpu.recovery_action.value
        if action:
            wanted = _RECOVERY.get(action, f"recovery action {action}")
            yield self.error(
                f"{gpu.label}: the driver asks for a {wanted} before the card is used again",
                expected="None",
                found=wanted,
                where=gpu.uuid,
                remedy=f"do that ({wanted}); `nvidia-smi -q -d RECOVERY_ACTION` shows it",
            )


@check("gpu.ecc", needs=_NEEDS, source="nvmlDeviceGetTotalEccErrors", exit_code=ExitCode.UNFIT)
def ecc(self: Check, facts: Facts) -> Iterator[Finding]:
    """No uncorrected memory error since the driver was loaded."""
    for gpu in chosen(facts):
        errors = gpu.ecc_volatile.value
        if errors:
            yield self.warning(
                f"{gpu.label}: {errors} uncorrected memory error(s) since the driver was loaded",
                expected="0",
                found=f"{errors}; {gpu.ecc_aggregate.value} in the card's life",
                where=gpu.uuid,
                remedy=f"reset it (nvidia-smi -i {gpu.index} -r) and watch it; return it if they come back",
            )


@check("gpu.xid", needs=_NEEDS, source="NVRM messages in the kernel log", exit_code=ExitCode.UNFIT)
def xid(self: Check, facts: Facts) -> Iterator[Finding]:
    """The kernel log holds no Xid of a chosen GPU since boot."""
    found = gpu_facts(facts)
    if found.xids.value is None:
        raise Skip(f"the kernel log may not be read ({found.xids.error})")
    for gpu in chosen(facts):
        mine = [one for one in found.xids.value if gpu.pci and one.pci == short_pci(gpu.pci)]
        if mine:
            last = mine[-1]
            meaning = _XIDS.get(last.number)
            yield self.warning(
                f"{gpu.label}: the driver logged Xid {last.number}"
                + (f" ({meaning})" if meaning else "")
                + f" {last.seconds:.0f} s after boot; {len(mine)} in all",
                expected="no Xid",
                found=last.text or f"Xid {last.number}",
                where=gpu.uuid,
                remedy="`dmesg | grep Xid` shows all; NVIDIA's Xid table says which of them need a reset",
            )


@check("gpu.clocks", needs=_NEEDS, source="nvmlDeviceGetCurrentClocksEventReasons", exit_code=ExitCode.UNFIT)
def clocks(self: Check, facts: Facts) -> Iterator[Finding]:
    """No card is slowed by heat or a power brake."""
    for gpu in chosen(facts):
        reasons = gpu.clocks_reasons.value or 0
        slow = [text for bit, text in _SLOWDOWNS.items() if reasons & bit]
        heat = f" at {gpu.temperature.value} °C" if gpu.temperature.value is not None else ""
        if slow:
            yield self.warning(
                f"{gpu.label} is slowed down{heat}: {', '.join(slow)}",
                expected="full clocks",
                found=", ".join(slow),
                where=gpu.uuid,
                remedy="look at the cooling, the power cables and the power supply",
            )
        elif reasons & _POWER_CAP:
            yield self.info(f"{gpu.label} is at its software power cap{heat}", where=gpu.uuid)


@check("gpu.pcie", needs=_NEEDS, source="link width; the generation drops when idle", exit_code=ExitCode.UNFIT)
def pcie(self: Check, facts: Facts) -> Iterator[Finding]:
    """Each card has all its PCIe lanes."""
    for gpu in chosen(facts):
        now, most = gpu.pcie_width.value, gpu.pcie_width_max.value
        if now and most and now < most:
            yield self.warning(
                f"{gpu.label} has {now} of its {most} PCIe lanes: loading weights and all-reduce over PCIe are slower",
                expected=f"x{most}",
                found=f"x{now}",
                where=gpu.uuid,
                remedy="seat the card again, or look which slot and riser it is in",
            )


@check("gpu.fabric", needs=_NEEDS, source="nvmlDeviceGetGpuFabricInfo; CUDA error 802", exit_code=ExitCode.UNFIT)
def fabric(self: Check, facts: Facts) -> Iterator[Finding]:
    """On an NVSwitch machine, each card has joined the fabric: before that CUDA does not start at all."""
    for gpu in chosen(facts):
        if gpu.fabric.value is None:
            continue
        state, status = gpu.fabric.value
        if state == _FABRIC_IN_PROGRESS:
            yield self.error(
                f"{gpu.label} is still joining the NVLink fabric",
                expected="completed",
                found="in progress",
                where=gpu.uuid,
                remedy="wait; if it stays so: `systemctl status nvidia-fabricmanager`",
                exit_code=ExitCode.BUSY,
            )
        elif state == _FABRIC_NOT_STARTED or (state == _FABRIC_DONE and status != 0):
            found = "not started" if state == _FABRIC_NOT_STARTED else f"failed with NVML error {status}"
            yield self.error(
                f"{gpu.label} has not joined the NVLink fabric ({found}): CUDA fails with error 802 until it has",
                expected="completed",
                found=found,
                where=gpu.uuid,
                remedy="start nvidia-fabricmanager, of exactly the driver's version",
            )


@check("gpu.persistence", needs=_NEEDS, source="nvidia-persistenced(1)", exit_code=ExitCode.UNFIT)
def persistence(self: Check, facts: Facts) -> Iterator[Finding]:
    """Persistence mode is on, so that the driver stays loaded between runs."""
    off = [gpu for gpu in chosen(facts) if gpu.persistence.value == 0]
    if off:
        yield self.info(
            f"persistence mode is off on {', '.join(f'GPU {gpu.index}' for gpu in off)}: each start loads the driver "
            "anew, 1 to 3 s a card",
            remedy="start nvidia-persistenced",
        )


CHECKS = (compute_mode, mig, remapped_rows, recovery, ecc, xid, clocks, pcie, fabric, persistence)
