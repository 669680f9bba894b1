"""Judges of emptiness: memory decides, then the process lists. Busy may pass: exit 75, after the profile's wait.

An empty process list is not an empty GPU: in a container the list may be empty, or hold the host's PIDs.
"""

from __future__ import annotations

from collections.abc import Iterator

from guarded_serve.checks.gpu_common import chosen, gpu_facts, mib
from guarded_serve.checks.interface import Check, Skip, check
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.bag import Facts
from guarded_serve.facts.gpu import MIB, Gpu, GpuProcess, Memory
from guarded_serve.facts.gpus import GpuFacts
from guarded_serve.findings import Finding

V1_RESERVE_MIB = 1024
"""What a driver may keep for itself on an idle card: 645 MiB on an H200, 912 on an A100 (nvml-wrapper 57)."""
_STOP = "stop it, or let `guarded-serve holders --terminate` end what an earlier server left behind"
_NEEDS = ("gpu.driver", "gpu.choice")


@check("gpu.memory", needs=_NEEDS, source="nvidia-docker 1483; nvml-wrapper 57", exit_code=ExitCode.BUSY)
def memory(self: Check, facts: Facts) -> Iterator[Finding]:
    """No chosen GPU has more memory in use than the profile allows, whatever the process list says."""
    found = gpu_facts(facts)
    limit = facts.deployment.profile.gpus.max_used_mib * MIB
    for gpu, device in found.chosen:
        if device.mig:
            yield from _mig_memory(self, gpu, device.uuid, limit)
        elif gpu.memory.value is not None and not gpu.mig_enabled:
            yield from _card_memory(self, found, gpu, gpu.memory.value, facts)


def _card_memory(self: Check, found: GpuFacts, gpu: Gpu, seen: Memory, facts: Facts) -> Iterator[Finding]:
    settings = facts.deployment.profile.gpus
    allowed = settings.max_used_mib * MIB
    graphics = graphics_only(gpu)
    if graphics:
        known = [process.used for process in graphics]
        desktop = sum(used or 0 for used in known) if None not in known else settings.graphics_mib * MIB
        allowed += min(desktop, settings.graphics_mib * MIB)
    old_query = seen.reserved is None
    if old_query:
        allowed += V1_RESERVE_MIB * MIB
        yield self.warning(
            f"{gpu.label}: this driver knows only the old memory query, whose 'used' includes what the driver keeps; "
            f"{mib(seen.used)} in use is taken for empty up to {mib(allowed)}",
            where=gpu.uuid,
            remedy="update the driver to R510 or newer",
        )
    if seen.used > allowed:
        yield self.error(
            f"{gpu.label} is not empty: {mib(seen.used)} in use, {mib(allowed)} allowed; {_held_by(found, gpu)}",
            expected=f"at most {mib(allowed)} used",
            found=f"{mib(seen.used)} of {mib(seen.total)}",
            where=gpu.uuid,
            remedy=_STOP,
        )


def _mig_memory(self: Check, gpu: Gpu, uuid: str, limit: int) -> Iterator[Finding]:
    mig = next(one for one in gpu.mig_devices if one.uuid == uuid)
    if mig.memory.value is not None and mig.memory.value.used > limit:  # `gpu.readable` refuses one without a value
        yield self.error(
            f"{uuid} on {gpu.label} is not empty: {mib(mig.memory.value.used)} in use, at most {mib(limit)} allowed",
            expected=f"at most {mib(limit)} used",
            found=f"{mib(mig.memory.value.used)} of {mib(mig.memory.value.total)}",
            where=uuid,
            remedy=_STOP,
        )


def _held_by(found: GpuFacts, gpu: Gpu) -> str:
    """Who holds the memory, as far as anybody can tell from here."""
    listed = [holder.describe() for holder in found.holders.on(gpu.index)]
    if listed:
        return "held by " + " and ".join(listed)
    suspects = found.holders.suspects(gpu.minor.value if gpu.minor.value is not None else gpu.index)
    if suspects:
        names = " and ".join(holder.process.describe() for holder in suspects)
        return f"the driver lists no process; its device file is open in {names}"
    if found.holders.unreadable:
        return (
            f"the driver lists no process, and the open files of {found.holders.unreadable} processes may not be read "
            "by this user: run `sudo guarded-serve holders`"
        )
    return (
        "the driver lists no process and no process here has it open: it is held from outside this container or "
        "PID namespace, or by a process that is already dead"
    )


def graphics_only(gpu: Gpu) -> list[GpuProcess]:
    """Graphics processes that do not compute as well."""
    computing = {process.pid for process in gpu.compute.value or ()}
    return [process for process in gpu.graphics.value or () if process.pid not in computing]


@check("gpu.processes", needs=_NEEDS, source="23627; dynamo 1889", exit_code=ExitCode.BUSY)
def processes(self: Check, facts: Facts) -> Iterator[Finding]:
    """No process computes on a chosen GPU."""
    found = gpu_facts(facts)
    for gpu, device in found.chosen:
        if device.mig:
            mine = next(one for one in gpu.mig_devices if one.uuid == device.uuid)
            listed: tuple[GpuProcess, ...] = mine.compute.value or ()  # `gpu.readable` refuses a failed question
        else:
            listed = (gpu.compute.value or ()) + (gpu.mps.value or ())
        by_pid = {holder.process.pid: holder for holder in found.holders.holders}
        for pid in dict.fromkeys(process.pid for process in listed):
            holder = by_pid[pid]
            if holder.is_mps_server:
                continue
            yield self.error(
                f"{gpu.label} is in use: {holder.describe()}",
                expected="no compute process",
                found=f"PID {pid}",
                where=device.uuid,
                remedy=_remedy(holder.process.is_sglang, holder.seen_here),
            )


def _remedy(is_sglang: bool, seen_here: bool) -> str:
    if not seen_here:
        return "find it on the host or in the container that it lives in; it cannot be signalled from here"
    return _STOP if is_sglang else "stop it, or choose other GPUs"


@check("gpu.graphics", needs=_NEEDS, source="dynamo 1889: Xorg 207 MiB, gnome-shell 164", exit_code=ExitCode.BUSY)
def graphics(self: Check, facts: Facts) -> Iterator[Finding]:
    """Graphics processes stay under the profile's allowance."""
    allowance = facts.deployment.profile.gpus.graphics_mib * MIB
    found = gpu_facts(facts)
    by_pid = {holder.process.pid: holder for holder in found.holders.holders}
    for gpu in chosen(facts):
        desktop = graphics_only(gpu)
        if not desktop:
            continue
        total = sum(process.used or 0 for process in desktop)
        names = " and ".join(by_pid[process.pid].describe() for process in desktop)
        if total > allowance:
            yield self.error(
                f"{gpu.label}: graphics processes hold {mib(total)}, {mib(allowance)} allowed: {names}",
                expected=f"at most {mib(allowance)}",
                found=mib(total),
                where=gpu.uuid,
                remedy=f"end the desktop session, or set [gpus] graphics_mib = {-(-total // MIB)}",
            )
        else:
            yield self.warning(
                f"{gpu.label}: graphics processes hold {mib(total)} of the {mib(allowance)} allowed: {names}",
                found=mib(total),
                where=gpu.uuid,
            )


@check("gpu.mps", needs=_NEEDS, source="nvidia-cuda-mps-control(1)", exit_code=ExitCode.BUSY)
def mps(self: Check, facts: Facts) -> Iterator[Finding]:
    """No MPS daemon shares the chosen GPUs."""
    found = gpu_facts(facts)
    clients = [gpu for gpu in chosen(facts) if gpu.mps.value]
    servers = [holder for holder in found.holders.holders if holder.is_mps_server]
    if not clients and not servers:
        return
    who = servers[0].describe() if servers else f"clients on {', '.join(gpu.label for gpu in clients)}"
    yield self.warning(
        f"MPS is running ({who}): other programs can join these GPUs while the server runs",
        where=clients[0].uuid if clients else None,
        remedy="`echo quit | nvidia-cuda-mps-control` where nothing needs it",
    )


@check("gpu.unified_memory", needs=_NEEDS, source="GB10: no memory query", exit_code=ExitCode.BUSY)
def unified_memory(self: Check, facts: Facts) -> Iterator[Finding]:
    """On a product with unified memory, the system has room for the weights."""
    found = gpu_facts(facts)
    unified = [gpu for gpu in chosen(facts) if gpu.unified_memory]
    if not unified:
        raise Skip("the chosen GPUs have memory of their own")
    available, total, need = found.memory.available, found.memory.total, found.weights.per_rank
    if available is None or total is None:
        yield self.error(
            f"{unified[0].label} shares the system's memory, and /proc/meminfo does not tell how much is free",
            expected="MemAvailable",
            found="nothing",
            exit_code=ExitCode.UNFIT,
        )
    elif need > total:
        yield self.error(
            f"{unified[0].label} shares the system's {mib(total)}; the weights alone need {mib(need)}",
            expected=f"at least {mib(need)}",
            found=mib(total),
            exit_code=ExitCode.UNFIT,
        )
    elif need > available:
        yield self.error(
            f"{unified[0].label} shares the system's memory: {mib(available)} are available, "
            f"the weights alone need {mib(need)}",
            expected=f"at least {mib(need)} available",
            found=mib(available),
            remedy="stop what else uses memory",
        )
    else:
        yield self.info(
            f"{unified[0].label} shares the system's memory: {mib(available)} of {mib(total)} are available; "
            "the driver tells no memory of its own, so the process list alone says whether it is in use"
        )


CHECKS = (memory, processes, graphics, mps, unified_memory)
