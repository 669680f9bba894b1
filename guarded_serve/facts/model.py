"""Facts about the target and the drafter: what their folders hold, and what SGLang will make of it."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guarded_serve.checkpoint.config import CONFIG_NAME, ModelConfig, read_config
from guarded_serve.checkpoint.files import Unreadable, open_regular, regular_size
from guarded_serve.checkpoint.hub import is_hub_id, locate
from guarded_serve.checkpoint.problem import Problem
from guarded_serve.checkpoint.safetensors import Tensor
from guarded_serve.checkpoint.scan import DeepScan, Progress, file_digest, scan
from guarded_serve.checkpoint.tokenizer import Tokenizer, read_tokenizer
from guarded_serve.checkpoint.values import read_integers
from guarded_serve.checkpoint.vocab_map import MapStatistics, judge_map
from guarded_serve.checkpoint.weights import Weights, read_weights
from guarded_serve.engine_rules.capture import Capture, layer_count, predict_capture
from guarded_serve.engine_rules.drafter import EAGLE3_CLASSES, HeadRules, Loading, head_rules, load_names, load_order
from guarded_serve.engine_rules.versions import Version, rules_version
from guarded_serve.facts.rows import (
    SAMPLED,
    EmbeddingSample,
    HeadSample,
    sample_embedding,
    sample_head,
    target_embedding,
    target_head,
)

if TYPE_CHECKING:
    from guarded_serve.facts.engine_load import EngineLoad, NoAnswer
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
    tokenizer: Tokenizer | None = None  # the target's
    drafter_tokenizer: Tokenizer | None = None
    trained_for: Checkpoint | None = None  # as the profile says
    trained_for_tokenizer: Tokenizer | None = None
    reference: Checkpoint | None = None  # a drafter that works, as the profile says
    reference_map: MapFacts = field(default_factory=MapFacts)
    embedding_sample: EmbeddingSample | None = None
    head_sample: HeadSample | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)  # by file name, where the profile pins one
    deep: DeepScan | None = None  # every byte of the drafter, under `--deep`
    overrides: Problem | None = None  # what is wrong with --json-model-override-args
    token_map: Problem | None = None  # what is wrong with the file of --speculative-token-map
    engine: EngineLoad | NoAnswer | None = None  # SGLang's own word on the drafter, under `--with-engine`

    @property
    def tokenizer_length(self) -> int | None:
        """Tokens of the target's tokenizer, added ones included."""
        return self.tokenizer.length if self.tokenizer else None

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
        return load_names(self.head_class, load_order(weights.tensors), self.rules)

    @cached_property
    def target_layers(self) -> int | None:
        """Layers of the target."""
        config = self.target.readable_config
        return layer_count(config) if config else None

    @cached_property
    def capture(self) -> Capture | None:
        """The layers that the target will capture for the drafter; None where the rule is unknown."""
        target, drafter = self.target.readable_config, self.drafter.readable_config if self.drafter else None
        if target is None or drafter is None or self.target_layers is None or target.architecture is None:
            return None
        return predict_capture(target.architecture, self.target_layers, drafter, self.version)


def gather_models(deployment: Deployment) -> ModelFacts:
    """Read both folders: config.json, every safetensors header, the drafter's map, tokenizers, a sample of rows.

    Nothing here raises. With a pinned sha256 the drafter's file is hashed, about a second a gigabyte.
    """
    version, note = rules_version(deployment.sglang_version)
    given = deployment.get("speculative_algorithm")
    algorithm = str(given).upper() if given else None
    overrides, wrong_overrides = _overrides(deployment.get("json_model_override_args"))
    only = (
        None if ALIASES.get(algorithm or "", algorithm) == "EAGLE" else SAMPLED
    )  # EAGLE may draft with its own layers
    target = _checkpoint(deployment, "model_path", "revision", overrides, fetch_weights=False, only=only)
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
        overrides=wrong_overrides,
        token_map=_token_map(deployment.get("speculative_token_map")),
    )
    if facts.algorithm is None or drafter is None or drafter.directory is None:
        return facts
    facts = _with_tokenizers(facts, deployment)
    if drafter.weights is None:
        return facts
    facts = replace(facts, map=read_map(drafter.weights, _vocabulary(facts), _map_name(facts)))
    facts = _with_samples(facts)
    facts = _with_reference(facts, deployment)
    if deployment.profile.drafter.sha256 is not None:
        facts = replace(facts, sha256=_digests(drafter.weights))
    return facts


def scan_drafter(facts: ModelFacts, progress: Progress | None = None) -> ModelFacts:
    """Read every byte of the drafter, for `--deep`."""
    weights = facts.drafter.weights if facts.drafter else None
    if weights is None:
        return facts
    found = scan(weights, progress)
    return replace(facts, deep=found, sha256=found.sha256)


def read_checkpoint(
    setting: str,
    name: str,
    *,
    origin: str = "",
    revision: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    fetch_weights: bool = True,
    only: Collection[str] | None = None,
) -> Checkpoint:
    """One model folder or hub id; ``only`` as for `read_weights`."""
    located = locate(name, revision, fetch_weights=fetch_weights)
    if located.directory is None:
        return Checkpoint(setting, name, origin, None, located.problem)
    try:
        status = located.directory.stat()
        identity = (status.st_dev, status.st_ino)
    except OSError:
        identity = None
    weights = read_weights(located.directory, only) if located.complete else None
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
    deployment: Deployment,
    setting: str,
    revision: str,
    overrides: Mapping[str, Any],
    *,
    fetch_weights: bool,
    only: Collection[str] | None = None,
) -> Checkpoint:
    origin = deployment.server[setting].origin if deployment.is_set(setting) else ""
    return read_checkpoint(
        setting,
        str(deployment.get(setting)),
        origin=origin,
        revision=deployment.get(revision),
        overrides=overrides,
        fetch_weights=fetch_weights,
        only=only,
    )


def _overrides(text: Any) -> tuple[Mapping[str, Any], Problem | None]:
    """`--json-model-override-args`, which SGLang lays over both configs, and what is wrong with it."""
    reason = "not an object"
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        value, reason = None, f"not valid JSON: {str(error)[:200]}"
    if isinstance(value, dict):
        return value, None
    if not text:
        return {}, None
    message = f"json_model_override_args is {reason}: SGLang would fail on it as it reads config.json"
    return {}, Problem("bad-overrides", message, Path("config.json"), found=str(text)[:80])


def _environment(deployment: Deployment) -> dict[str, str]:
    merged = {name: value for name, value in os.environ.items() if name.startswith("SGLANG_")}
    merged.update(
        {name: str(setting.value) for name, setting in deployment.environment.items() if name.startswith("SGLANG_")}
    )
    return merged


def _token_map(name: Any) -> Problem | None:
    """Why the file cannot be read. SGLang takes a missing one for OWNER/MODEL/FILE on the hub (load_token_map).

    What is in it is a pickle, which is never unpickled here.
    """
    path = Path(str(name or ""))
    try:
        regular_size(path)
    except Unreadable as unreadable:
        if name and not (unreadable.problem.kind == "missing" and is_hub_id(str(path.parent))):
            return unreadable.problem
    return None


def _vocabulary(facts: ModelFacts) -> int | None:
    target = facts.target.readable_config
    return target.integer("vocab_size") if target else None


def _map_name(facts: ModelFacts) -> str | None:
    return facts.loading.map_name if facts.loading else None


def _with_tokenizers(facts: ModelFacts, deployment: Deployment) -> ModelFacts:
    trained_for, tokenizer = None, None
    name = deployment.profile.drafter.trained_for
    if name is not None:
        trained_for = read_checkpoint("drafter.trained_for", name, fetch_weights=False)
        tokenizer = read_tokenizer(trained_for.directory) if trained_for.directory else None
    own = facts.drafter.directory if facts.drafter else None
    return replace(
        facts,
        tokenizer=read_tokenizer(facts.target.directory) if facts.target.directory else None,
        drafter_tokenizer=read_tokenizer(own) if own else None,
        trained_for=trained_for,
        trained_for_tokenizer=tokenizer,
    )


def _with_samples(facts: ModelFacts) -> ModelFacts:
    """Rows of an EAGLE-3 head beside the target's, where both are there as floats."""
    config, weights, loading = facts.target.readable_config, facts.target.weights, facts.loading
    drafter = facts.drafter.weights if facts.drafter else None
    if config is None or weights is None or drafter is None or loading is None or drafter.problems or weights.problems:
        return facts
    vocabulary = config.integer("vocab_size")
    embedding = loading.filled.get(("model.embed_tokens.weight", ""))
    theirs = target_embedding(weights, vocabulary)
    if embedding is not None and theirs is not None:
        facts = replace(facts, embedding_sample=sample_embedding(drafter.tensors[embedding], theirs))
    head = loading.filled.get(("lm_head.weight", ""))
    theirs = target_head(weights, vocabulary, tied=bool(config.get("tie_word_embeddings", False)))
    if head is not None and theirs is not None and facts.map.statistics is not None:
        sample = sample_head(drafter.tensors[head], theirs, facts.map.statistics.ids)
        facts = replace(facts, head_sample=sample)
    return facts


def _with_reference(facts: ModelFacts, deployment: Deployment) -> ModelFacts:
    name = deployment.profile.drafter.reference
    if name is None:
        return facts
    reference = read_checkpoint("drafter.reference", name)
    if reference.weights is None:
        return replace(facts, reference=reference)
    return replace(facts, reference=reference, reference_map=read_map(reference.weights, _vocabulary(facts)))


def _digests(weights: Weights) -> dict[str, str]:
    """SHA-256 of every weight file that can be read."""
    found = {}
    for shard in weights.shards:
        try:
            with open_regular(shard.path) as file:
                found[shard.path.name] = file_digest(file)
        except (OSError, Unreadable):
            continue
    return found


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
