"""The demo pair's drafter with one fault each, and what bare SGLang does with it: the findings held against reality."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "demo/target"
DRAFTER = ROOT / "demo/drafter"
WEIGHTS = "model.safetensors"

Change = Callable[[Path], None]


@dataclass(frozen=True)
class Slow:
    """Serves right text; accept length (bonus included) stays below this."""

    below: float = 1.15


@dataclass(frozen=True)
class Dies:
    """Ends before it is ready, and its log holds this regular expression."""

    log: str


@dataclass(frozen=True)
class Fault:
    """One wrong drafter: the finding that refuses it, and what SGLang does."""

    finding: str
    does: Slow | Dies
    change: Change
    settings: Mapping[str, Any] = field(default_factory=dict)  # SGLang's, over the chain of 3 steps
    environment: Mapping[str, str] = field(default_factory=dict)  # the server's
    in_make_test: bool = False


def copy(folder: Path, fault: Fault) -> Path:
    """The drafter with this fault."""
    place = folder / "drafter"
    shutil.copytree(DRAFTER, place, copy_function=shutil.copyfile)
    fault.change(place)
    return place


def config(**keys: Any) -> Change:
    """Set keys of config.json; None takes one out."""

    def change(place: Path) -> None:
        file = place / "config.json"
        found = json.loads(file.read_text())
        found.update(keys)
        file.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))

    return change


def tensors(edit: Callable[[dict[str, Any]], Any]) -> Change:
    """Edit the tensors by name."""

    def change(place: Path) -> None:
        held = load_file(place / WEIGHTS)
        edit(held)
        save_file(held, place / WEIGHTS, {"format": "pt"})

    return change


def without(*names: str) -> Change:
    """Take tensors out."""
    return tensors(lambda held: [held.pop(name) for name in names])


def renamed(old: str, new: str) -> Change:
    """Other tensor names."""
    return tensors(lambda held: [held.update({name.replace(old, new): held.pop(name)}) for name in list(held)])


def aux(*ids: int) -> Change:
    """Other aux layers."""
    return config(eagle_config={"eagle_aux_hidden_state_layer_ids": list(ids), "use_aux_hidden_state": True})


def cut(place: Path) -> None:
    """Lose the file's last thousand bytes."""
    file = place / WEIGHTS
    file.write_bytes(file.read_bytes()[:-1000])


USED_MEMORY = {"MALLOC_PERTURB_": "194"}
"""glibc fills what it hands out with bytes 0x3d, floats of 0.046. The memory of a fresh process is all zero, and layers
that nobody wrote then add nothing (accept length 2.89); where memory was used before, they hold what was there."""

FAULTS: dict[str, Fault] = {
    "under EAGLE": Fault(
        "drafter.algorithm", Slow(1.5), config(), {"speculative_algorithm": "EAGLE"}, in_make_test=True
    ),
    "other tensor names": Fault("drafter.parameters", Slow(), renamed("midlayer.", "decoder.")),
    "no lm_head": Fault("drafter.parameters", Slow(), without("lm_head.weight")),
    "no fc": Fault("drafter.parameters", Slow(), without("fc.weight")),
    "tied with a small vocabulary": Fault("drafter.tied", Slow(), config(tie_word_embeddings=True)),
    "no map": Fault("drafter.map", Slow(), without("d2t", "t2d")),
    "map all zero": Fault("drafter.map_values", Slow(), tensors(lambda held: held["d2t"].zero_())),
    "eight layers, one in the file": Fault(
        "drafter.layers", Slow(), config(num_hidden_layers=8), environment=USED_MEMORY
    ),
    "four ids for three states": Fault(
        "drafter.shapes", Dies(r"\[128, 384\].*\[128, 512\]"), aux(1, 2, 3, 4), in_make_test=True
    ),
    "ids beyond the target": Fault(
        "drafter.aux_layers", Dies(r"shapes cannot be multiplied \(\d+x256 and 384x128\)"), aux(1, 3, 9)
    ),
    "another class": Fault(
        "drafter.class", Dies(r"org_vocab_size=2048.*\[output_dim\]=1536"), config(architectures=["LlamaForCausalLM"])
    ),
    "no draft_vocab_size": Fault(
        "drafter.builds", Dies(r"no attribute 'draft_vocab_size'"), config(draft_vocab_size=None)
    ),
    "shorter context than the target's": Fault(
        "drafter.context_length", Dies(r"context_length \(2048\).*\(1024\)"), config(max_position_embeddings=1024)
    ),
    "another activation": Fault("drafter.builds", Dies(r"Only silu is supported"), config(hidden_act="gelu")),
    "truncated": Fault("drafter.files", Dies(r"incomplete metadata, file not fully covered"), cut),
}
"""`tests/end_to_end/test_absolute_map.py` holds one more: a map of absolute ids."""
