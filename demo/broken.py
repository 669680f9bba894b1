"""Copies of a drafter, each broken in one way that SGLang serves without a word: what `guarded-serve smoke` is for.

    python -m demo.broken --drafter demo/drafter --out /tmp/broken

- ``random-weights``: every matrix drawn anew, every norm 1, as before training; map and config are right.
- ``shuffled-map``: d2t holds the right offsets in the wrong order.
- ``shifted-layers``: the config asks for the states one layer later than the drafter was trained on.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

KINDS = ("random-weights", "shuffled-map", "shifted-layers")


def make(drafter: Path, folder: Path, kind: str, seed: int = 0) -> Path:
    """One broken copy at ``folder``/``kind``, the same bytes for the same seed; returns where it is."""
    place = folder / kind
    shutil.copytree(drafter, place, copy_function=shutil.copyfile)  # one age for config and weights
    _BREAK[kind](place, torch.Generator().manual_seed(seed))
    return place


def _random_weights(place: Path, dice: torch.Generator) -> None:
    """As torch.nn.Linear starts: uniform up to one over the root of the input width."""
    file = place / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        if tensor.ndim == 1:
            tensors[name] = torch.ones_like(tensor)
        else:
            fresh = (2 * torch.rand(tensor.shape, generator=dice) - 1) / tensor.shape[1] ** 0.5
            tensors[name] = fresh.to(tensor.dtype)
    save_file(tensors, file)


def _shuffled_map(place: Path, dice: torch.Generator) -> None:
    file = place / "model.safetensors"
    tensors = load_file(file)
    count = len(tensors["d2t"])
    ids = tensors["d2t"] + torch.arange(count)
    tensors["d2t"] = ids[torch.randperm(count, generator=dice)] - torch.arange(count)
    save_file(tensors, file)


def _shifted_layers(place: Path, _: torch.Generator) -> None:
    file = place / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    ids = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [number + 1 for number in ids]
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


_BREAK: dict[str, Callable[[Path, torch.Generator], None]] = {
    "random-weights": _random_weights,
    "shuffled-map": _shuffled_map,
    "shifted-layers": _shifted_layers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="broken copies of a drafter")
    parser.add_argument("--drafter", type=Path, default=Path(__file__).with_name("drafter"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if not options.drafter.is_dir():
        parser.error(f"--drafter: expected a folder with a drafter, found nothing at {options.drafter}")
    there = [str(options.out / kind) for kind in KINDS if (options.out / kind).exists()]
    if there:
        parser.error(f"--out: {', '.join(there)} is there already; name a new folder, or remove it")
    for kind in KINDS:
        print(make(options.drafter, options.out, kind))


if __name__ == "__main__":
    main()
