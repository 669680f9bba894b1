"""The drafter's tensors against the parameters of its class: nothing unfilled, nothing dropped, every shape right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from guarded_serve.checkpoint.safetensors import Tensor
from guarded_serve.checks.interface import Check, Skip, check
from guarded_serve.checks.model_facts import drafter_config, drafter_weights, head
from guarded_serve.engine_rules.drafter import Slot
from guarded_serve.findings import Finding

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts

FLOATS = ("F16", "BF16", "F32", "F64")
_HARMLESS = re.compile(r"rotary_emb\.(inv_freq|cos_cached|sin_cached)$|(^|\.)_extra_state$")
_LAYER = re.compile(r"(?:^|\.)(?:layers\.(\d+)|midlayer)\.")


def _unquantized(facts: Facts) -> None:
    if drafter_config(facts).quantized:
        raise Skip("the drafter is quantized: its tensors are left to the load gate")


@check("drafter.layers", needs=("drafter.builds",), source="SpecForge 129: num_hidden_layers copied from the target")
def layers(self: Check, facts: Facts) -> Iterator[Finding]:
    """num_hidden_layers is the number of layers that the file holds."""
    expected, _ = head(facts)
    weights = drafter_weights(facts)
    held = {
        int(found[1] or 0) for name in weights.tensors if (found := _LAYER.search(name)) and int(found[1] or 0) < 4096
    }
    configured = expected.dimensions.layers
    said = drafter_config(facts).flat.integer("num_hidden_layers") or configured
    if held and held != set(range(configured)):
        what = f"layers {', '.join(map(str, sorted(held)))}" if held != {0} else "one layer"
        lacks = "the other layers would keep whatever their memory held"
        yield self.error(
            f"config.json says num_hidden_layers {said}, the file holds {what}: "
            f"{lacks if len(held) < configured else 'the rest would be dropped'}",
            expected=str(len(held)),
            found=str(said),
            where=str(drafter_config(facts).path),
            remedy=f'set "num_hidden_layers": {max(held) + 1}',
        )


@check(
    "drafter.parameters",
    needs=("drafter.builds", "drafter.layers", "drafter.files"),
    source="sglang 27829, speculators 1114; load_weights of the class: nothing there checks it",
)
def parameters(self: Check, facts: Facts) -> Iterator[Finding]:
    """Every parameter that the drafter's forward pass reads is filled from the file."""
    expected, loading = head(facts)
    _unquantized(facts)
    unfilled = [slot for slot in expected.slots if slot.read and slot.key not in loading.filled]
    if not unfilled:
        return
    names = [slot.usual_name for slot in unfilled]
    verb = "is" if len(names) == 1 else "are"
    yield self.error(
        f"{', '.join(names)} {verb} not in the file: SGLang would leave them untrained and say nothing",
        expected="; ".join(f"{slot.usual_name} {list(slot.shape)}" for slot in unfilled),
        found=_near(unfilled, loading.dropped),
        where=str(drafter_weights(facts).directory),
        remedy=_missing_remedy(unfilled),
    )


def _missing_remedy(unfilled: list[Slot]) -> str:
    names = {slot.usual_name for slot in unfilled}
    if names == {"lm_head.weight"}:
        return 'export lm_head with the drafter; only where it is the target\'s own head, set "draft_vocab_size": null'
    if names == {"embed_tokens.weight"}:
        return "export embed_tokens: the hidden sizes differ, so SGLang cannot take the target's"
    return "export the missing tensors, or rename those that are there under another name"


def _near(unfilled: list[Slot], dropped: tuple[str, ...]) -> str:
    ends = {".".join(slot.usual_name.rsplit(".", 2)[-2:]) for slot in unfilled}
    similar = [name for name in dropped if any(name.endswith(end) for end in ends)]
    return f"under other names: {', '.join(similar)}" if similar else "absent"


@check(
    "drafter.unused",
    needs=("drafter.builds", "drafter.layers", "drafter.tied", "drafter.switches", "drafter.parameters", "drafter.map"),
    source="sglang 32334, 24663: a tensor that the installed class does not use, accept length 1.1",
)
def unused(self: Check, facts: Facts) -> Iterator[Finding]:
    """No tensor of the file is dropped by the class, or overwritten by another."""
    expected, loading = head(facts)
    _unquantized(facts)
    for name in loading.dropped:
        if not _HARMLESS.search(name):
            yield self.error(
                f"{name} is in the file, but the class has no such parameter: SGLang would drop it in silence",
                where=f"{drafter_weights(facts).tensors[name].path}: {name}",
                remedy="if it was trained with it, set the config switch that enables it, or use another class",
            )
    own_head = loading.filled.get(("lm_head.weight", ""))
    if expected.borrows_head and own_head is not None:
        yield self.warning(
            "draft_vocab_size is null, so SGLang uses the target's head and not the one in the file",
            where=f"{drafter_weights(facts).tensors[own_head].path}: {own_head}",
            remedy="if the drafter was trained with its own head, set draft_vocab_size to its number of rows",
        )
    for name in (*loading.overwritten, *loading.other_maps):
        yield self.error(
            f"{name} and another tensor lead to the same parameter: SGLang would keep whichever comes last",
            where=f"{drafter_weights(facts).tensors[name].path}: {name}",
            remedy="keep one of them in the file",
        )


@check(
    "drafter.shapes",
    needs=("drafter.builds", "drafter.files", "drafter.aux_layers"),
    source="EAGLE 315; srt/layers/linear.py: weight_loader",
)
def shapes(self: Check, facts: Facts) -> Iterator[Finding]:
    """Every tensor has the shape that its parameter has by config.json."""
    expected, loading = head(facts)
    _unquantized(facts)
    tensors = drafter_weights(facts).tensors
    for key, name in loading.filled.items():
        slot, tensor = expected.slot(key), tensors[name]
        if slot is None or tensor.shape == slot.shape:
            continue
        yield self.error(
            f"{name} is {list(tensor.shape)}, config.json makes it {list(slot.shape)}{_reading(slot, tensor, facts)}",
            expected=str(list(slot.shape)),
            found=str(list(tensor.shape)),
            where=f"{tensor.path}: {name}",
            remedy="correct config.json to the sizes that the drafter was trained with",
        )


def _reading(slot: Slot, tensor: Tensor, facts: Facts) -> str:
    """What the numbers say, where they say something."""
    expected, _ = head(facts)
    size = expected.dimensions
    if slot.part in ("q", "k", "v") and len(tensor.shape) == 2:
        heads = size.heads if slot.part == "q" else size.kv_heads
        if tensor.shape[1] == slot.shape[1] and tensor.shape[0] % heads == 0:
            return f": {heads} heads of {tensor.shape[0] // heads}, not of head_dim {size.head_dim}"
        if tensor.shape[1] * 2 == slot.shape[1]:
            return ": it takes one hidden state, not the embedding and a hidden state side by side"
    if slot.parameter == "model.fc.weight" and len(tensor.shape) == 2 and tensor.shape[1] % size.target_hidden == 0:
        states = tensor.shape[1] // size.target_hidden
        return f": it takes {states} states of {size.target_hidden}, the config names {size.aux_states}"
    if slot.parameter == "lm_head.weight" and len(tensor.shape) == 2 and tensor.shape[0] == size.vocabulary:
        return ": it is a head over the full vocabulary, with draft_vocab_size set below it"
    return ""


@check(
    "drafter.dtypes", needs=("drafter.builds", "drafter.files"), source="srt/model_loader/weight_utils.py: copy_ casts"
)
def dtypes(self: Check, facts: Facts) -> Iterator[Finding]:
    """Every tensor that fills a parameter is F16, BF16 or F32 in an unquantized drafter."""
    _, loading = head(facts)
    _unquantized(facts)
    tensors = drafter_weights(facts).tensors
    for name in loading.filled.values():
        if tensors[name].dtype not in FLOATS:
            yield self.error(
                f"{name} is {tensors[name].dtype}, and config.json has no quantization_config: "
                "SGLang would cast the raw numbers",
                expected="F16, BF16 or F32",
                found=tensors[name].dtype,
                where=f"{tensors[name].path}: {name}",
                remedy="export it unquantized, or with its quantization_config",
            )


CHECKS = (layers, parameters, unused, shapes, dtypes)
