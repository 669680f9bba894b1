"""The drafter's config.json against the target's, as the installed SGLang reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from guarded_serve.checkpoint.config import QUANTIZATION_NAME
from guarded_serve.checks.interface import Check, Skip, check
from guarded_serve.checks.model_facts import (
    drafter_config,
    drafter_weights,
    eagle3_config,
    head,
    models,
    target_config,
)
from guarded_serve.engine_rules.capture import default_layers, uses_aux_states
from guarded_serve.engine_rules.drafter import LLAMA_HEAD
from guarded_serve.engine_rules.settings import (
    ROPE_TYPES,
    DraftShape,
    context_length,
    default_shape,
    forced_dtype,
    raises_on_longer_context,
    runtime_dtype,
)
from guarded_serve.facts.draft_quantization import SETTING, inherits
from guarded_serve.facts.environment import is_true
from guarded_serve.findings import Finding

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts

PADDING = 1024
"""Vocabularies of one tokenizer differ by less than this when one is padded (151936 against 152064)."""


@check(
    "drafter.hidden_size",
    needs=("drafter.builds", "target.config"),
    source="srt/speculative/eagle_utils.py; sglang 4716",
)
def hidden_size(self: Check, facts: Facts) -> Iterator[Finding]:
    """The drafter takes hidden states of the target's width."""
    expected, _ = head(facts)
    target = target_config(facts).integer("hidden_size")
    if target is None:
        raise Skip("the target's config.json has no hidden_size")
    size = expected.dimensions
    if size.target_hidden != target:
        key = "target_hidden_size" if drafter_config(facts).integer("target_hidden_size") else "hidden_size"
        yield self.error(
            f"the drafter is made for hidden states of {size.target_hidden}, the target's are {target} wide",
            expected=str(target),
            found=f"{key} {size.target_hidden}",
            where=str(drafter_config(facts).path),
            remedy="use the drafter of this target; if hidden sizes differ on purpose, set target_hidden_size",
        )


@check(
    "drafter.vocab_size",
    needs=("drafter.builds", "target.config"),
    source="vLLM 7252, Qwen3 466",
    remedy="none is needed if the tokenizers are one; `[drafter] trained_for` lets the guard compare them",
)
def vocab_size(self: Check, facts: Facts) -> Iterator[Finding]:
    """The drafter's vocabulary is the target's, give or take padding."""
    expected, _ = head(facts)
    target = target_config(facts).integer("vocab_size")
    if target is None:
        raise Skip("the target's config.json has no vocab_size")
    ours, where = expected.dimensions.vocabulary, str(drafter_config(facts).path)
    if ours != target:
        padded = abs(ours - target) < PADDING
        message = f"the drafter's vocabulary has {ours} tokens, the target's {target}"
        evidence = {"expected": str(target), "found": str(ours), "where": where}
        known = models(facts).tokenizer_length
        if padded and (known is None or known <= min(ours, target)):
            yield self.warning(f"{message}: one of them is padded", **evidence)
        else:
            yield self.error(
                f"{message}: it was made for another tokenizer", remedy="use the drafter of this target", **evidence
            )
    draft = expected.dimensions.draft_vocabulary
    if draft > max(ours, target):
        yield self.error(
            f"draft_vocab_size {draft} is larger than the target's vocabulary of {target}",
            expected=f"at most {target}",
            found=str(draft),
            where=where,
        )


@check(
    "drafter.aux_layers",
    needs=("drafter.builds", "target.config"),
    source="spec_aux_hidden_state.py; set_eagle3_layers_to_capture of the target's class; sglang 32226, 21274, 25454",
    remedy="name three layers in eagle_config.eagle_aux_hidden_state_layer_ids, as the drafter was trained",
)
def aux_layers(self: Check, facts: Facts) -> Iterator[Finding]:
    """The layers that SGLang will capture are those that the drafter was trained on."""
    expected, _ = head(facts)
    config, target, model = drafter_config(facts), target_config(facts), models(facts)
    if not uses_aux_states(config):
        raise Skip("eagle_config.use_aux_hidden_state is false")
    capture = model.capture
    if capture is None:
        raise Skip("which layers the target captures is not known")
    where, layers = str(config.path), capture.layers
    shown = f"captured: {_list(capture.captured)} of {layers} layers (states entering a layer)"
    if capture.is_default and len(capture.captured) < 3:
        yield self.error(
            f"the target has {layers} layers, too few for SGLang's default of three ({_list(capture.requested)})",
            expected="7 layers or more, or ids in eagle_config.eagle_aux_hidden_state_layer_ids",
            found=str(layers),
            where=where,
        )
    elif capture.configured is not None and (capture.lost or len(set(capture.requested)) < len(capture.requested)):
        yield self.error(
            f"ids {_list(capture.configured)} become layers {_list(capture.requested)} in {target.architecture} "
            f"({capture.shift.value}), of which it has {len(capture.captured)}: SGLang would die in the first forward",
            expected=f"{len(capture.requested)} different layers below {layers}",
            found=shown,
            where=f"{where}: eagle_config.eagle_aux_hidden_state_layer_ids",
            remedy="name states that leave a layer, counted from 0, as SpecForge does",
        )
    elif capture.configured is not None and list(capture.requested) != sorted(capture.requested):
        yield self.error(
            f"ids {_list(capture.configured)} are not in ascending order, and SGLang hands states over in layer order",
            expected=_list(tuple(sorted(capture.configured))),
            found=_list(capture.configured),
            where=f"{where}: eagle_config.eagle_aux_hidden_state_layer_ids",
            remedy="if it was trained in this order, the columns of fc must be put in layer order",
        )
    elif expected.dimensions.aux_states != len(capture.captured):
        yield self.error(
            f"the drafter takes {expected.dimensions.aux_states} states, SGLang captures {len(capture.captured)} "
            f"({_list(capture.captured)})",
            expected=str(expected.dimensions.aux_states),
            found=shown,
            where=where,
            remedy="put as many ids into eagle_config.eagle_aux_hidden_state_layer_ids as fc takes states",
        )
    else:
        yield from _as_trained(self, facts, shown)


def _as_trained(self: Check, facts: Facts, shown: str) -> Iterator[Finding]:
    """The captured layers exist; are they the trained ones?"""
    config, model = drafter_config(facts), models(facts)
    capture, top = model.capture, config.top_aux_ids
    if capture is None:
        return
    where = f"{config.path}: eagle_aux_hidden_state_layer_ids"
    if capture.is_default and top is not None:
        default = capture.captured
        named = f"the aux layer ids {_list(top)} stand at top level, where SGLang does not look"
        remedy = 'put them into "eagle_config": {"eagle_aux_hidden_state_layer_ids": [...]}, as states leaving a layer'
        if default in (top, tuple(number + 1 for number in top)):
            yield self.warning(
                f"{named}; its default captures the same layers",
                expected=_list(top),
                found=shown,
                where=where,
                remedy=remedy,
            )
        else:
            yield self.error(
                f"{named}: it would capture its default instead",
                expected=_list(top),
                found=shown,
                where=where,
                remedy=remedy,
            )
    elif capture.is_default:
        yield self.warning(
            "the drafter's config.json names no aux layers, so SGLang captures its default; the probe decides",
            expected="the layers that it was trained on",
            found=shown,
            where=str(config.path),
            remedy="put the trained ids into eagle_config.eagle_aux_hidden_state_layer_ids",
        )
    elif capture.configured == default_layers(capture.layers) and capture.requested != capture.configured:
        yield self.warning(
            f"ids {_list(capture.configured)} read like states entering a layer, and SGLang adds 1 to each",
            expected=f"captured: {_list(capture.configured)} if they do",
            found=shown,
            where=f"{config.path}: eagle_config.eagle_aux_hidden_state_layer_ids",
            remedy="if accept length is low, lower each id by 1",
        )
    else:
        yield self.info(f"aux layers {_list(capture.configured or ())}, {shown}")


def _list(numbers: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, numbers)) + "]"


@check(
    "drafter.switches", needs=("drafter.builds",), source="sglang 32334; srt/models/llama_eagle3.py, kimi_k25_eagle3.py"
)
def switches(self: Check, facts: Facts) -> Iterator[Finding]:
    """Every switch in the drafter's config.json is one that the installed class obeys."""
    expected, _ = head(facts)
    config, version = drafter_config(facts), models(facts).version
    llama = expected.class_name == LLAMA_HEAD
    dotted = ".".join(map(str, version))
    if config.get("norm_before_residual") is True:
        yield self.error(
            f"norm_before_residual is true, which {expected.class_name} lacks: it takes the residual before the norm",
            expected="false",
            found="true",
            where=str(config.path),
            remedy="retrain or export with norm_before_residual false; no SGLang up to 0.5.23 serves this head",
        )
    wants_norm = config.eagle.get("norm_before_fc", config.raw.get("norm_before_fc"))
    if wants_norm is True and (not llama or version < (0, 5, 17)):
        yield self.error(
            f"norm_before_fc is true, which {expected.class_name} of SGLang {dotted} does not do",
            expected="false",
            found="true",
            where=str(config.path),
            remedy="use SGLang 0.5.17 or newer" if llama else "no SGLang up to 0.5.23 does this for an MLA head",
        )
    for key in ("fc_norm", "norm_output", "use_aux_norm"):
        if config.eagle.get(key) and not config.raw.get(key):
            yield self.error(
                f"eagle_config.{key} is set, but {expected.class_name} reads it at top level only",
                expected=f"{key} at top level",
                found=f"eagle_config.{key}",
                where=str(config.path),
                remedy=f'move "{key}" out of eagle_config',
            )
    explicit = config.integer("num_aux_hidden_states")
    if explicit is not None and not llama:
        yield self.warning(
            f"num_aux_hidden_states is {explicit}, which {expected.class_name} does not read",
            found=str(explicit),
            where=str(config.path),
        )


@check("drafter.tied", needs=("drafter.builds",), source="sglang 8230; llama_eagle3.py: lm_head = embed_tokens")
def tied(self: Check, facts: Facts) -> Iterator[Finding]:
    """tie_word_embeddings is false where the drafter has a vocabulary or a head of its own."""
    expected, _ = head(facts)
    config, weights = drafter_config(facts), drafter_weights(facts)
    if not expected.tied:
        return
    size = expected.dimensions
    where, remedy = f"{config.path}: tie_word_embeddings", 'set "tie_word_embeddings": false'
    if size.draft_vocabulary != size.vocabulary:
        yield self.error(
            f"tie_word_embeddings is true with a draft vocabulary of {size.draft_vocabulary} below {size.vocabulary}: "
            "the full-width embedding becomes the head, and its ids run out of the map",
            expected="false",
            found="true",
            where=where,
            remedy=remedy,
        )
    elif any(name.endswith("lm_head.weight") for name in weights.tensors):
        yield self.error(
            "tie_word_embeddings is true, but the file has an lm_head, which SGLang would drop for the embedding",
            expected="false",
            found="true",
            where=where,
            remedy=remedy,
        )


@check(
    "drafter.rope",
    needs=("drafter.config",),
    source="srt/layers/rotary_embedding/factory.py; AngelSlim Qwen3-4B",
    remedy="correct rope_scaling in the drafter's config.json",
)
def rope(self: Check, facts: Facts) -> Iterator[Finding]:
    """The drafter's rotary settings are ones that SGLang knows (a base other than the target's is no fault)."""
    config = eagle3_config(facts).flat
    ours = config.rope
    if ours.type not in ROPE_TYPES:
        yield self.error(
            f"rope type {ours.type!r} is not one that SGLang knows",
            expected=", ".join(ROPE_TYPES),
            found=ours.type,
            where=str(config.path),
        )
    for place in ("rope_parameters", "rope_scaling"):
        nested = config.get(place)
        if isinstance(nested, dict) and nested.get("rope_theta") is not None and config.get("rope_theta") is not None:
            inner, outer = nested["rope_theta"], config.get("rope_theta")
            if inner != outer:
                yield self.warning(
                    f"rope_theta is {outer} at top level and {inner} in {place}; SGLang takes {inner}",
                    expected=str(outer),
                    found=str(inner),
                    where=str(config.path),
                    remedy="keep the one that it was trained with",
                )
    target = models(facts).target.readable_config
    if target is not None and target.rope.theta != ours.theta:
        yield self.info(
            f"rope base {ours.theta or 10000:g}, the target's is {target.rope.theta or 10000:g}: right if trained so"
        )


@check(
    "drafter.context_length",
    needs=("drafter.config", "target.config"),
    source="srt/configs/model_config.py: _derive_context_length; sglang 10787, 6783",
    remedy="set context_length to the drafter's, or use a drafter that was trained for longer contexts",
)
def served_context(self: Check, facts: Facts) -> Iterator[Finding]:
    """The served context is not longer than the drafter's max_position_embeddings."""
    config, target, model = drafter_config(facts), target_config(facts), models(facts)
    if model.algorithm not in ("EAGLE3", "EAGLE", "STANDALONE"):
        raise Skip(f"the rule is not known for {model.algorithm}")
    explicit = facts.deployment.get("context_length")
    served = explicit if type(explicit) is int and explicit > 0 else context_length(target)
    ours = context_length(config)
    if served <= ours:
        return
    allowed = is_true(model.environment.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"))
    message = f"the served context is {served} tokens, the drafter's {ours}"
    evidence = {"expected": f"at most {ours}", "found": str(served), "where": str(config.path)}
    set_here = explicit is not None
    if not allowed and raises_on_longer_context(model.version, explicit=set_here):
        yield self.error(
            f"{message}: SGLang {'.'.join(map(str, model.version))} raises at its start",
            remedy=f"set context_length to {ours}; or, with a drafter that holds up beyond it, "
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
            **evidence,
        )
    else:
        yield self.warning(
            f"{message}: past that its drafts are worth little, and a rope cache may be read out of bounds", **evidence
        )


@check(
    "drafter.dtype",
    needs=("drafter.config", "target.config"),
    source="sglang 3431, SpecForge 231; _get_and_verify_dtype",
)
def dtype(self: Check, facts: Facts) -> Iterator[Finding]:
    """A drafter that takes the target's hidden states computes in the target's dtype."""
    config, target, algorithm = drafter_config(facts), target_config(facts), models(facts).algorithm
    if algorithm not in ("EAGLE3", "EAGLE"):
        raise Skip(f"the rule is for drafters that take hidden states; the algorithm is {algorithm}")
    setting = forced_dtype(target) or facts.deployment.get("dtype")
    theirs, ours = runtime_dtype(target, setting), runtime_dtype(config, setting)
    if theirs == ours:
        return
    stored = config.dtype or "absent, which means float32"
    message = f"SGLang would run the target in {theirs} and the drafter in {ours} (its config.json's dtype is {stored})"
    evidence = {"expected": theirs, "found": ours, "where": str(config.path)}
    if target.dtype is None:
        yield self.warning(
            f"{message}, if it takes the target's absent dtype for float32",
            remedy="set dtype, so that both run in one",
            **evidence,
        )
    else:
        yield self.error(
            f"{message}: the target's hidden states would not fit its matrices",
            remedy=f"set dtype to {theirs}, or correct the drafter's config.json",
            **evidence,
        )


@check(
    "drafter.quantization",
    needs=("drafter.config",),
    source="srt/arg_groups/serving_hook.py; sglang 28196",
    remedy="the load gate judges the names and shapes; run `guarded-serve smoke`",
)
def quantization(self: Check, facts: Facts) -> Iterator[Finding]:
    """The drafter does not inherit a --quantization that is meant for the target."""
    config, deployment = drafter_config(facts), facts.deployment
    if config.quantized:
        yield self.warning(
            "the drafter is quantized: its tensors' names and shapes are left to the load gate",
            found=f"{QUANTIZATION_NAME}: {config.quant_algo}" if config.quant_algo else "quantization_config",
            where=str(config.path),
        )
    if inherits(deployment, config):
        yield self.warning(
            f"quantization {deployment.get('quantization')} is set for the target, and SGLang gives it to the drafter "
            "too, which is not quantized",
            expected=f"{SETTING} unquant",
            found="unset",
            where=str(config.path),
            remedy="add --speculative-draft-model-quantization unquant; the launcher adds it itself, and says so",
        )


@check("drafter.settings", source="srt/arg_groups/speculative_hook.py: _handle_eagle_family")
def settings(self: Check, facts: Facts) -> Iterator[Finding]:
    """Steps, topk and draft tokens are all set or all unset, and fit each other."""
    model, get = models(facts), facts.deployment.get
    if model.algorithm not in ("EAGLE3", "EAGLE", "STANDALONE"):
        raise Skip(f"the rule is EAGLE's; the algorithm is {model.algorithm or 'none'}")
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    values = [get(name) for name in names]
    given = [f"{name} {value}" for name, value in zip(names, values, strict=True) if value is not None]
    if not given:
        target = model.target.readable_config
        shape = default_shape(model.algorithm, target.architecture if target else None)
        yield self.info(f"SGLang chooses steps {shape.steps}, topk {shape.topk}, draft tokens {shape.draft_tokens}")
        return
    if get("speculative_adaptive"):
        raise Skip("speculative_adaptive chooses the steps")
    if len(given) < 3:
        missing = ", ".join(name for name, value in zip(names, values, strict=True) if value is None)
        yield self.error(
            f"{', '.join(given)} set without {missing}: SGLang wants all three or none",
            expected="all three or none",
            found=", ".join(given),
            remedy=f"set {missing}",
        )
        return
    steps, topk, tokens = values
    if not all(type(value) is int and value > 0 for value in values):
        yield self.error("steps, topk and draft tokens are numbers of at least 1", found=", ".join(given))
        return
    shape = DraftShape(steps, topk, tokens)
    if topk == 1 and tokens != steps + 1:
        yield self.warning(
            f"with topk 1, SGLang sets draft tokens to steps + 1 = {steps + 1}, whatever is asked for",
            expected=str(steps + 1),
            found=str(tokens),
            remedy=f"set speculative_num_draft_tokens to {steps + 1}",
        )
    elif topk > 1 and tokens - 1 > shape.tree_size:
        yield self.error(
            f"{tokens} draft tokens, but a tree of {steps} steps and topk {topk} holds {shape.tree_size}: "
            "the first request would fail",
            expected=f"at most {shape.tree_size + 1}",
            found=str(tokens),
            remedy=f"set speculative_num_draft_tokens to {shape.tree_size + 1} or less",
        )


@check("drafter.graph_batch", source="EAGLE 298; srt/arg_groups: --cuda-graph-max-bs")
def graph_batch(self: Check, facts: Facts) -> Iterator[Finding]:
    """CUDA graphs are captured up to the batch size that is expected: beyond it drafting runs without them, slowly."""
    model, get = models(facts), facts.deployment.get
    if model.algorithm is None:
        raise Skip("no speculative algorithm is set")
    for name in ("cuda_graph_max_bs_decode", "cuda_graph_max_bs"):
        limit = get(name)
        if type(limit) is not int or not facts.deployment.is_set(name):
            continue
        profile = facts.deployment.profile
        wanted = [("max_running_requests", get("max_running_requests"))]
        if "batch_sizes" in profile.smoke.model_fields_set:
            wanted.append(("smoke.batch_sizes", max(profile.smoke.batch_sizes)))
        over = [(what, size) for what, size in wanted if type(size) is int and size > limit]
        if over:
            what, size = over[0]
            yield self.warning(
                f"{name} is {limit}, but {what} allows batches of {size}: those beyond {limit} draft and verify "
                "without CUDA graphs",
                expected=f"at least {size}",
                found=str(limit),
                remedy=f"raise {name}, or lower {what}",
            )
        return


@check("drafter.target_class", needs=("drafter.config", "target.config"), source="speculators_config.verifier")
def verifier(self: Check, facts: Facts) -> Iterator[Finding]:
    """Where the drafter records the target that it was trained for, it is this one."""
    config, target = drafter_config(facts), target_config(facts)
    name, architecture = config.verifier
    if name is None and architecture is None:
        raise Skip("the drafter records no target (only the speculators format does)")
    if architecture is not None and target.architecture is not None and architecture != target.architecture:
        yield self.error(
            f"the drafter was trained for a {architecture}, the target is a {target.architecture}",
            expected=architecture,
            found=target.architecture,
            where=f"{config.path}: speculators_config.verifier",
            remedy="use the drafter of this target",
        )
    elif (
        name is not None
        and name.rstrip("/").rpartition("/")[2] != models(facts).target.given.rstrip("/").rpartition("/")[2]
    ):
        yield self.warning(
            f"the drafter was trained for {name}, the target is {models(facts).target.given}",
            expected=name,
            found=models(facts).target.given,
            where=f"{config.path}: speculators_config.verifier",
        )


CHECKS = (
    hidden_size,
    vocab_size,
    aux_layers,
    switches,
    tied,
    rope,
    served_context,
    dtype,
    quantization,
    settings,
    graph_batch,
    verifier,
)
