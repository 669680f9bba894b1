"""Drafting without an EAGLE-3 head: EAGLE and NEXTN with or without a path, STANDALONE, NGRAM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from guarded_serve.checks.drafter_config import PADDING
from guarded_serve.checks.interface import Check, Skip, check
from guarded_serve.checks.model_facts import drafter_config, models, target_config
from guarded_serve.engine_rules.self_draft import drafts_itself, self_draft_tensors
from guarded_serve.findings import Finding

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts


@check(
    "drafter.own_layers",
    needs=("target.config", "target.weights"),
    source="srt/configs/model_config.py: _config_draft_model",
)
def own_layers(self: Check, facts: Facts) -> Iterator[Finding]:
    """EAGLE or NEXTN without a drafter: the target has layers of its own to draft with, and they are in its files."""
    model = models(facts)
    same = model.drafter is not None and model.drafter.identity == model.target.identity
    if model.algorithm != "EAGLE" or (model.drafter is not None and not same):
        raise Skip("the rule is for EAGLE and NEXTN without a drafter of their own")
    config = target_config(facts)
    name = config.architecture or "none"
    if not drafts_itself(name, model.version):
        yield self.error(
            f"{model.algorithm_given} without a drafter needs a target with layers to draft with, and {name} has none",
            expected="a drafter, or a target such as DeepseekV3ForCausalLM",
            found=name,
            where=str(config.path),
            remedy="set speculative_draft_model_path",
        )
        return
    layers = config.integer("num_hidden_layers")
    weights = model.target.weights
    if weights is None or layers is None or not weights.tensors:
        raise Skip("the target's weights could not be looked through")
    if config.get("num_nextn_predict_layers") == 0 or not self_draft_tensors(weights.tensors, layers):
        yield self.error(
            f"the target's files hold no layers to draft with beyond its {layers}: they would keep random values",
            expected=f"tensors of layer {layers} and up, or of an MTP module",
            found="none",
            where=str(weights.directory),
            remedy="use a release of the target that ships them, or set speculative_draft_model_path",
        )


@check(
    "drafter.eagle_class",
    needs=("drafter.config", "drafter.algorithm"),
    source="srt/models/*_eagle.py, *_nextn.py, *_mtp.py",
)
def eagle_class(self: Check, facts: Facts) -> Iterator[Finding]:
    """EAGLE or NEXTN with a drafter: its class is one that drafts, and its width is the target's."""
    model = models(facts)
    if model.algorithm != "EAGLE" or model.drafter is None or model.drafter.identity == model.target.identity:
        raise Skip("the rule is for EAGLE and NEXTN with a drafter of their own")
    config, target = drafter_config(facts), target_config(facts)
    name = config.architecture or "none"
    if not (name.endswith(("Eagle", "NextN", "MTP")) or "Assistant" in name or drafts_itself(name, model.version)):
        yield self.warning(
            f"the drafter's class {name} is not one that these rules know for EAGLE: it is left to the load gate",
            expected="a class such as LlamaForCausalLMEagle",
            found=name,
            where=str(config.path),
        )
    ours, theirs = config.integer("hidden_size"), target.integer("hidden_size")
    if name.endswith("Eagle") and ours is not None and theirs is not None and ours != theirs:
        yield self.error(
            f"the drafter is made for hidden states of {ours}, the target's are {theirs} wide",
            expected=str(theirs),
            found=str(ours),
            where=str(config.path),
            remedy="use the drafter of this target",
        )


@check(
    "drafter.standalone",
    needs=("drafter.config", "target.config", "drafter.algorithm"),
    source="sglang 24051; standalone_worker_v2.py",
)
def standalone(self: Check, facts: Facts) -> Iterator[Finding]:
    """STANDALONE: drafter and target have one vocabulary."""
    if models(facts).algorithm != "STANDALONE":
        raise Skip("the rule is STANDALONE's")
    config, target = drafter_config(facts), target_config(facts)
    ours, theirs = config.integer("vocab_size"), target.integer("vocab_size")
    if ours is None or theirs is None or ours == theirs:
        return
    evidence = {"expected": str(theirs), "found": str(ours), "where": str(config.path)}
    known = models(facts).tokenizer_length
    if abs(ours - theirs) < PADDING and known is not None and known <= min(ours, theirs):
        yield self.warning(
            f"the drafter's vocabulary has {ours} tokens, the target's {theirs}: one is padded", **evidence
        )
    else:
        yield self.error(
            f"the drafter's vocabulary has {ours} tokens, the target's {theirs}: drafted ids mean other tokens",
            remedy="use a drafter with the target's tokenizer",
            **evidence,
        )


CHECKS = (own_layers, eagle_class, standalone)
