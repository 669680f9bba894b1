"""Judges of the chosen cards together: alike, evenly free, large enough for the weights, joined well, tested."""

from __future__ import annotations

from collections.abc import Iterator

from guarded_serve.checks.gpu_common import chosen, gib, gpu_facts
from guarded_serve.checks.interface import Check, Skip, check
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.bag import Facts
from guarded_serve.facts.gpu import Gpu
from guarded_serve.facts.gpu_choice import Device
from guarded_serve.findings import Finding

_NEEDS = ("gpu.driver", "gpu.choice")
_BALANCE = 0.9  # distributed/bootstrap.py: _check_tp_memory_balance
_OK = 0
_ACROSS = {20: "several PCIe bridges", 30: "a PCIe host bridge", 40: "the host bridges of a NUMA node", 50: "sockets"}


@check("gpu.mixed", needs=_NEEDS, source="one slow card sets the pace of all", exit_code=ExitCode.UNFIT)
def mixed(self: Check, facts: Facts) -> Iterator[Finding]:
    """The chosen cards are of one model."""
    names = {gpu.name: gpu for gpu in chosen(facts)}
    if len(names) > 1:
        yield self.warning(
            f"the chosen GPUs are of {len(names)} models: {', '.join(names)}: the slowest sets the pace",
            expected="one model",
            found=", ".join(f"{gpu.index} {gpu.name}" for gpu in chosen(facts)),
            remedy="choose cards of one model in [gpus] devices",
        )


@check("gpu.balance", needs=_NEEDS, source="4233; bootstrap.py: _check_tp_memory_balance", exit_code=ExitCode.BUSY)
def balance(self: Check, facts: Facts) -> Iterator[Finding]:
    """With tensor parallelism, every card has at least 90 % of the free memory of the fullest-free one."""
    found = gpu_facts(facts)
    if int(facts.deployment.get("tp_size") or 1) < 2:
        raise Skip("no tensor parallelism")
    free = [(gpu, gpu.memory.value) for gpu in chosen(facts) if gpu.memory.value is not None]
    if len(free) < 2:
        raise Skip("the free memory of two cards is not known")
    (least, least_memory), (most, most_memory) = (
        min(free, key=lambda pair: pair[1].free),
        max(free, key=lambda pair: pair[1].free),
    )
    if least_memory.free >= most_memory.free * _BALANCE:
        return
    inherent = least_memory.usable < most_memory.usable * _BALANCE
    message = (
        f"{least.label} has {gib(least_memory.free)} free, {most.label} {gib(most_memory.free)}: below 90 %, "
        "SGLang refuses this after loading has begun"
    )
    evidence = {
        "expected": f"at least {gib(int(most_memory.free * _BALANCE))}",
        "found": gib(least_memory.free),
        "where": least.uuid,
        "remedy": "choose cards of one size" if inherent else "free the card, or choose another",
    }
    if found.balance_enforced:
        yield self.error(message, **evidence, exit_code=ExitCode.UNFIT if inherent else ExitCode.BUSY)
    else:
        yield self.warning(message.replace("refuses this", "would refuse this"), **evidence)


@check("gpu.weights", needs=_NEEDS, source="safetensors headers; a lower bound", exit_code=ExitCode.UNFIT)
def weights(self: Check, facts: Facts) -> Iterator[Finding]:
    """The weights of target and drafter fit into each card, by tensor parallelism, before anything is loaded."""
    need = gpu_facts(facts).weights
    if need.shrinks:
        raise Skip(f"{need.shrinks} changes how much memory the weights take")
    if not need.parts:
        raise Skip("; ".join(need.unknown) or "no weights were looked at")
    terms = " + ".join(f"{part.what} {gib(part.total)} / {part.ranks} = {gib(part.per_rank)}" for part in need.parts)
    fraction = facts.deployment.get("mem_fraction_static") if facts.deployment.is_set("mem_fraction_static") else None
    for gpu, device in gpu_facts(facts).chosen:
        usable = _usable(gpu, device)
        if usable is None:
            continue
        limit = usable if fraction is None else int(usable * float(fraction))
        if need.per_rank > limit:
            share = "" if fraction is None else f" (mem_fraction_static {fraction} of {gib(usable)})"
            yield self.error(
                f"the weights alone need {gib(need.per_rank)} on {gpu.label}, which has {gib(limit)}{share}: {terms}",
                expected=f"at least {gib(need.per_rank)}, and room for the KV cache besides",
                found=gib(limit),
                where=device.uuid,
                remedy="raise --tp-size, use a quantized checkpoint, or larger cards"
                + ("" if fraction is None else ", or raise --mem-fraction-static"),
            )
    missing = f" (not counted: {'; '.join(need.unknown)})" if need.unknown else ""
    yield self.info(f"the weights need at least {gib(need.per_rank)} on each GPU: {terms}{missing}")


def _usable(gpu: Gpu, device: Device) -> int | None:
    if device.mig:
        mig = next(one for one in gpu.mig_devices if one.uuid == device.uuid)
        return mig.memory.value.usable if mig.memory.value else None
    return gpu.memory.value.usable if gpu.memory.value and not gpu.unified_memory else None


@check("gpu.peers", needs=_NEEDS, source="nvmlDeviceGetP2PStatus", exit_code=ExitCode.UNFIT)
def peers(self: Check, facts: Facts) -> Iterator[Finding]:
    """How the chosen cards reach one another: NVLink, PCIe peer access, or through the host's memory."""
    found = gpu_facts(facts)
    indices = {gpu.index for gpu in chosen(facts)}
    pairs = [peer for peer in found.driver.peers if indices.issuperset(peer.pair)]
    if not pairs:
        raise Skip("one GPU")
    without = [peer for peer in pairs if peer.read.value not in (None, _OK)]
    nvlink = [peer for peer in pairs if peer.nvlink.value == _OK]
    if without:
        first = without[0]
        across = _ACROSS.get(first.ancestor.value or 0)
        yield self.info(
            f"{len(without)} of {len(pairs)} pairs of GPUs have no peer access (GPU {first.pair[0]} and "
            f"{first.pair[1]}{f', across {across}' if across else ''}): all-reduce goes through the host's memory, and "
            "a verify step waits for two in every layer",
            remedy="look at IOMMU and ACS settings; [gpus] selftest = true measures what it costs",
        )
    elif len(nvlink) < len(pairs):
        yield self.info(
            f"{len(pairs) - len(nvlink)} of {len(pairs)} pairs of GPUs are joined by PCIe, not NVLink: all-reduce is "
            "slower, and a verify step waits for two in every layer",
            remedy="[gpus] selftest = true measures what it costs",
        )
    else:
        yield self.info(f"all {len(pairs)} pairs of GPUs are joined by NVLink")


@check("gpu.selftest", needs=_NEEDS, source="[gpus] selftest", exit_code=ExitCode.UNFIT)
def selftest(self: Check, facts: Facts) -> Iterator[Finding]:
    """The chosen cards multiply a matrix right and all-reduce right, within the deadline."""
    test = gpu_facts(facts).selftest
    if test is None:
        asked = facts.deployment.profile.gpus.selftest
        raise Skip("the other checks did not pass" if asked else "not asked for ([gpus] selftest)")
    remedy = "run `nvidia-smi`, look at `dmesg`, and take the card out of [gpus] devices"
    if test.error:
        yield self.error(f"the self-test failed: {test.error}", expected="a result", found=test.error, remedy=remedy)
    for device in test.devices:
        if device.error:
            yield self.error(
                f"the self-test failed on device {device.place}: {device.error}",
                expected="a right product",
                found=device.error,
                where=f"device {device.place}",
                remedy=remedy,
            )
    reduce = test.all_reduce
    if reduce is None:
        return
    if reduce.error:
        yield self.error(
            f"all-reduce over {reduce.ranks} GPUs failed: {reduce.error}",
            expected="the right sum",
            found=reduce.error,
            remedy="set NCCL_DEBUG=INFO in [env]; NCCL_P2P_DISABLE=1 shows whether peer access is at fault",
        )
    elif reduce.us is not None:
        step = "" if test.verify_ms is None else f"; {test.verify_ms:.2f} ms of a verify step of {test.layers} layers"
        yield self.info(f"all-reduce of {reduce.size} bytes over {reduce.ranks} GPUs takes {reduce.us:.0f} µs{step}")


CHECKS = (mixed, balance, weights, peers, selftest)
