"""What `--deep` reads: every number of the drafter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from guarded_serve.checkpoint.safetensors import Tensor
from guarded_serve.checkpoint.scan import DeepScan, Numbers
from guarded_serve.checkpoint.values import FLOATS
from guarded_serve.checks.interface import Check, Skip, check
from guarded_serve.checks.model_facts import drafter, drafter_config, drafter_weights, models
from guarded_serve.findings import Finding

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts

ENOUGH = 16384
"""Numbers that a matrix must have before its distribution says anything."""


def _scan(facts: Facts) -> DeepScan:
    drafter(facts)
    found = models(facts).deep
    if found is None:
        raise Skip("only `check --deep` reads every byte")
    return found


@check("drafter.numbers", needs=("drafter.files",), source="sglang 27883, 7477")
def numbers(self: Check, facts: Facts) -> Iterator[Finding]:
    """No number of the drafter is NaN or Inf (`--deep`)."""
    found, tensors = _scan(facts), drafter_weights(facts).tensors
    for sentence in found.unread:
        yield self.error(sentence, where=str(drafter_weights(facts).directory))
    for name, one in found.numbers.items():
        if one.nan or one.inf:
            kinds = " and ".join(f"{count} {kind}" for kind, count in (("NaN", one.nan), ("Inf", one.inf)) if count)
            yield self.error(
                f"{name} holds {kinds} among {tensors[name].count} numbers",
                expected="finite numbers",
                found=kinds,
                where=f"{tensors[name].path}: {name}",
                remedy="export the drafter again from a checkpoint before its training diverged",
            )
    floats = {name: one.dtype for name, one in tensors.items() if one.dtype.startswith(("F", "C")) and one.count}
    unscanned = sorted({dtype for name, dtype in floats.items() if name not in found.numbers})
    if unscanned and not found.unread:
        yield self.info(f"tensors of {', '.join(unscanned)} are not looked through for NaN and Inf")
    for file, digest in found.sha256.items():
        yield self.info(f"sha256 of {file}: {digest}")


@check(
    "drafter.constant",
    needs=("drafter.files",),
    source="sglang 27829: a tensor that nobody wrote; torch.zeros and torch.empty of an export",
)
def constant(self: Check, facts: Facts) -> Iterator[Finding]:
    """No matrix of the drafter is one number over and over, and no norm is all zero (`--deep`)."""
    found, tensors = _scan(facts), drafter_weights(facts).tensors
    for name, one in found.numbers.items():
        tensor = tensors[name]
        if one.constant is None or math.isnan(one.constant) or tensor.count < 2 or name.endswith("bias"):
            continue
        is_scale = "scale" in name.rpartition(".")[2]  # a quantizer's; one for all is no fault
        if (len(tensor.shape) >= 2 and not is_scale) or one.constant == 0:
            yield self.error(
                f"every number of {name} is {one.constant:g}",
                expected="trained numbers",
                found=f"{tensor.count} times {one.constant:g}",
                where=f"{tensor.path}: {name}",
                remedy="export the drafter again: this tensor was never written",
            )


@check(
    "drafter.untrained",
    needs=("drafter.numbers", "drafter.constant"),
    source="torch.nn.Linear: reset_parameters; transformers: initializer_range",
    remedy="make sure that the trained weights were exported",
)
def untrained(self: Check, facts: Facts) -> Iterator[Finding]:
    """The drafter's matrices do not look like a layer that was never trained (`--deep`)."""
    found, tensors = _scan(facts), drafter_weights(facts).tensors
    initial = drafter_config(facts).get("initializer_range", 0.02)
    deviation = initial if isinstance(initial, float) and 0 < initial < 1 else 0.02
    fresh = {}
    for name, one in found.numbers.items():
        if tensors[name].dtype not in FLOATS:
            continue  # what a quantizer's scale makes of the numbers is not in them
        if len(tensors[name].shape) == 2 and one.sampled >= min(ENOUGH, tensors[name].count) and one.constant is None:
            fresh[name] = _fresh(tensors[name], one, deviation)
    like = [f"{name} ({why})" for name, why in fresh.items() if why]
    if like:
        yield self.warning(
            f"{len(like)} of {len(fresh)} matrices look like a layer that was never trained: {', '.join(like)}",
            expected="trained numbers",
            found=f"{len(like)} fresh",
            where=str(drafter_weights(facts).directory),
            remedy="make sure that the trained weights were exported",
        )
    norms = [one for name, one in found.numbers.items() if len(tensors[name].shape) == 1 and "norm" in name]
    if len(norms) > 1 and all(one.constant == 1 for one in norms):
        yield self.warning(
            f"all {len(norms)} norms are exactly 1, as before any training",
            expected="trained numbers",
            found="1",
            where=str(drafter_weights(facts).directory),
        )


def _fresh(tensor: Tensor, one: Numbers, deviation: float) -> str | None:
    """Which initialisation the numbers look like, or None."""
    if tensor.count < ENOUGH:
        return None
    bound = 1 / math.sqrt(tensor.shape[1])
    if (
        abs(one.spread * math.sqrt(3) / bound - 1) < 0.03
        and abs(one.tails - 1.8) < 0.05
        and one.largest <= bound * 1.01
    ):
        return f"uniform up to {bound:.4f}, PyTorch's default"
    if abs(one.spread / deviation - 1) < 0.02 and abs(one.tails - 3) < 0.12:
        return f"normal with deviation {deviation:g}"
    return None


CHECKS = (numbers, constant, untrained)
