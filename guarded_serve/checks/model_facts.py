"""What the judges of the target and drafter families share: getting at a fact, or skipping for want of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from guarded_serve.checkpoint.config import ModelConfig
from guarded_serve.checkpoint.problem import Problem
from guarded_serve.checkpoint.weights import Weights
from guarded_serve.checks.interface import Check, Skip
from guarded_serve.engine_rules.drafter import HeadRules, Loading
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.model import Checkpoint, ModelFacts
from guarded_serve.findings import Finding, Severity

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts

EXIT_BY_KIND = {"missing": ExitCode.MISSING, "missing-shard": ExitCode.MISSING, "no-permission": ExitCode.PERMISSION}
"""What a file's problem ends the command with, where it is not a refusal."""


def models(facts: Facts) -> ModelFacts:
    """The facts about target and drafter."""
    if facts.model is None:
        raise Skip("the model folders were not read")
    return facts.model


def flag(setting: str) -> str:
    """A setting as it is typed."""
    return "--" + setting.replace("_", "-")


def target_config(facts: Facts) -> ModelConfig:
    """The target's config."""
    config = models(facts).target.readable_config
    if config is None:
        raise Skip("the target's config.json could not be read")
    return config


def drafter(facts: Facts) -> Checkpoint:
    """The drafter's folder, where the algorithm uses one."""
    model = models(facts)
    if model.algorithm is None:
        raise Skip("no speculative algorithm is set")
    if model.algorithm == "NGRAM":
        raise Skip("NGRAM uses no drafter")
    if model.drafter is None:
        raise Skip("no drafter is set")
    return model.drafter


def drafter_config(facts: Facts) -> ModelConfig:
    """The drafter's config."""
    config = drafter(facts).readable_config
    if config is None:
        raise Skip("the drafter's config.json could not be read")
    return config


def eagle3_config(facts: Facts) -> ModelConfig:
    """The drafter's config, under EAGLE3 alone."""
    config = drafter_config(facts)
    only_eagle3(facts)
    return config


def only_eagle3(facts: Facts) -> None:
    """Skip the rule for every other algorithm."""
    algorithm = models(facts).algorithm
    if algorithm != "EAGLE3":
        raise Skip(f"the rule is EAGLE3's; the algorithm is {algorithm or 'none'}")


def drafter_weights(facts: Facts) -> Weights:
    """The drafter's tensors."""
    weights = drafter(facts).weights
    if weights is None:
        raise Skip("the drafter's weights are not fetched yet")
    return weights


def head(facts: Facts) -> tuple[HeadRules, Loading]:
    """What the drafter's class expects and what it would do with the file, for an EAGLE-3 head."""
    only_eagle3(facts)
    model = models(facts)
    if not drafter_weights(facts).tensors:
        raise Skip("the drafter's tensors could not be read")
    if model.rules is None or model.loading is None:
        raise Skip("the drafter's class is not one whose parameters are known")
    return model.rules, model.loading


def from_problems(check: Check, problems: Iterable[Problem], warn: Iterable[str] = ()) -> Iterator[Finding]:
    """A finding a problem; kinds in ``warn`` are warnings."""
    warned = frozenset(warn)
    for problem in problems:
        yield Finding(
            check=check.name,
            severity=Severity.WARNING if problem.kind in warned else Severity.ERROR,
            message=problem.message,
            expected=problem.expected,
            found=problem.found,
            where=problem.where,
            remedy=problem.remedy or check.remedy,
            exit_code=EXIT_BY_KIND.get(problem.kind, check.exit_code),
        )
