"""The drafter's kind: the algorithm, the class that SGLang will build, and the settings that make it what it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from guarded_serve.checkpoint.weights import Weights
from guarded_serve.checks.interface import Check, Skip, check
from guarded_serve.checks.model_facts import drafter_config, drafter_weights, head, models, only_eagle3
from guarded_serve.engine_rules.drafter import EAGLE3_CLASSES, LLAMA_HEAD, MLA_HEAD
from guarded_serve.findings import Finding

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts

KNOWN_ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE", "NGRAM")
SIMULATION = ("SGLANG_SIMULATE_ACC_LEN", "SGLANG_SIMULATE_ACC_GREEDY", "SGLANG_DSPARK_SIMULATE_FOLD")
_OFF = ("", "0", "false", "no", "n", "off", "-1")


@check("drafter.environment", source="srt/environ.py: SGLANG_SIMULATE_ACC_LEN")
def environment(self: Check, facts: Facts) -> Iterator[Finding]:
    """No environment variable makes SGLang invent its accept length."""
    model = models(facts)
    if model.algorithm is None:
        raise Skip("no speculative algorithm is set")
    for name in SIMULATION:
        value = model.environment.get(name)
        if value is None or value.strip().lower() in _OFF or _not_positive(value):
            continue
        if name == "SGLANG_SIMULATE_ACC_GREEDY" and "SGLANG_SIMULATE_ACC_LEN" not in model.environment:
            continue
        yield self.error(
            f"{name} is set: SGLang would report an invented accept length and wrong text",
            expected="unset",
            found=f"{name}={value}",
            where="environment",
            remedy=f"unset {name}",
        )


def _not_positive(value: str) -> bool:
    try:
        return float(value) <= 0
    except ValueError:
        return False


@check(
    "drafter.rules",
    source="docs/compatibility.md: the versions that the rules were read from and held against",
    remedy="the load gate and the probe judge what these rules cannot; run `guarded-serve smoke`",
)
def rules(self: Check, facts: Facts) -> Iterator[Finding]:
    """The installed SGLang and the algorithm are among those that these rules were read from."""
    model = models(facts)
    if model.algorithm is None:
        raise Skip("no speculative algorithm is set")
    if model.version_note is not None and facts.deployment.sglang_version is not None:
        yield self.warning(
            model.version_note,
            found=facts.deployment.sglang_version,
            remedy="the load gate and the probe judge what these rules cannot; run `guarded-serve smoke`",
        )
    if model.algorithm not in KNOWN_ALGORITHMS:
        yield self.warning(
            f"these rules know nothing of {model.algorithm}: its drafter is left to the load gate and the probe",
            found=model.algorithm,
        )


def looks_like_eagle3(weights: Weights) -> str | None:
    """The sign that tensors are an EAGLE-3 head's, or None."""
    for name, tensor in weights.tensors.items():
        if name == "d2t" or name.endswith(".d2t"):
            return f"it has a {name}"
        if (
            (name == "fc.weight" or name.endswith(".fc.weight"))
            and len(tensor.shape) == 2
            and tensor.shape[1] >= 3 * tensor.shape[0]
        ):
            return f"{name} is {list(tensor.shape)}, as wide as {tensor.shape[1] // tensor.shape[0]} states"
        if name.endswith("hidden_norm.weight"):
            return f"it has a {name}"
    return None


@check("drafter.algorithm", needs=("drafter.config", "drafter.files"), source="sglang 21272: accept length 1.00")
def algorithm(self: Check, facts: Facts) -> Iterator[Finding]:
    """The algorithm is the one that the drafter is for."""
    config, weights, model = drafter_config(facts), drafter_weights(facts), models(facts)
    if model.algorithm not in ("EAGLE", "STANDALONE"):
        raise Skip(f"the rule is for EAGLE and STANDALONE; the algorithm is {model.algorithm}")
    sign = looks_like_eagle3(weights)
    if config.architecture in EAGLE3_CLASSES:
        sign = f"its class is {config.architecture}"
    if sign is not None:
        yield self.error(
            f"the algorithm is {model.algorithm_given}, but the drafter is an EAGLE-3 head ({sign}): "
            "SGLang would pass over its fc and its head, and serve it at an accept length near 1",
            expected="EAGLE3",
            found=model.algorithm_given,
            where="--speculative-algorithm",
            remedy="set speculative_algorithm to EAGLE3",
        )


@check(
    "drafter.class",
    needs=("drafter.config", "drafter.files"),
    source="sglang 33966; srt/models/registry.py",
    remedy="the load gate and the probe judge what these rules cannot; run `guarded-serve smoke`",
)
def head_class(self: Check, facts: Facts) -> Iterator[Finding]:
    """Under EAGLE3, the drafter's class is one of SGLang's EAGLE-3 classes, and its tensors are that class's."""
    only_eagle3(facts)
    config, weights, model = drafter_config(facts), drafter_weights(facts), models(facts)
    name, where = config.architecture, str(config.path)
    is_mla = any("kv_b_proj" in tensor or "kv_a_proj_with_mqa" in tensor for tensor in weights.tensors)
    mend = MLA_HEAD if is_mla else LLAMA_HEAD
    if name in EAGLE3_CLASSES:
        if weights.tensors and (name == MLA_HEAD) is not is_mla and looks_like_eagle3(weights):
            kind = "multi-head latent" if is_mla else "grouped-query"
            yield self.error(
                f"the drafter's tensors are those of {kind} attention, which {name} does not have",
                expected=mend,
                found=name,
                where=where,
                remedy=f'set `"architectures": ["{mend}"]` in its config.json',
            )
        return
    known = ", ".join(EAGLE3_CLASSES)
    if "SGLANG_EXTERNAL_MODEL_PACKAGE" in model.environment and not config.is_speculators:
        yield self.warning(
            f"the drafter's class {name} is not SGLang's own: it is left to the load gate and the probe",
            expected=known,
            found=str(name),
            where=where,
        )
        return
    what = f"the drafter's class is {name}" if name else "the drafter's config.json names no architecture"
    if config.is_speculators:
        remedy = (
            "convert it from the speculators format: the keys of transformer_layer_config at top level, "
            f'"architectures": ["{mend}"], "model_type": "llama", the aux layer ids in eagle_config'
        )
        what += ", in the speculators format"
    else:
        remedy = f'set `"architectures": ["{mend}"]` in its config.json'
    yield self.error(
        f"{what}, which is not one of SGLang's EAGLE-3 classes",
        expected=known,
        found=str(name),
        where=where,
        remedy=remedy,
    )


@check(
    "drafter.builds",
    needs=("drafter.class",),
    source="srt/models/llama_eagle3.py, kimi_k25_eagle3.py: __init__",
    remedy="correct the drafter's config.json; `guarded-serve inspect` shows it beside the tensors",
)
def builds(self: Check, facts: Facts) -> Iterator[Finding]:
    """SGLang can build the drafter's class from its config.json."""
    expected, _ = head(facts)
    config = drafter_config(facts)
    for reason in expected.failures:
        yield self.error(f"SGLang cannot build {expected.class_name}: {reason}", where=str(config.path))
    for key in expected.dimensions.assumed:
        yield self.error(
            f"config.json has no {key}: SGLang would take the default of its config class",
            expected=f"{key} of the trained drafter",
            found="absent",
            where=str(config.path),
            remedy=f"add {key} to the drafter's config.json",
        )


CHECKS = (environment, rules, algorithm, head_class, builds)
