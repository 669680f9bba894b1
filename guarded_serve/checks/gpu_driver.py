"""Judges of the driver: it answers, it is new enough, no card is lost, every field could be read, the choice holds."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields
from typing import Any

from guarded_serve.checks.gpu_common import chosen, gpu_facts
from guarded_serve.checks.interface import Check, check
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.bag import Facts
from guarded_serve.facts.gpu import DriverTrouble, Gpu, Trouble
from guarded_serve.facts.gpus import GpuFacts
from guarded_serve.facts.reading import Reading, State
from guarded_serve.findings import Finding

_NO_PERMISSION = 4

_REMEDIES = {
    Trouble.NO_LIBRARY: "install the NVIDIA driver; in a container, start it with the GPUs (`--gpus all`); "
    "where there is to be none, `guarded-serve check --only profile,target,drafter,host` judges the rest",
    Trouble.NO_DRIVER: "load the kernel module (`modprobe nvidia`; `dmesg` says why it failed)",
    Trouble.MISMATCH: "the driver was updated while loaded: restart the machine, or unload and load the nvidia modules",
    Trouble.PERMISSION: "let this user read and write /dev/nvidiactl and /dev/nvidia*",
    Trouble.HUNG: "look at `dmesg` for Xid messages; a wedged driver usually needs a restart of the machine",
    Trouble.CRASHED: "run `nvidia-smi`: if it dies too, the driver's installation is broken",
    Trouble.FAILED: "run `nvidia-smi` and look at `dmesg`",
}


@check("gpu.driver", source="gpud 117; nvmlInit_v2 and the calls after it", exit_code=ExitCode.UNFIT)
def driver(self: Check, facts: Facts) -> Iterator[Finding]:
    """The NVIDIA driver answers within the deadline and knows at least one GPU."""
    found = gpu_facts(facts)
    trouble = found.driver.trouble
    if trouble is not None:
        yield self.error(
            _sentence(trouble) + _bus(found),
            expected="a driver that answers",
            found=trouble.text,
            where=trouble.asking,
            remedy=_REMEDIES[trouble.kind],
            exit_code=ExitCode.PERMISSION if trouble.kind is Trouble.PERMISSION else ExitCode.UNFIT,
        )
    elif not found.driver.gpus:
        yield self.error(
            "the NVIDIA driver answers but knows no GPU" + _bus(found),
            expected="at least one GPU",
            found="0",
            remedy="look at `nvidia-smi` and `dmesg`; in a container, start it with the GPUs (`--gpus all`)",
        )


def _sentence(trouble: DriverTrouble) -> str:
    if trouble.kind is Trouble.NO_LIBRARY:
        return "there is no NVIDIA driver here: libnvidia-ml.so.1 was not found, so nothing is known about any GPU"
    if trouble.kind is Trouble.NO_DRIVER:
        return "the NVIDIA kernel driver is not loaded, so nothing is known about any GPU"
    if trouble.kind is Trouble.HUNG:
        asked = f" to {trouble.asking}" if trouble.asking else ""
        return f"the NVIDIA driver gave {trouble.text}{asked}"
    if trouble.kind is Trouble.CRASHED:
        return f"asking the NVIDIA driver ended badly: {trouble.text}"
    return f"the NVIDIA driver refuses to answer: {trouble.text}"


def _bus(found: GpuFacts) -> str:
    if not found.on_bus:
        return ""
    cards = len(found.on_bus)
    return f" (the PCI bus shows {cards} NVIDIA card{'s' if cards > 1 else ''}: {found.on_bus[0].address}, ...)"


@check("gpu.driver_version", needs=("gpu.driver",), source="CUDA minor version compatibility", exit_code=ExitCode.UNFIT)
def driver_version(self: Check, facts: Facts) -> Iterator[Finding]:
    """The driver's CUDA version is not below what the installed torch was built for."""
    found = gpu_facts(facts)
    has, needs = found.driver.cuda, found.torch_cuda
    version = found.driver.version.value or "unknown"
    if has.value is None:
        if has.did_fail:
            yield self.error(f"driver {version} does not say its CUDA version: {has.error}", expected="a version")
        return
    if needs is None:
        yield self.info(
            f"driver {version} (CUDA {_dotted(has.value)}); torch for CUDA is not installed here to compare"
        )
        return
    if has.value[0] < needs[0]:
        yield self.error(
            f"driver {version} supports CUDA {_dotted(has.value)}; the installed torch was built for "
            f"CUDA {_dotted(needs)} and will not start on it",
            expected=f"CUDA {needs[0]}.0 or newer",
            found=_dotted(has.value),
            remedy="update the driver, or install torch and SGLang for the older CUDA",
        )
    elif has.value < needs:
        yield self.info(
            f"driver {version} supports CUDA {_dotted(has.value)}, torch was built for {_dotted(needs)}: this works "
            "within one major version, except for kernels that ship as PTX only"
        )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


@check("gpu.choice", needs=("gpu.driver",), source="vLLM 41848; ollama 7429; entrypoints/engine.py")
def choice(self: Check, facts: Facts) -> Iterator[Finding]:
    """Profile, CUDA_VISIBLE_DEVICES and SGLang's parallel sizes name GPUs that exist, one for each rank."""
    found = gpu_facts(facts).choice
    for problem in found.problems:
        yield self.error(
            problem.message,
            expected=problem.expected,
            found=problem.found,
            remedy=problem.remedy,
            exit_code=problem.exit_code,
        )
    for note in found.notes:
        yield self.warning(note, remedy="name the GPUs by UUID")


@check("gpu.lost", needs=("gpu.driver",), source="NVML_ERROR_GPU_IS_LOST", exit_code=ExitCode.UNFIT)
def lost(self: Check, facts: Facts) -> Iterator[Finding]:
    """No card has fallen off the bus."""
    found = gpu_facts(facts)
    used = {device.index for device in found.choice.visible}
    last = max((device.index for device in found.choice.chosen), default=-1)
    by_index = any(value.isdigit() for value in found.choice.environment.get("CUDA_VISIBLE_DEVICES", "").split(","))
    for gpu in found.driver.gpus:
        if gpu.lost is None:
            continue
        message = f"GPU {gpu.index} does not answer the driver any more: {gpu.lost}"
        remedy = "look at `dmesg` for Xid 79; a restart of the machine, or a reset by its vendor, brings it back"
        if gpu.index in used or (by_index and gpu.index < last):
            yield self.error(message, expected="a handle", found=gpu.lost, where=f"GPU {gpu.index}", remedy=remedy)
        else:
            yield self.warning(
                message + " (it is not used here)", found=gpu.lost, where=f"GPU {gpu.index}", remedy=remedy
            )
    owned = sum(card.kernel_driver == "nvidia" for card in found.on_bus)
    if owned > len(found.driver.gpus):
        yield self.warning(
            f"the PCI bus shows {owned} cards under the nvidia driver, which answers for {len(found.driver.gpus)}",
            expected=str(owned),
            found=str(len(found.driver.gpus)),
            remedy="look at `dmesg`; indices shift when a card is missing, so name the GPUs by UUID",
        )


@check("gpu.readable", needs=("gpu.driver", "gpu.choice"), source="gpud 80; DCGM 263", exit_code=ExitCode.UNFIT)
def readable(self: Check, facts: Facts) -> Iterator[Finding]:
    """Every field of every chosen GPU was read, or is Not Supported: a failed question is not a healthy answer."""
    uuids = {device.uuid for _, device in gpu_facts(facts).chosen if device.mig}
    for gpu in chosen(facts):
        failed = dict(_failures(gpu, uuids))
        if failed:
            yield self.error(
                f"{gpu.label}: the driver could not read {', '.join(failed)} ({next(iter(failed.values()))})",
                expected="a value, or Not Supported",
                found="; ".join(f"{name}: {text}" for name, text in failed.items()),
                where=gpu.uuid or gpu.label,
                remedy="look at `dmesg` for Xid messages; reset the GPU (`nvidia-smi -r`) or restart the machine",
            )
        for name, answer in (("memory", gpu.memory), ("compute processes", gpu.compute)):
            needed = name != "memory" or not gpu.unified_memory
            hidden_by_mig = gpu.mig_enabled and answer.code == _NO_PERMISSION
            if answer.state is State.NOT_SUPPORTED and needed and not hidden_by_mig:
                yield self.error(
                    f"{gpu.label}: the driver does not tell its {name} ({answer.error}), and it is none of the known "
                    "products with unified memory: whether it is empty is unknown",
                    expected="a value",
                    found=answer.error,
                    where=gpu.uuid,
                    remedy="update the driver; if this product has unified memory, ignore gpu.readable in the profile",
                )


def _failures(gpu: Gpu, mig_uuids: Collection[str]) -> Iterator[tuple[str, str]]:
    for name, answer in zip(("UUID", "name", "PCI address"), gpu.identity, strict=False):
        if answer.state is not State.VALUE:
            yield name, answer.error
    for one in fields(gpu):
        value = getattr(gpu, one.name)
        if isinstance(value, Reading) and value.did_fail:
            if gpu.mig_enabled and value.code == _NO_PERMISSION:
                continue  # the parent of MIG devices does not tell what they do
            yield one.name.replace("_", " "), value.error
    for mig in gpu.mig_devices:
        if mig.uuid in mig_uuids:
            # No MIG device has memory of the system's, so Not Supported is no answer either.
            asked: tuple[tuple[str, Reading[Any]], ...] = (("memory", mig.memory), ("compute processes", mig.compute))
            for what, told in asked:
                if told.state is not State.VALUE:
                    yield f"{what} of {mig.uuid}", told.error


CHECKS = (driver, driver_version, choice, lost, readable)
