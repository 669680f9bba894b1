"""What the GPU judges share."""

from __future__ import annotations

from collections.abc import Iterator

from guarded_serve.checks.interface import Skip
from guarded_serve.facts.bag import Facts
from guarded_serve.facts.gpu import MIB, Gpu
from guarded_serve.facts.gpus import GpuFacts

GIB = 2**30


def gpu_facts(facts: Facts) -> GpuFacts:
    """The GPUs; skips where the deployment does not run on CUDA or nobody looked."""
    if facts.other_device:
        raise Skip(f"the deployment runs on {facts.other_device}, not on NVIDIA GPUs")
    if facts.gpus is None:
        raise Skip("the GPUs were not looked at")
    return facts.gpus


def chosen(facts: Facts) -> Iterator[Gpu]:
    """The cards that the ranks use, each once, less those that are lost (`gpu.lost` has those)."""
    seen = set()
    for gpu, _ in gpu_facts(facts).chosen:
        if gpu.index not in seen and gpu.lost is None:
            seen.add(gpu.index)
            yield gpu


def mib(size: int) -> str:
    """Bytes as whole MiB."""
    return f"{size // MIB} MiB"


def gib(size: int) -> str:
    """Bytes as GiB with one decimal."""
    return f"{size / GIB:.1f} GiB"
