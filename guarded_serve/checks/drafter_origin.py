"""Where the drafter comes from: its tokenizer, the target it was made for, pinned bytes, and a drafter that works."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from guarded_serve.checkpoint.safetensors import Tensor
from guarded_serve.checkpoint.tokenizer import Tokenizer
from guarded_serve.checks.interface import Check, Skip, check
from guarded_serve.checks.model_facts import (
    drafter,
    drafter_config,
    drafter_weights,
    flag,
    from_problems,
    head,
    models,
    only_eagle3,
    target_config,
)
from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts


@check(
    "target.tokenizer",
    needs=("target.path",),
    source="vLLM 7252: the tokenizer tells padding from tokens",
    remedy="copy the tokenizer files again from where the target is published",
)
def target_tokenizer(self: Check, facts: Facts) -> Iterator[Finding]:
    """The target's tokenizer files can be read."""
    found = models(facts).tokenizer
    if found is None:
        raise Skip("nothing is compared with the target's tokenizer")
    yield from from_problems(self, found.problems, warn=tuple(problem.kind for problem in found.problems))


@check(
    "drafter.trained_for",
    needs=("drafter.config", "target.config"),
    source="sglang 4716; the profile: drafter.trained_for",
)
def trained_for(self: Check, facts: Facts) -> Iterator[Finding]:
    """The target has the width and the layers of the model that the profile says the drafter was made for."""
    drafter(facts)
    model = models(facts)
    made_for = model.trained_for
    if made_for is None:
        raise Skip("the profile's drafter.trained_for is not set")
    if made_for.missing is not None:
        yield self.error(
            f"drafter.trained_for is not there: {made_for.missing.message}",
            found=made_for.given,
            remedy="correct trained_for in [drafter]",
            exit_code=ExitCode.MISSING,
        )
        return
    theirs, ours = made_for.readable_config, target_config(facts)
    if theirs is None:
        yield from from_problems(self, made_for.config.problems if made_for.config else ())
        return
    for key, what in (("hidden_size", "hidden states"), ("num_hidden_layers", "layers")):
        if theirs.integer(key) != ours.integer(key):
            yield self.error(
                f"the drafter was made for a target with {key} {theirs.integer(key)}, not {ours.integer(key)}: "
                f"its {what} are others",
                expected=str(theirs.integer(key)),
                found=str(ours.integer(key)),
                where=str(ours.path),
                remedy="use the drafter of this target",
            )


@check("drafter.tokenizer", needs=("drafter.config",), source="sglang 24051")
def tokenizer(self: Check, facts: Facts) -> Iterator[Finding]:
    """Every token that the drafter can draft is the same token in the target's tokenizer."""
    drafter(facts)
    model = models(facts)
    target = model.tokenizer
    if target is None or not target.tokens:
        raise Skip("the target has no tokenizer files that can be read")
    pairs = [
        ("drafter.trained_for", model.trained_for_tokenizer),
        ("the drafter's own tokenizer", model.drafter_tokenizer),
    ]
    compared = [(name, other) for name, other in pairs if other is not None and other.tokens]
    if not compared:
        raise Skip("neither the drafter nor drafter.trained_for has a tokenizer to compare")
    for name, other in compared:
        yield from _compare(self, facts, name, target, other, _draftable(facts, target, other))


def _draftable(facts: Facts, target: Tokenizer, other: Tokenizer) -> Iterable[int]:
    """Ids that the drafter can propose."""
    statistics = models(facts).map.statistics
    if models(facts).algorithm == "EAGLE3" and statistics is not None:
        return statistics.ids
    return sorted({*target.tokens, *target.special, *other.tokens, *other.special})


def _compare(
    self: Check, facts: Facts, name: str, target: Tokenizer, other: Tokenizer, ids: Iterable[int]
) -> Iterator[Finding]:
    texts = [(token, target.text(token), other.text(token)) for token in ids]
    where = str(other.directory / (other.source or ""))
    for owner, absent in (
        ("the target", sum(ours is not None and theirs is None for _, ours, theirs in texts)),
        (name, sum(ours is None and theirs is not None for _, ours, theirs in texts)),
    ):
        if absent:
            yield self.info(f"{absent} tokens that can be drafted are in the tokenizer of {owner} alone", where=where)
    both = [(token, ours, theirs) for token, ours, theirs in texts if ours is not None and theirs is not None]
    differing = [(token, ours, theirs) for token, ours, theirs in both if ours != theirs]
    if not differing:
        return
    shown = "; ".join(f"{token}: {theirs!r} against {ours!r}" for token, ours, theirs in differing[:10])
    message = f"{len(differing)} of {len(both)} tokens that can be drafted differ between {name} and the target"
    evidence: Mapping[str, Any] = {
        "expected": "the same token at every id",
        "found": f"{shown}{'; ...' if len(differing) > 10 else ''}",
        "where": where,
        "remedy": "use a drafter that was made with this target's tokenizer",
    }
    if models(facts).algorithm == "STANDALONE":
        # Its drafts are ids of its own vocabulary, taken for the target's: sglang 24051.
        yield self.error(message, **evidence)
    else:
        # An EAGLE head reads the target's states; a tokenizer.json lying beside it may be of an earlier release.
        yield self.warning(message, **evidence)


@check(
    "drafter.reachable",
    needs=("drafter.map_values",),
    source="EAGLE 241, 248",
    remedy="answers stay right; a draft vocabulary with these tokens in it accepts a little more",
)
def reachable(self: Check, facts: Facts) -> Iterator[Finding]:
    """The end of a generation and the chat template's special tokens are in the draft vocabulary."""
    only_eagle3(facts)
    model = models(facts)
    statistics, target = model.map.statistics, model.tokenizer
    if statistics is None:
        raise Skip("the drafter has no map: it can draft every token")
    if target is None or not (target.end_ids or target.template_ids):
        raise Skip("the target's tokenizer files name neither an end nor special tokens")
    mapped = set(statistics.ids)
    ends = [token for token in target.end_ids if token not in mapped]
    others = [token for token in target.template_ids if token not in mapped and token not in ends]
    if target.end_ids and len(ends) == len(target.end_ids):
        yield self.warning(
            f"the drafter can never draft the end of a generation ({_named(target, ends)}): "
            "the last draft of every answer is refused",
            found=f"{len(ends)} end token(s) outside the draft vocabulary",
            where=str(target.directory),
        )
    if others:
        yield self.warning(
            f"{len(others)} special token(s) of the chat template cannot be drafted: {_named(target, others)}",
            found=str(len(others)),
            where=str(target.directory),
        )


def _named(target: Tokenizer, ids: list[int]) -> str:
    return ", ".join(f"{token} {target.text(token)!r}" for token in ids)


@check("drafter.embedding", needs=("drafter.shapes", "target.weights"), source="srt/models/llama.py: set_embed")
def embedding(self: Check, facts: Facts) -> Iterator[Finding]:
    """The drafter's own embedding is the target's, since SGLang puts the target's in its place (a sample of rows)."""
    expected, loading = head(facts)
    if ("model.embed_tokens.weight", "") not in loading.filled:
        raise Skip("the drafter has no embedding of its own")
    if not expected.borrows_embedding:
        raise Skip("the hidden sizes differ, so SGLang keeps the drafter's own embedding")
    sample = models(facts).embedding_sample
    if sample is None:
        raise Skip("the two embeddings could not be compared")
    if sample.differing:
        yield self.warning(
            f"{sample.differing} of {sample.rows} sampled rows of the drafter's embedding differ from the target's "
            f"(lowest cosine {sample.lowest:.3f}); SGLang uses the target's",
            expected="the target's rows",
            found=f"{sample.differing} differ",
            where=str(drafter_weights(facts).directory),
            remedy="if the drafter was trained with an embedding of its own, it cannot work as trained",
        )


@check(
    "drafter.head_rows",
    needs=("drafter.map", "drafter.shapes", "target.weights"),
    source="trainers that start lm_head from the rows of the target that the map names",
)
def head_rows(self: Check, facts: Facts) -> Iterator[Finding]:
    """Where the head was started from the target's, its rows look like the target's at the ids that the map names."""
    head(facts)
    sample = models(facts).head_sample
    if sample is None:
        raise Skip("the heads could not be compared (no map, or the target's head is not there as floats)")
    readings = {
        "as offsets": sample.mapped,
        "as absolute ids": sample.absolute,
        "as draft id = target id": sample.identity,
    }
    known = {name: value for name, value in readings.items() if value is not None}
    best = max(known, key=lambda name: known[name])
    shown = ", ".join(f"{name} {value:.3f}" for name, value in known.items()) + f", by chance {sample.shuffled:.3f}"
    if known[best] < sample.shuffled + 0.1:
        yield self.info(f"no evidence for or against the map: the head was not started from the target's ({shown})")
    elif best == "as offsets":
        yield self.info(f"the head's rows look like the target's rows that the map names: mean cosine {shown}")
    else:
        yield self.warning(
            f"the head's rows look like the target's if the map is read {best}, not as SGLang reads it: {shown}",
            expected="the highest cosine as offsets",
            found=f"{best} {known[best]:.3f}",
            where=str(drafter_weights(facts).directory),
            remedy="export the map that the head was trained with",
        )


@check(
    "drafter.sha256",
    needs=("drafter.files",),
    source="Git LFS: a pointer's oid is the file's sha256; the profile: drafter.sha256",
)
def sha256(self: Check, facts: Facts) -> Iterator[Finding]:
    """The drafter's safetensors file has the sha256 that the profile pins (the hub's LFS oid)."""
    drafter(facts)
    pinned = facts.deployment.profile.drafter.sha256
    if pinned is None:
        raise Skip("the profile pins none")
    found = models(facts).sha256
    where = str(drafter_weights(facts).directory)
    if not found:
        yield self.error("there is no safetensors file to compare with the pinned sha256", expected=pinned, where=where)
    elif len(found) > 1:
        yield self.error(
            f"one sha256 is pinned, but the drafter has {len(found)} files",
            expected="one file",
            found=", ".join(found),
            where=where,
            remedy="merge the shards into one file, or leave the pin out",
        )
    elif pinned not in found.values():
        ((name, digest),) = found.items()
        yield self.error(
            f"{name} is not the pinned file",
            expected=pinned,
            found=digest,
            where=f"{where}/{name}",
            remedy="fetch the drafter again, or pin the new one after a smoke test",
        )


@check("drafter.reference", needs=("drafter.config", "drafter.files"), source="the profile: drafter.reference")
def reference(self: Check, facts: Facts) -> Iterator[Finding]:
    """How the drafter differs from the one that works (drafter.reference): every difference, none of them an error."""
    config, weights = drafter_config(facts), drafter_weights(facts)
    other = models(facts).reference
    if other is None:
        raise Skip("the profile's drafter.reference is not set")
    if other.missing is not None or other.readable_config is None or other.weights is None:
        reason = other.missing.message if other.missing else "its files cannot be read"
        yield self.error(
            f"drafter.reference is not there: {reason}",
            found=other.given,
            remedy="correct reference in [drafter]",
            exit_code=ExitCode.MISSING,
        )
        return
    for key in sorted({*config.raw, *other.readable_config.raw}):
        ours, theirs = config.raw.get(key), other.readable_config.raw.get(key)
        if ours != theirs:
            yield self.info(
                f"config.json: {key} differs from the reference", expected=_shown(theirs), found=_shown(ours)
            )
    yield from tensor_differences(self, weights.tensors, other.weights.tensors)
    mine, its = models(facts).map.statistics, models(facts).reference_map.statistics
    if mine is not None and its is not None and list(mine.ids) != list(its.ids):
        common = len(set(mine.ids) & set(its.ids))
        yield self.info(
            f"the draft vocabularies share {common} of {len(its.ids)} tokens with the reference",
            expected=str(len(its.ids)),
            found=str(common),
        )


def tensor_differences(self: Check, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Tensors that only one has, and those whose shape or dtype differs."""
    for name in sorted({*ours, *theirs}):
        left, right = ours.get(name), theirs.get(name)
        if left is None or right is None:
            yield self.info(f"{name} is in {'the reference' if left is None else 'this drafter'} only")
        elif (left.shape, left.dtype) != (right.shape, right.dtype):
            yield self.info(
                f"{name} differs from the reference",
                expected=f"{right.dtype} {list(right.shape)}",
                found=f"{left.dtype} {list(left.shape)}",
            )


def _shown(value: Any) -> str:
    return "absent" if value is None else repr(value)


@check("drafter.token_map", source="srt/speculative/eagle_worker_v2.py: init_token_map")
def token_map(self: Check, facts: Facts) -> Iterator[Finding]:
    """--speculative-token-map is set only where SGLang reads it, and its file is there."""
    model = models(facts)
    path = facts.deployment.get("speculative_token_map")
    if not path:
        raise Skip("speculative_token_map is not set")
    if model.algorithm == "EAGLE3":
        yield self.warning(
            "speculative_token_map is set, but SGLang ignores it for EAGLE3, whose drafter brings its own map",
            found=str(path),
            remedy="leave it out",
        )
    elif model.algorithm != "EAGLE":
        yield self.warning(
            f"speculative_token_map is set, but {model.algorithm or 'no speculation'} does not use it", found=str(path)
        )
    elif model.token_map is not None:
        yield self.error(
            f"the token map cannot be read: {model.token_map.message}",
            expected="a file of token ids, or OWNER/MODEL/FILE on the hub",
            found=str(path),
            where=flag("speculative_token_map"),
            remedy="correct speculative_token_map",
            exit_code=ExitCode.MISSING if model.token_map.kind == "missing" else self.exit_code,
        )
    else:
        yield self.info(f"{path} is a pickle, which the guard does not open: the load gate judges its ids")


@check(
    "drafter.load_format",
    source="srt/model_executor/model_runner.py: _resolve_draft_load_format",
    remedy="the load gate judges the tensors; run `guarded-serve smoke`",
)
def load_format(self: Check, facts: Facts) -> Iterator[Finding]:
    """The drafter's weights are really loaded, and in a form that these rules read."""
    drafter(facts)
    get = facts.deployment.get
    own, general = get("speculative_draft_load_format"), get("load_format")
    wanted = str(own or general or "auto").lower()
    name = "speculative_draft_load_format" if own else "load_format"
    if wanted == "dummy":
        yield self.error(
            f"{name} is dummy: the drafter would have random weights",
            expected="auto or safetensors",
            found="dummy",
            remedy="set speculative_draft_load_format to auto",
        )
    elif wanted not in ("auto", "safetensors", "fastsafetensors", "instanttensor", "mistral"):
        yield self.warning(
            f"{name} is {wanted}, which these rules do not follow: the tensors are left to the load gate", found=wanted
        )


CHECKS = (
    target_tokenizer,
    trained_for,
    tokenizer,
    reachable,
    embedding,
    head_rows,
    sha256,
    reference,
    token_map,
    load_format,
)
