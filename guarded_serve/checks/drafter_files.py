"""The drafter's folder: wanted, there, readable, whole, and not the target's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from guarded_serve.checkpoint.hub import ELSEWHERE
from guarded_serve.checkpoint.problem import HARMLESS
from guarded_serve.checks.interface import Check, Skip, check
from guarded_serve.checks.model_facts import (
    drafter,
    drafter_weights,
    flag,
    from_problems,
    models,
)
from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts

NEEDS_A_PATH = ("EAGLE3", "STANDALONE", "DFLASH")


@check("drafter.wanted", source="sglang 36528; srt/arg_groups/speculative_hook.py")
def wanted(self: Check, facts: Facts) -> Iterator[Finding]:
    """A drafter is set where the algorithm needs one, and an algorithm where a drafter is set."""
    model = models(facts)
    if model.drafter is None and model.algorithm in NEEDS_A_PATH:
        yield self.error(
            f"{model.algorithm_given} needs a drafter, and none is set: SGLang would draft with the target itself",
            expected="the path of a drafter",
            found="none",
            where="--speculative-draft-model-path",
            remedy="set speculative_draft_model_path",
            exit_code=ExitCode.MISSING,
        )
    elif model.drafter is not None and model.algorithm in (None, "NGRAM"):
        yield self.warning(
            f"a drafter is set, but {'no speculative algorithm' if model.algorithm is None else 'NGRAM'} uses it",
            found=model.drafter.given,
            remedy="set speculative_algorithm, or leave the drafter out",
        )


@check("drafter.path", exit_code=ExitCode.MISSING, source="srt/model_loader/weight_utils.py: a folder, else a hub id")
def path(self: Check, facts: Facts) -> Iterator[Finding]:
    """The drafter is a folder on disk, or a hub id that can be resolved."""
    found = drafter(facts)
    if found.missing is not None and found.missing.kind == ELSEWHERE:
        raise Skip(found.missing.message)
    if found.missing is not None:
        yield self.error(
            f"the drafter is not there: {found.missing.message}",
            expected="a drafter's folder or a hub id",
            found=found.given,
            where=found.origin or None,
            remedy=found.missing.remedy or f"correct {flag(found.setting)}",
        )


@check("drafter.not_target", needs=("drafter.path",), source="sglang 36528")
def not_target(self: Check, facts: Facts) -> Iterator[Finding]:
    """The drafter's folder is not the target's (compared by inode)."""
    found, target = drafter(facts), models(facts).target
    if models(facts).algorithm == "EAGLE":
        raise Skip("EAGLE and NEXTN may use layers that lie in the target's own folder")
    if found.identity is not None and found.identity == target.identity:
        yield self.error(
            "the drafter's folder is the target's: the target would be loaded twice and draft for itself",
            expected="a drafter",
            found=found.given,
            where=found.origin or None,
            remedy=f"correct {flag(found.setting)}",
        )


@check(
    "drafter.config",
    needs=("drafter.path",),
    source="transformers: AutoConfig.from_pretrained raises on it",
    remedy="correct the drafter's config.json, or export the drafter again",
)
def config(self: Check, facts: Facts) -> Iterator[Finding]:
    """The drafter's config.json can be read and its sizes are sizes."""
    found = drafter(facts)
    if found.config is None:
        raise Skip("there is no drafter folder")
    yield from from_problems(self, found.config.problems)


@check(
    "drafter.files",
    needs=("drafter.path", "drafter.not_target"),
    source="safetensors: Metadata::validate; sglang 32279; OmniParser 34, PersuGPT 2",
    remedy="copy, download or export the drafter again",
)
def files(self: Check, facts: Facts) -> Iterator[Finding]:
    """The drafter's safetensors files are whole: header, size, shards and index agree."""
    problems = [problem for problem in drafter_weights(facts).problems if problem.kind != "pickle-only"]
    yield from from_problems(self, problems, warn=HARMLESS)


@check("drafter.pickle", needs=("drafter.path",), source="sglang 3315", remedy="convert it to safetensors")
def pickle(self: Check, facts: Facts) -> Iterator[Finding]:
    """The drafter is not a pickle only, which SGLang would unpickle (the guard never does)."""
    weights = drafter_weights(facts)
    if weights.shards or not weights.pickles:
        return
    message = f"the drafter is a pickle only ({weights.pickles[0].name}): loading it can run code"
    evidence = {
        "expected": "safetensors",
        "found": ", ".join(file.name for file in weights.pickles),
        "where": str(weights.directory),
    }
    if facts.deployment.profile.drafter.allow_pickle:
        yield self.warning(f"{message}; allow_pickle is set, so gates 2 and 3 alone judge it", **evidence)
    else:
        yield self.error(
            message, remedy="convert it to safetensors, or set `[drafter] allow_pickle = true`", **evidence
        )


@check(
    "drafter.stale_config",
    needs=("drafter.config", "drafter.files"),
    source="AngelSlim Qwen3-4B: a config.json of head_dim 80 beside tensors of head_dim 128",
)
def stale_config(self: Check, facts: Facts) -> Iterator[Finding]:
    """config.json is not much older than the weights beside it."""
    found = drafter(facts)
    if found.config_modified is None or found.weights_modified is None:
        raise Skip("modification times are not known")
    days = (found.weights_modified - found.config_modified) / 86400
    if days > 1:
        yield self.warning(
            f"config.json is {days:.0f} day{'s' if days >= 1.5 else ''} older than the weights beside it: "
            "it may describe an earlier drafter",
            where=str(found.directory),
            remedy="make sure that both come from one export",
        )


CHECKS = (wanted, path, not_target, config, files, pickle, stale_config)
