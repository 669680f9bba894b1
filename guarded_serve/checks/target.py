"""The target's folder: there, readable, whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from guarded_serve.checkpoint.hub import ELSEWHERE
from guarded_serve.checkpoint.problem import HARMLESS
from guarded_serve.checks.interface import Check, Skip, check
from guarded_serve.checks.model_facts import flag, from_problems, models, target_config
from guarded_serve.engine_rules.capture import shift_rule
from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts


COMPARED = (
    "architectures",
    "hidden_size",
    "num_hidden_layers",
    "vocab_size",
    "max_position_embeddings",
    "tie_word_embeddings",
    "rope_scaling.factor",
    "rope_parameters.factor",
)
"""Keys of the target that rules about drafters read."""


@check("target.path", exit_code=ExitCode.MISSING, source="srt/model_loader/weight_utils.py: a folder, else a hub id")
def path(self: Check, facts: Facts) -> Iterator[Finding]:
    """The target is a folder on disk, or a hub id that can be resolved."""
    target = models(facts).target
    if target.missing is not None and target.missing.kind == ELSEWHERE:
        raise Skip(target.missing.message)
    if target.missing is not None:
        yield self.error(
            f"the target is not there: {target.missing.message}",
            expected="a model folder or a hub id",
            found=target.given,
            where=target.origin or None,
            remedy=target.missing.remedy or f"correct {flag(target.setting)}",
        )


@check(
    "target.config",
    needs=("target.path",),
    source="transformers: AutoConfig.from_pretrained raises on it",
    remedy="copy the config.json again from where the target is published",
)
def config(self: Check, facts: Facts) -> Iterator[Finding]:
    """The target's config.json can be read, and the sizes that a drafter is held against are sizes."""
    model = models(facts)
    if model.target.config is None:
        raise Skip("there is no target folder")
    if model.overrides is not None:
        yield self.error(
            model.overrides.message,
            expected='an object, such as {"num_hidden_layers": 8}',
            found=model.overrides.found,
            where=flag("json_model_override_args"),
            remedy="correct json_model_override_args",
        )
    for problem in model.target.config.problems:
        # What a size of some other kind means is for the target's own class to know: Gemma 3n has a list of them.
        if problem.kind == "bad-value" and (model.algorithm is None or problem.key not in COMPARED):
            yield self.info(f"{problem.message}; no rule reads it here", found=problem.found, where=problem.where)
        else:
            yield from from_problems(self, (problem,))


@check(
    "target.weights",
    needs=("target.path",),
    source="sglang 32279; OmniParser 34, PersuGPT 2, vmlx-swift 217",
    remedy="copy or download the folder again",
)
def weights(self: Check, facts: Facts) -> Iterator[Finding]:
    """Every shard of the target is there and as long as its header says."""
    target = models(facts).target
    if str(facts.deployment.get("load_format") or "").lower() == "dummy":
        raise Skip("load_format is dummy: SGLang reads no weights of the target")
    if target.weights is None:
        raise Skip("the target's weights are not fetched yet; SGLang fetches them at its start")
    # A target may be a pickle or GGUF that SGLang loads: its own business.
    yield from from_problems(self, target.weights.problems, warn=(*HARMLESS, "pickle-only"))


@check("target.captures_layers", needs=("target.config",), source="srt/models/*: set_eagle3_layers_to_capture")
def captures_layers(self: Check, facts: Facts) -> Iterator[Finding]:
    """Under EAGLE3, the target's class is one that hands its layers' states to a drafter."""
    model = models(facts)
    if model.algorithm != "EAGLE3":
        raise Skip(f"the rule is EAGLE3's; the algorithm is {model.algorithm or 'none'}")
    name = target_config(facts).architecture
    if name is None:
        yield self.error("the target's config.json names no architecture", remedy="add `architectures` to it")
    elif shift_rule(name, model.version) is None:
        yield self.warning(
            f"which layers {name} captures for an EAGLE-3 drafter is not known to these rules",
            found=name,
            remedy="the load gate and the probe will judge it; watch the accept length",
        )
    elif model.target_layers is None:
        yield self.warning(
            f"the target's config.json does not say how many layers {name} has, so that which of them it captures for "
            "the drafter is not known",
            expected="num_hidden_layers",
            found="absent",
            where=str(target_config(facts).path),
            remedy="the load gate and the probe will judge it; watch the accept length",
        )


CHECKS = (path, config, weights, captures_layers)
