"""How much GPU memory the weights need at least, from the safetensors headers.

A lower bound, so that what it refuses cannot fit: every byte is taken as shared out evenly over tensor and pipeline
parallel ranks (norms and routers are not), a float wider than the served dtype is counted as that dtype, and layers
beyond the config's number (prediction layers, which the target does not load) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guarded_serve.checkpoint.files import Unreadable, read_json
from guarded_serve.checkpoint.safetensors import Tensor
from guarded_serve.checkpoint.weights import read_weights

if TYPE_CHECKING:
    from guarded_serve.facts.model import ModelFacts
    from guarded_serve.profile.deployment import Deployment

_WIDE_FLOATS = ("F32", "F64")
_HALF_BYTES = 2
_CONFIG_LIMIT = 2**22
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


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
    for name in ("quantization", "torchao_config", "cpu_offload_gb", "load_format", "offload_group_size"):
        value = deployment.get(name)
        if value in (None, "", 0, 0.0, "auto", "safetensors", -1):
            continue
        if name == "quantization" and "quantization_config" in model_config(Path(str(deployment.get("model_path")))):
            continue  # the checkpoint is quantized already: its size on disk is its size on the card
        return WeightNeed(shrinks=f"--{name.replace('_', '-')} {value}")
    tp, pp = int(deployment.get("tp_size") or 1), int(deployment.get("pp_size") or 1)
    parts, unknown = [], []
    known = {"target": model.target, "drafter": model.drafter} if model is not None else {}
    wanted = [("target", deployment.get("model_path"), tp * pp)]
    if deployment.get("speculative_algorithm") and deployment.get("speculative_draft_model_path"):
        wanted.append(("drafter", deployment.get("speculative_draft_model_path"), tp))
    for what, path, ranks in wanted:
        found = known.get(what)
        folder = found.directory if found is not None and found.directory else Path(str(path)).expanduser()
        if path is None or not folder.is_dir():
            unknown.append(f"the {what}'s folder is not on this disk: {path}")
            continue
        weights = found.weights if found is not None else read_weights(folder)
        if weights is None or not weights.tensors:
            unknown.append(f"no safetensors headers could be read in {folder}")
            continue
        served = str(deployment.get("dtype") or "auto")
        loaded = _loaded(weights.tensors.values(), folder)
        parts.append(Part(what, str(folder), _bytes(loaded, keep_wide="32" in served), ranks))
    return WeightNeed(tuple(parts), tuple(unknown))


def model_config(folder: Path) -> dict[str, Any]:
    """A folder's config.json as it stands, or nothing where it cannot be read."""
    try:
        raw = read_json(folder / "config.json", limit=_CONFIG_LIMIT)
    except Unreadable:
        return {}
    return raw if isinstance(raw, dict) else {}


def _loaded(tensors: Iterable[Tensor], folder: Path) -> Iterator[Tensor]:
    config = model_config(folder)
    nested = config.get("text_config")
    layers = config.get("num_hidden_layers") or (nested.get("num_hidden_layers") if isinstance(nested, dict) else None)
    for tensor in tensors:
        match = _LAYER.search(tensor.name)
        if not (match and isinstance(layers, int) and int(match.group(1)) >= layers):
            yield tensor


def _bytes(tensors: Iterable[Tensor], *, keep_wide: bool) -> int:
    return sum(
        tensor.count * _HALF_BYTES if tensor.dtype in _WIDE_FLOATS and not keep_wide else tensor.nbytes
        for tensor in tensors
    )
