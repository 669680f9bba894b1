"""`guarded-serve inspect DRAFTER [--against OTHER]`: everything that a drafter is, never cut off."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guarded_serve.exit_codes import ExitCode

if TYPE_CHECKING:
    from guarded_serve.checkpoint.safetensors import Tensor
    from guarded_serve.checkpoint.vocab_map import MapStatistics
    from guarded_serve.engine_rules.capture import Capture
    from guarded_serve.facts.model import Checkpoint

SUMMARY = "show a drafter: every tensor, its config, its map, the layers that SGLang will capture"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("drafter", metavar="DRAFTER", help="a drafter's folder or hub id")
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit of DRAFTER where it is a hub id")
    parser.add_argument(
        "--against", metavar="OTHER", help="a second drafter, shown beside it with the differences marked"
    )
    parser.add_argument("--target", metavar="MODEL", help="the target: for the layers it captures and the map's range")
    parser.add_argument("--sglang", metavar="VERSION", help="judge by this SGLang (default: the installed one)")
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="output format (default: %(default)s)"
    )


def run(options: argparse.Namespace, sglang_flags: list[str]) -> int:
    """Read, print; 66 where a folder is missing."""
    from guarded_serve.checkpoint.problem import HARMLESS  # noqa: PLC0415
    from guarded_serve.checks.formats.as_text import visible  # noqa: PLC0415
    from guarded_serve.facts.model import read_checkpoint  # noqa: PLC0415 - `--help` needs none of it

    read = [read_checkpoint("drafter", options.drafter, revision=options.revision)]
    if options.against:
        read.append(read_checkpoint("drafter", options.against))
    target = read_checkpoint("target", options.target, fetch_weights=False) if options.target else None
    for found in (*read, *([target] if target else [])):
        if found.missing is not None:
            remedy = found.missing.remedy or "name a model folder or a hub id"
            sys.stderr.write(
                f"guarded-serve inspect: {visible(found.missing.message)}\n    remedy:   {visible(remedy)}\n"
            )
            return ExitCode.MISSING
    for problem in target.config.problems if target and target.config else ():
        sys.stderr.write(f"guarded-serve inspect: the target: {visible(problem.message)}\n")
    views = [view(found, target, options.sglang) for found in read]
    if options.format == "json":
        sys.stdout.write(json.dumps(_strict(views if len(views) > 1 else views[0]), indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(text(views)) + "\n")
    parts = [part for found in read for part in (found.config, found.weights) if part is not None]
    refused = any(problem.kind not in HARMLESS for part in parts for problem in part.problems)
    return ExitCode.REFUSED if refused else ExitCode.OK


def view(found: Checkpoint, target: Checkpoint | None, sglang: str | None) -> dict[str, Any]:
    """One drafter as plain data: what `--format json` prints."""
    from guarded_serve.engine_rules.capture import layer_count, predict_capture  # noqa: PLC0415
    from guarded_serve.engine_rules.drafter import EAGLE3_CLASSES, head_rules, load_names, load_order  # noqa: PLC0415
    from guarded_serve.engine_rules.versions import rules_version  # noqa: PLC0415
    from guarded_serve.facts.model import read_map  # noqa: PLC0415
    from guarded_serve.profile.sglang_parser import installed_version  # noqa: PLC0415

    version, note = rules_version(sglang or installed_version())
    config = found.readable_config
    tensors = found.weights.tensors if found.weights else {}
    problems = [
        problem.message for part in (found.config, found.weights) if part is not None for problem in part.problems
    ]
    use: dict[str, str] = {}
    missing: list[str] = []
    if config is not None and config.architecture in EAGLE3_CLASSES:
        rules = head_rules(config.architecture, config, version)
        loading = load_names(config.architecture, load_order(tensors), rules)
        use = {name: key[0] + (f" [{key[1]}]" if key[1] else "") for key, name in loading.filled.items()}
        use |= dict.fromkeys(loading.masks, "not read") | dict.fromkeys(loading.dropped, "dropped")
        if loading.map_name:
            use[loading.map_name] = "the map"
        missing = [slot.usual_name for slot in rules.slots if slot.read and slot.key not in loading.filled]
    target_config = target.readable_config if target else None
    layers = layer_count(target_config) if target_config else None
    capture = None
    if target_config is not None and layers is not None and config is not None and target_config.architecture:
        capture = predict_capture(target_config.architecture, layers, config, version)
    vocabulary = (target_config or config).integer("vocab_size") if (target_config or config) else None  # type: ignore[union-attr]
    statistics = read_map(found.weights, vocabulary).statistics if found.weights else None
    return {
        "folder": str(found.directory),
        "rules": ".".join(map(str, version)) + (f" ({note})" if note else ""),
        "problems": problems,
        "config": dict(config.raw) if config else {},
        "layers": _layers(config, capture),
        "map": _map(statistics, vocabulary),
        "missing": missing,
        "parameters": sum(tensor.count for tensor in tensors.values()),
        "bytes": sum(tensor.nbytes for tensor in tensors.values()),
        "tensors": [_tensor(tensor, use) for tensor in tensors.values()],
    }


def _strict(value: Any) -> Any:
    """Without NaN and Inf, which are no JSON, though Python reads and writes them: as words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _strict(inner) for key, inner in value.items()}
    return [_strict(inner) for inner in value] if isinstance(value, list) else value


def _tensor(tensor: Tensor, use: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "bytes": tensor.nbytes,
        "file": Path(tensor.path).name,
        "use": use.get(tensor.name, "unknown"),
    }


def _layers(config: Any, capture: Capture | None) -> dict[str, Any]:
    nested = config.nested_aux_ids if config else None
    top = config.top_aux_ids if config else None
    return {
        "nested_ids": list(nested) if nested else None,
        "top_level_ids": list(top) if top else None,
        "captured": list(capture.captured) if capture else None,
        "lost": list(capture.lost) if capture else None,
        "rule": capture.shift.value if capture else None,
        "target_layers": capture.layers if capture else None,
    }


def _map(statistics: MapStatistics | None, vocabulary: int | None) -> dict[str, Any] | None:
    if statistics is None:
        return None
    ids = statistics.ids
    return {
        "reads_as": statistics.meaning.value,
        "entries": len(ids),
        "vocabulary": vocabulary,
        "lowest": min(ids),
        "highest": max(ids),
        "out_of_range": statistics.out_of_range,
        "duplicates": statistics.duplicates,
        "descents": statistics.descents,
        "t2d_trues": statistics.t2d_trues,
        "t2d_differing": statistics.differing,
        "first_ids": list(ids[:8]),
        "last_ids": list(ids[-8:]),
    }


# --- text -------------------------------------------------------------------------------------------------------------


def text(views: list[dict[str, Any]]) -> Iterator[str]:
    """One drafter as lists, two as tables with a mark where they differ."""
    from guarded_serve.checks.formats.as_text import visible  # noqa: PLC0415

    for one in views:
        yield visible(one["folder"])
        yield f"  {one['parameters']:,} numbers, {one['bytes']:,} bytes; judged by the rules of SGLang {one['rules']}"
        for problem in one["problems"]:
            yield f"  problem: {visible(problem)}"
        if one["missing"]:
            yield f"  not in the file: {', '.join(one['missing'])}"
    yield ""
    yield from _section("config.json", [{key: _short(value) for key, value in one["config"].items()} for one in views])
    yield from _section("layers", [{key: _short(value) for key, value in one["layers"].items()} for one in views])
    yield from _section("map", [{key: _short(value) for key, value in (one["map"] or {}).items()} for one in views])
    yield from _section("tensors", [{entry["name"]: _described(entry) for entry in one["tensors"]} for one in views])


def _described(entry: Mapping[str, Any]) -> str:
    return f"{entry['dtype']} {entry['shape']} {entry['bytes']:,} bytes, {entry['file']}, {entry['use']}"


def _section(title: str, columns: list[dict[str, str]]) -> Iterator[str]:
    """``* `` marks a line in which two drafters differ."""
    from guarded_serve.checks.formats.as_text import visible  # noqa: PLC0415

    keys = list(dict.fromkeys(key for column in columns for key in column))
    yield title if keys else f"{title}: none"
    width = max((len(visible(key)) for key in keys), default=0)
    for key in keys:
        values = [column.get(key, "absent") for column in columns]
        mark = "*" if len(set(values)) > 1 else " "
        yield f"{mark} {visible(key):<{width}}  {visible(values[0])}"
        if mark == "*":
            yield f"  {'':<{width}}  {visible(values[1])}"
    yield ""


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
