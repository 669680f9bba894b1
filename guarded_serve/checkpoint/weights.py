"""All weights of a model folder: the files that SGLang would load, their tensors by name, and what is wrong.

The choice of files follows SGLang's `model_loader/loader.py` (`_prepare_weights`): every `*.safetensors` in the folder,
cut down to those that an index names, else pickles.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guarded_serve.checkpoint.files import Unreadable, read_bytes, read_json
from guarded_serve.checkpoint.problem import Problem
from guarded_serve.checkpoint.safetensors import (
    COPY_REMEDY,
    Shard,
    Sizes,
    Tensor,
    read_shard,
    sizes_by_layer,
    skim_shard,
)

INDEX_NAME = "model.safetensors.index.json"
INDEX_LIMIT = 64 * 2**20
"""Longest index that is parsed, in bytes. Kimi-K2.5's has some 200,000 names."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth")


@dataclass(frozen=True)
class Weights:
    """The tensors of one folder, by the name they have on disk: all, or those asked for. ``sizes`` are of all."""

    directory: Path
    shards: tuple[Shard, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    pickles: tuple[Path, ...] = ()
    problems: tuple[Problem, ...] = ()
    sizes: Sizes = field(default_factory=dict)


def read_weights(directory: Path, only: Collection[str] | None = None) -> Weights:
    """Read every header of a folder. Never raises; a folder without weights is a problem.

    ``only``: keep these tensors alone, and compare the index with the shards by sums over hashes: for targets, whose
    tensors can be hundreds of thousands.
    """
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208 - names, not paths
    except (OSError, ValueError) as error:
        problem = Problem("unreadable", f"{directory} cannot be listed: {getattr(error, 'strerror', error)}", directory)
        return Weights(directory, problems=(problem,))
    problems: list[Problem] = []
    files = [name for name in names if name.endswith(".safetensors")]
    if only is not None and INDEX_NAME in names:
        skimmed = _skim(directory, names, files, only)
        if skimmed is not None:
            return skimmed
    promised = _index(directory / INDEX_NAME, problems) if INDEX_NAME in names else None
    if promised is not None:
        wanted = set(promised.values())
        problems += _missing_shards(directory, wanted - set(names), promised)
        problems += _unlisted(directory, [name for name in files if name not in wanted])
        files = [name for name in files if name in wanted]
    shards = tuple(read_shard(directory / name) for name in files)
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        problems += shard.problems
        for name, tensor in shard.tensors.items():
            if name in tensors:
                message = f"{name} is in {tensors[name].path.name} and in {shard.path.name}"
                problems.append(Problem("duplicate-name", message, shard.path, name))
            tensors[name] = tensor
    if promised is not None:
        problems += _broken_promises(directory, promised, shards)
    pickles = tuple(
        directory / name
        for name in names
        if name.endswith(PICKLES) and name not in _NOT_WEIGHTS and (directory / name).is_file()
    )
    if not shards and not problems:
        problems.append(_nothing(directory, pickles))
    return Weights(directory, shards, tensors, pickles, tuple(problems), sizes_by_layer(tensors.values()))


_NUMBERED = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")


def is_complete(directory: Path) -> bool:
    """Whether every weight file is there that the index, or the numbers in the files' names, promise."""
    try:
        files = {path.name for path in directory.glob("*.safetensors") if path.exists()}  # a link may lead nowhere
    except OSError:
        return False
    promised = _index(directory / INDEX_NAME, []) if (directory / INDEX_NAME).exists() else None
    if promised is not None:
        return set(promised.values()) <= files
    numbered = [found for name in files if (found := _NUMBERED.search(name))]
    return bool(files) and all(len(numbered) >= int(found[2]) for found in numbered)


_PART = 2**19
_MAP = re.compile(rb'"weight_map"\s*:\s*\{')


def _skim(directory: Path, names: list[str], files: list[str], only: Collection[str]) -> Weights | None:
    """A folder with an index in which everything agrees, or None: then it is read in full, to say what does not."""
    path = directory / INDEX_NAME
    try:
        raw = read_bytes(path, limit=INDEX_LIMIT)
    except Unreadable:
        return None
    found = _MAP.search(raw)
    end = raw.find(b"}", found.end()) if found else -1
    if found is None or end < 0 or b"\\" in raw or not raw.isascii() or not _is_json_around(raw, found.end(), end):
        return None
    begin = found.end()
    counts: Counter[bytes] = Counter()
    promised_sum, at = 0, begin
    while at < end:  # a part at a time: all pairs at once would take 60 MB
        stop = raw.find(b'",', at + _PART, end) + 2
        stop = end if stop < at else stop
        parts = raw[at:stop].split(b'"')
        inside, between = set(parts[2::4]), set(parts[0::4])
        between.discard(parts[-1])
        if len(parts) % 4 != 1 or len(inside) != 1 or inside.pop().strip() != b":":
            return None
        if any(gap.strip() not in (b"", b",") for gap in (*between, parts[-1])):
            return None
        files_here = parts[3::4]
        counts.update(files_here)
        promised_sum += sum(map(hash, map(b"\0".join, zip(parts[1::4], files_here, strict=True))))
        at = stop
    if {file.decode("utf-8", "replace") for file in counts} != set(files):
        return None
    del raw
    shards = tuple(skim_shard(directory / name, only) for name in files)
    if any(shard.problems or shard.count != counts[shard.path.name.encode()] for shard in shards):
        return None
    if sum(shard.names for shard in shards) != promised_sum:
        return None
    tensors = {name: tensor for shard in shards for name, tensor in shard.tensors.items() if name in only}
    sizes: Counter[tuple[str, int | None]] = Counter()
    for shard in shards:
        sizes.update(shard.sizes)
    return Weights(directory, shards, tensors, sizes=sizes)


def _is_json_around(raw: bytes, begin: int, end: int) -> bool:
    """Whether the index without its map is JSON."""
    try:
        json.loads(raw[:begin] + raw[end:])
    except (ValueError, RecursionError):
        return False
    return True


def _index(path: Path, problems: list[Problem]) -> dict[str, str] | None:
    """Tensor name to file name, or None where the index cannot be used."""
    try:
        raw: Any = read_json(path, limit=INDEX_LIMIT)
    except Unreadable as unreadable:
        problems.append(unreadable.problem)
        return None
    entries = raw.get("weight_map") if isinstance(raw, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(file, str) for file in entries.values()):
        problems.append(Problem("bad-index", f"{path.name} has no weight_map of names to files", path))
        return None
    outside = {file for file in set(entries.values()) if "/" in file or file in ("", ".", "..") or "\0" in file}
    if outside:
        message = f"{path.name} names files outside its folder: {', '.join(sorted(map(repr, outside))[:3])}"
        problems.append(Problem("bad-index", message, path))
        return None
    return entries


def _missing_shards(directory: Path, missing: set[str], promised: Mapping[str, str]) -> list[Problem]:
    return [
        Problem(
            "missing-shard",
            f"{name} is listed in {INDEX_NAME} ({sum(file == name for file in promised.values())} tensors) "
            "but is not in the folder",
            directory / name,
            remedy=COPY_REMEDY,
        )
        for name in sorted(missing)
    ]


def _unlisted(directory: Path, unlisted: list[str]) -> list[Problem]:
    return [
        Problem(
            "unlisted-shard",
            f"{name} is in the folder but not in {INDEX_NAME}: SGLang does not load it",
            directory / name,
            remedy=f"correct {INDEX_NAME}, or remove the file",
        )
        for name in unlisted
    ]


def _broken_promises(directory: Path, promised: Mapping[str, str], shards: tuple[Shard, ...]) -> list[Problem]:
    """Tensors that the index puts into a shard that lacks them, and the reverse; the first of each kind a shard."""
    by_file = {shard.path.name: shard for shard in shards if shard.tensors}
    absent: dict[str, list[str]] = {}
    for name, file in promised.items():
        shard = by_file.get(file)
        if shard is not None and name not in shard.tensors:
            absent.setdefault(file, []).append(name)
    problems = [
        Problem(
            "index-contradiction",
            f"{INDEX_NAME} puts {names[0]}{_more(names)} into {file}, which does not hold {_it(names)}",
            directory / file,
            names[0],
            remedy=COPY_REMEDY,
        )
        for file, names in absent.items()
    ]
    for file, shard in by_file.items():
        extra = [name for name in shard.tensors if name not in promised]
        if extra:
            message = f"{file} holds {extra[0]}{_more(extra)}, of which {INDEX_NAME} says nothing"
            problems.append(Problem("index-incomplete", message, directory / file, extra[0]))
    return problems


def _nothing(directory: Path, pickles: tuple[Path, ...]) -> Problem:
    if pickles:
        return Problem(
            "pickle-only",
            f"{directory} has weights as a pickle only ({pickles[0].name}), which the guard does not open",
            directory,
            remedy="convert it to safetensors",
        )
    return Problem("no-weights", f"{directory} holds no safetensors file", directory)


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _it(names: list[str]) -> str:
    return "them" if len(names) > 1 else "it"
