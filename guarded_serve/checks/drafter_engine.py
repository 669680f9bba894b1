"""`check --with-engine`: what these rules foretell of the drafter beside what the installed SGLang really did with it.

Where the two differ SGLang's word counts, and the difference is a warning: the rules are wrong for this version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guarded_serve.checks.interface import Check, Skip, check
from guarded_serve.checks.load import map_fingerprint
from guarded_serve.checks.model_facts import drafter, models
from guarded_serve.engine_rules.capture import uses_aux_states
from guarded_serve.engine_rules.drafter import HeadRules, Loading
from guarded_serve.engine_rules.settings import ROPE_TYPES
from guarded_serve.facts.engine_load import EngineLoad, NoAnswer
from guarded_serve.facts.model import ModelFacts
from guarded_serve.findings import Finding

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts

SHARED = {"model.embed_tokens.weight": "embedding", "lm_head.weight": "head"}
_PADDED = 64
"""Rows of embedding and head are rounded up to this (vocab_parallel_embedding.py)."""


@dataclass(frozen=True)
class Compared:
    """One thing that was foretold (None: the rules say nothing of it), and what SGLang did."""

    what: str
    foretold: str | None
    real: str
    agree: bool = True


def compare(model: ModelFacts, load: EngineLoad) -> tuple[Compared, ...]:
    """Prediction against truth, for a load that succeeded or failed."""
    rules, loading = model.rules, model.loading
    if load.failure is not None:
        return (_failed(model, load), *_captured(model, load))
    if rules is None or loading is None:
        return _unjudged(load)
    if certain := _must_fail(model, rules):
        return (Compared("load", f"fails: {certain}", "succeeds", agree=False),)
    found = [Compared("class", rules.class_name, str(load.class_name), rules.class_name == load.class_name)]
    config = model.drafter.readable_config if model.drafter else None
    if config is not None and not config.quantized:
        found += [_parameters(rules, load), _fills(model, rules, loading, load), _dropped(loading, load)]
    found.append(_map(model, loading, load))
    if model.algorithm == "EAGLE3":
        found.append(_shared(rules, load))
    return (*found, *_captured(model, load))


def may_fail(model: ModelFacts) -> tuple[str, ...]:
    """Why SGLang may well raise as it reads, builds or loads the drafter, by what preflight saw."""
    found: list[str] = []
    checkpoint, rules, loading = model.drafter, model.rules, model.loading
    if checkpoint is None or checkpoint.missing is not None:
        return ("there is no such folder",)
    if model.overrides is not None:
        found.append(model.overrides.message)
    for read in (checkpoint.config, checkpoint.weights):
        found += [problem.message for problem in read.problems] if read is not None else []
    config = checkpoint.readable_config
    if config is None:
        return (*found, "config.json could not be read")
    if rules is None:
        return (*found, f"{config.architecture} is none of the EAGLE-3 classes")
    if certain := _must_fail(model, rules):
        found.append(certain)
    if rules.dimensions.head_dim % 2:
        found.append(f"head_dim {rules.dimensions.head_dim} is odd, which rotary embeddings cannot be")
    if loading is not None and checkpoint.weights is not None:
        tensors = checkpoint.weights.tensors
        found += [
            f"{name} is {list(tensors[name].shape)}, not {list(slot.shape)}"
            for key, name in loading.filled.items()
            if (slot := rules.slot(key)) is not None and slot.shape != tensors[name].shape
        ]
        if model.map.d2t is not None and len(model.map.d2t.shape) != 1:
            found.append("d2t is no vector")
    return tuple(found)


def _must_fail(model: ModelFacts, rules: HeadRules) -> str | None:
    config = model.drafter.readable_config if model.drafter else None
    if rules.failures:
        return "; ".join(rules.failures)
    if config is not None and config.rope.type not in ROPE_TYPES:
        return f"rope type {config.rope.type} is unknown (ValueError)"
    return None


def _failed(model: ModelFacts, load: EngineLoad) -> Compared:
    reasons = may_fail(model)
    return Compared("load", "; ".join(reasons) or "succeeds", f"fails: {load.failure}", bool(reasons))


def _unjudged(load: EngineLoad) -> tuple[Compared, ...]:
    return (
        Compared("class", None, str(load.class_name)),
        Compared("parameters", None, _count(load)),
        Compared("never written", None, _names(load.unwritten)),
        Compared("tensors without effect", None, _names(load.without_effect or ())),
    )


def _parameters(rules: HeadRules, load: EngineLoad) -> Compared:
    """Names and shapes. A stacked parameter has its parts' rows together; a padded one may have more."""
    expected: dict[str, list[int]] = {}
    for slot in rules.slots:
        if slot.parameter in expected:
            expected[slot.parameter][0] += slot.shape[0]
        else:
            expected[slot.parameter] = list(slot.shape)
    for name in SHARED:
        if name in expected:
            expected[name][0] = -(-expected[name][0] // _PADDED) * _PADDED
    real = {name: list(one.shape) for name, one in load.parameters.items()}
    if expected == real:
        listing = "; ".join(f"{name} {shape}" for name, shape in sorted(real.items()))
        return Compared("parameters", listing, listing)
    return Compared("parameters", _only(expected, real), _only(real, expected), agree=False)


def _fills(model: ModelFacts, rules: HeadRules, loading: Loading, load: EngineLoad) -> Compared:
    """Which tensors fill which parameter, and what stays unwritten."""
    tensors = model.drafter.weights.tensors if model.drafter and model.drafter.weights else {}
    expected: dict[str, str] = {}
    for name in dict.fromkeys(slot.parameter for slot in rules.slots):
        slots = [slot for slot in rules.slots if slot.parameter == name]
        filled = [loading.filled[slot.key] for slot in slots if slot.key in loading.filled]
        state = "no" if len(filled) == len(slots) else "partly" if filled else "wholly"
        loose = any(
            slot.key in loading.filled and tensors[loading.filled[slot.key]].shape != slot.shape for slot in slots
        )
        if loose and name in load.parameters:  # a tensor of another shape: how much of it fits is SGLang's affair
            state = str(load.parameters[name].unwritten)
        expected[name] = _filling(filled, state)
    real = {name: _filling(one.sources, str(one.unwritten)) for name, one in load.parameters.items()}
    if expected == real:
        text = _names(name for name, one in load.parameters.items() if one.unwritten != "no")
        return Compared("never written by the file", text, text)
    return Compared("filled by", _only(expected, real), _only(real, expected), agree=False)


def _filling(sources: Iterable[str], unwritten: str) -> str:
    return ", ".join(sorted(sources)) + {"no": "", "partly": " (in part)", "wholly": "nothing"}[unwritten]


def _dropped(loading: Loading, load: EngineLoad) -> Compared:
    maps = set(loading.other_maps) | {loading.map_name}
    expected = sorted({*loading.dropped, *loading.overwritten, *loading.masks} - maps)
    real = sorted(load.without_effect or ())
    return Compared("tensors without effect", _names(expected), _names(real), expected == real)


def _map(model: ModelFacts, loading: Loading, load: EngineLoad) -> Compared:
    name = load.map_names[-1] if load.map_names else None
    real = "none"
    if load.map is not None:
        real = f"{name}, {load.map['length']} entries of {load.map['dtype']}"
        real += f", sha256 {load.map['sha256'][:12]}" if "sha256" in load.map else ""
    d2t, statistics = model.map.d2t, model.map.statistics
    if loading.map_name is None or d2t is None or statistics is None:
        foretold = "none" if loading.map_name is None else f"{loading.map_name}, {d2t.count if d2t else '?'} entries"
        agree = loading.map_name == name and (real == "none" or d2t is None or real.startswith(foretold))
        return Compared("map", foretold, real, agree)
    foretold = f"{loading.map_name}, {d2t.count} entries, sha256 {map_fingerprint(statistics.ids)[:12]}"
    agree = (loading.map_name, d2t.count) == (name, load.map["length"] if load.map else None)
    if load.map is not None and "sha256" in load.map:
        agree = agree and load.map["sha256"] == map_fingerprint(statistics.ids)
    return Compared("map", foretold, real, agree)


def _shared(rules: HeadRules, load: EngineLoad) -> Compared:
    expected = ["embedding"] if rules.borrows_embedding else []
    expected += ["head"] if rules.borrows_head else []
    expected += ["head is the embedding"] if rules.tied else []
    real = [SHARED[name] for name in SHARED if name in load.shared]
    real += ["head is the embedding"] if load.tied else []
    return Compared("taken from the target", _names(expected), _names(real), expected == real)


def _captured(model: ModelFacts, load: EngineLoad) -> Iterator[Compared]:
    """The layers that the target would capture, as its class stores them."""
    config = model.drafter.readable_config if model.drafter else None
    if model.algorithm != "EAGLE3" or config is None or model.rules is None:
        return
    if not uses_aux_states(config):
        real = _layers(load.captured_layers)
        yield Compared("captured layers", "none", real, real == "none")
    elif load.capture_failure is not None:
        yield Compared("captured layers", None, f"could not be asked: {load.capture_failure}")
    elif model.capture is not None:
        expected = model.capture.requested
        yield Compared(
            "captured layers", _layers(expected), _layers(load.captured_layers), expected == load.captured_layers
        )
    else:
        yield Compared("captured layers", None, _layers(load.captured_layers))


def _layers(layers: tuple[int, ...] | None) -> str:
    return ", ".join(map(str, layers)) if layers else "none"


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _only(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    return "; ".join(f"{key}: {one[key]}" for key in sorted(one) if other.get(key) != one[key]) or "nothing more"


def _count(load: EngineLoad) -> str:
    return "; ".join(f"{name} {list(one.shape)}" for name, one in sorted(load.parameters.items()))


@check("drafter.engine_load", source="engine/oracle.py: the class's own load_weights, on the CPU")
def engine_load(self: Check, facts: Facts) -> Iterator[Finding]:
    """The installed SGLang builds and loads the drafter as foretold, every parameter filled (`--with-engine`)."""
    checkpoint, model = drafter(facts), models(facts)
    load = model.engine
    if load is None:
        raise Skip("only `check --with-engine` asks SGLang itself")
    if isinstance(load, NoAnswer):
        yield self.error(str(load), remedy=load.remedy, exit_code=load.exit_code)
        return
    where = str(checkpoint.directory)
    if load.failure is not None:
        yield self.error(
            f"SGLang {load.version} raises as it {_STAGES[load.stage]}: {load.failure}",
            where=where,
            remedy="see the other findings; what they do not name is for `guarded-serve inspect DRAFTER`",
        )
    read = _read_unwritten(model, load)
    if read:
        yield self.error(
            f"SGLang {load.version} leaves {_names(read)} unwritten: what their memory held would stay there",
            expected="every parameter that the forward pass reads filled from the file or by the target",
            found=f"{len(read)} of {len(load.parameters)} unwritten",
            where=where,
            remedy="compare the names with `guarded-serve inspect DRAFTER`; check num_hidden_layers and the export",
        )
    for one in compare(model, load):
        if one.agree:
            yield self.info(
                f"SGLang {load.version}: {one.what}" + ("" if one.foretold is None else ", as foretold"),
                found=one.real,
            )
        else:
            yield self.warning(
                f"{one.what}: SGLang {load.version} does something else than was foretold; its word counts",
                expected=one.foretold,
                found=one.real,
                where=where,
                remedy="please report it: the rules for this version are wrong",
            )


_STAGES = {
    "config": "reads the drafter's config.json",
    "build": "builds the drafter's class",
    "load": "loads the drafter",
    "share": "shares the target's embedding with the drafter",
}


def _read_unwritten(model: ModelFacts, load: EngineLoad) -> list[str]:
    """Unwritten parameters that forward reads; what the rules know to be unread does not count."""
    unread = {slot.parameter for slot in model.rules.slots if not slot.read} if model.rules else set()
    return [name for name in load.unwritten if name not in unread]


CHECKS = (engine_load,)
