"""How much GPU memory the weights need at least, from the safetensors headers.

A lower bound, so that what it refuses cannot fit: every byte is taken as shared out evenly over tensor and pipeline
parallel ranks (norms and routers are not), a float wider than the served dtype is counted as that dtype, and layers
beyond the config's number (prediction layers, which the target does not load) are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from guarded_serve.checkpoint.config import ModelConfig, read_config
from guarded_serve.checkpoint.safetensors import DTYPE_BITS, Sizes
from guarded_serve.checkpoint.weights import read_weights

if TYPE_CHECKING:
    from guarded_serve.facts.model import ModelFacts
    from guarded_serve.profile.deployment import Deployment

_WIDE_FLOATS = ("F32", "F64")
_HALF_BITS = 16


@dataclass(frozen=True)
class Part:
    """One model's weights. ``total`` bytes in all, ``per_rank`` bytes on each GPU."""

    what: str
    path: str
    total: int
    ranks: int

    @property
    def per_rank(self) -> int:
        """Bytes on each of the ranks, at the very least."""
        return -(-self.total // self.ranks)


@dataclass(frozen=True)
class WeightNeed:
    """What must fit on each GPU. ``unknown`` says why a part is missing from the sum."""

    parts: tuple[Part, ...] = ()
    unknown: tuple[str, ...] = ()
    shrinks: str | None = None  # a setting that makes the weights smaller than on disk, so nothing can be said

    @property
    def per_rank(self) -> int:
        """Bytes."""
        return sum(part.per_rank for part in self.parts)


def weight_need(deployment: Deployment, model: ModelFacts | None = None) -> WeightNeed:
    """From the headers of target and drafter: ``model``'s where they were read already, else from their folders.

    A hub id that nobody resolved is unknown, not fetched for this.
    """
    tp, pp = int(deployment.get("tp_size") or 1), int(deployment.get("pp_size") or 1)
    known = {"target": model.target, "drafter": model.drafter} if model is not None else {}
    wanted = [("target", deployment.get("model_path"), tp * pp)]
    if deployment.get("speculative_algorithm") and deployment.get("speculative_draft_model_path"):
        wanted.append(("drafter", deployment.get("speculative_draft_model_path"), tp))
    parts, unknown = [], []
    for what, path, ranks in wanted:
        found = known.get(what)
        folder = found.directory if found is not None and found.directory else Path(str(path)).expanduser()
        config = found.config if found is not None and found.config is not None else read_config(folder)
        if what == "target":
            shrinks = _shrinks(deployment, config)
            if shrinks is not None:
                return WeightNeed(shrinks=shrinks)
        if path is None or not folder.is_dir():
            unknown.append(f"the {what}'s folder is not on this disk: {path}")
            continue
        weights = found.weights if found is not None else read_weights(folder, ())
        if weights is None or not weights.sizes:
            unknown.append(f"no safetensors headers could be read in {folder}")
            continue
        served = str(deployment.get("dtype") or "auto")
        layers = config.integer("num_hidden_layers")
        parts.append(Part(what, str(folder), _bytes(weights.sizes, layers, keep_wide="32" in served), ranks))
    return WeightNeed(tuple(parts), tuple(unknown))


def _shrinks(deployment: Deployment, target: ModelConfig) -> str | None:
    """A setting that makes the weights smaller than on disk."""
    for name in ("quantization", "torchao_config", "cpu_offload_gb", "load_format", "offload_group_size"):
        value = deployment.get(name)
        if value in (None, "", 0, 0.0, "auto", "safetensors", -1):
            continue
        if name == "quantization" and target.quantized:
            continue  # the checkpoint is quantized already: its size on disk is its size on the card
        return f"--{name.replace('_', '-')} {value}"
    return None


def _bytes(sizes: Sizes, layers: int | None, *, keep_wide: bool) -> int:
    return sum(
        size * _HALF_BITS // DTYPE_BITS[dtype] if dtype in _WIDE_FLOATS and not keep_wide else size
        for (dtype, layer), size in sizes.items()
        if layers is None or layer is None or layer < layers
    )
