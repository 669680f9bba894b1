"""Facts about the target and the drafter: what their folders hold, and what SGLang will make of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guarded_serve.checkpoint.config import CONFIG_NAME, ModelConfig, read_config
from guarded_serve.checkpoint.files import Unreadable
from guarded_serve.checkpoint.hub import locate
from guarded_serve.checkpoint.problem import Problem
from guarded_serve.checkpoint.safetensors import Tensor
from guarded_serve.checkpoint.values import read_integers
from guarded_serve.checkpoint.vocab_map import MapStatistics, judge_map
from guarded_serve.checkpoint.weights import Weights, read_weights
from guarded_serve.engine_rules.capture import Capture, predict_capture
from guarded_serve.engine_rules.drafter import EAGLE3_CLASSES, HeadRules, Loading, head_rules, load_names
from guarded_serve.engine_rules.versions import Version, rules_version

if TYPE_CHECKING:
    from guarded_serve.profile.deployment import Deployment

ALIASES = {"NEXTN": "EAGLE"}
"""SGLang's own alias (arg_groups/speculative_hook.py)."""
MAX_MAP = 4 * 2**20
"""Longest map whose values are judged, in entries."""


@dataclass(frozen=True)
class Checkpoint:
    """One model folder. ``setting`` is the SGLang setting that names it."""

    setting: str
    given: str
    origin: str
    directory: Path | None
    missing: Problem | None = None
    config: ModelConfig | None = None
    weights: Weights | None = None  # None: not fetched from the hub yet
    identity: tuple[int, int] | None = None  # device and inode of the folder, links followed
    config_modified: float | None = None  # Unix seconds
    weights_modified: float | None = None  # of the newest weight file

    @property
    def readable_config(self) -> ModelConfig | None:
        """The config, where it could be read."""
        return self.config if self.config is not None and self.config.raw else None


@dataclass(frozen=True)
class MapFacts:
    """d2t and t2d as they are on disk."""

    d2t: Tensor | None = None
    t2d: Tensor | None = None
    unreadable: str | None = None
    statistics: MapStatistics | None = None  # None: not an integer vector, or the target's vocabulary is unknown


@dataclass(frozen=True)
class ModelFacts:
    """Target and drafter, and the SGLang that will load them."""

    version: Version
    version_note: str | None  # why the rules are a guess
    algorithm: str | None  # upper case, NEXTN resolved
    algorithm_given: str | None
    target: Checkpoint
    drafter: Checkpoint | None
    environment: Mapping[str, str] = field(default_factory=dict)  # SGLANG_* as the server process will see it
    map: MapFacts = field(default_factory=MapFacts)
    tokenizer_length: int | None = None  # tokens of the target's tokenizer, added ones included

    @cached_property
    def head_class(self) -> str | None:
        """The drafter's class where it is one of SGLang's EAGLE-3 classes."""
        config = self.drafter.readable_config if self.drafter else None
        name = config.architecture if config else None
        return name if name in EAGLE3_CLASSES else None

    @cached_property
    def rules(self) -> HeadRules | None:
        """What the drafter's class expects, for an EAGLE-3 head."""
        config = self.drafter.readable_config if self.drafter else None
        return head_rules(self.head_class, config, self.version) if config and self.head_class else None

    @cached_property
    def loading(self) -> Loading | None:
        """What the class's load_weights will do with the drafter's names, in the order SGLang meets them."""
        weights = self.drafter.weights if self.drafter else None
        if weights is None or self.rules is None or self.head_class is None:
            return None
        return load_names(self.head_class, weights.tensors, self.rules)

    @cached_property
    def target_layers(self) -> int | None:
        """Layers of the target."""
        config = self.target.readable_config
        return config.integer("num_hidden_layers") if config else None

    @cached_property
    def capture(self) -> Capture | None:
        """The layers that the target will capture for the drafter; None where the rule is unknown."""
        target, drafter = self.target.readable_config, self.drafter.readable_config if self.drafter else None
        if target is None or drafter is None or self.target_layers is None or target.architecture is None:
            return None
        return predict_capture(target.architecture, self.target_layers, drafter, self.version)


def gather_models(deployment: Deployment) -> ModelFacts:
    """Read both folders: config.json, every safetensors header, and the drafter's map. Nothing here raises."""
    version, note = rules_version(deployment.sglang_version)
    given = deployment.get("speculative_algorithm")
    algorithm = str(given).upper() if given else None
    overrides = _overrides(deployment.get("json_model_override_args"))
    target = _checkpoint(deployment, "model_path", "revision", overrides, fetch_weights=False)
    drafter = None
    if deployment.get("speculative_draft_model_path"):
        drafter = _checkpoint(
            deployment,
            "speculative_draft_model_path",
            "speculative_draft_model_revision",
            overrides,
            fetch_weights=True,
        )
    facts = ModelFacts(
        version=version,
        version_note=note,
        algorithm=ALIASES.get(algorithm, algorithm) if algorithm else None,
        algorithm_given=algorithm,
        target=target,
        drafter=drafter,
        environment=_environment(deployment),
    )
    return _with_map(facts)


def read_checkpoint(
    setting: str,
    name: str,
    *,
    origin: str = "",
    revision: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    fetch_weights: bool = True,
) -> Checkpoint:
    """One model folder or hub id."""
    located = locate(name, revision, fetch_weights=fetch_weights)
    if located.directory is None:
        return Checkpoint(setting, name, origin, None, located.problem)
    try:
        status = located.directory.stat()
        identity = (status.st_dev, status.st_ino)
    except OSError:
        identity = None
    weights = read_weights(located.directory) if located.complete else None
    return Checkpoint(
        setting,
        name,
        origin,
        located.directory,
        config=read_config(located.directory, overrides=overrides),
        weights=weights,
        identity=identity,
        config_modified=_modified(located.directory / CONFIG_NAME),
        weights_modified=max(filter(None, (_modified(shard.path) for shard in weights.shards)), default=None)
        if weights
        else None,
    )


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _checkpoint(
    deployment: Deployment, setting: str, revision: str, overrides: Mapping[str, Any], *, fetch_weights: bool
) -> Checkpoint:
    origin = deployment.server[setting].origin if deployment.is_set(setting) else ""
    return read_checkpoint(
        setting,
        str(deployment.get(setting)),
        origin=origin,
        revision=deployment.get(revision),
        overrides=overrides,
        fetch_weights=fetch_weights,
    )


def _overrides(text: Any) -> Mapping[str, Any]:
    """`--json-model-override-args`, which SGLang lays over both configs; what is no object is SGLang's to refuse."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _environment(deployment: Deployment) -> dict[str, str]:
    merged = {name: value for name, value in os.environ.items() if name.startswith("SGLANG_")}
    merged.update(
        {name: str(setting.value) for name, setting in deployment.environment.items() if name.startswith("SGLANG_")}
    )
    return merged


def _with_map(facts: ModelFacts) -> ModelFacts:
    weights = facts.drafter.weights if facts.drafter else None
    if weights is None:
        return facts
    target = facts.target.readable_config
    vocabulary = target.integer("vocab_size") if target else None
    return replace(facts, map=read_map(weights, vocabulary, facts.loading.map_name if facts.loading else None))


def read_map(weights: Weights, target_vocabulary: int | None, name: str | None = None) -> MapFacts:
    """The map of a drafter; ``name`` is the tensor that SGLang takes for it, else the one called d2t is taken."""
    tensors = weights.tensors
    d2t = tensors.get(name) if name else None
    if d2t is None:
        d2t = next((tensors[key] for key in tensors if key == "d2t" or key.endswith(".d2t")), None)
    t2d = next((tensors[key] for key in tensors if key == "t2d" or key.endswith(".t2d")), None)
    if d2t is None or len(d2t.shape) != 1 or not 0 < d2t.count <= MAX_MAP or target_vocabulary is None:
        return MapFacts(d2t, t2d)
    try:
        values = read_integers(d2t)
        mask = None
        if t2d is not None and len(t2d.shape) == 1 and t2d.count <= MAX_MAP:
            try:
                mask = read_integers(t2d)
            except ValueError:
                mask = None
        if len(values) != d2t.count or (mask is not None and t2d is not None and len(mask) != t2d.count):
            return MapFacts(d2t, t2d, unreadable=f"{d2t.path.name} ends before its tensors do")
    except ValueError:
        return MapFacts(d2t, t2d)
    except Unreadable as unreadable:
        return MapFacts(d2t, t2d, unreadable=unreadable.problem.message)
    return MapFacts(d2t, t2d, statistics=judge_map(values, target_vocabulary, mask))
