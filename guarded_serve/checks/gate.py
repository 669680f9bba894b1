"""Gate 1 as a whole: gather the facts, judge them, and, when all is well, test the GPUs.

The self-test allocates memory on the GPUs and takes up to half a minute, so it runs once everything else has passed:
never beside a program that uses them, and never again and again while a port is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from guarded_serve.checks import profile
from guarded_serve.checks.registry import checks_of
from guarded_serve.checks.runner import exit_code, run_checks
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.bag import Facts
from guarded_serve.facts.gather import gather
from guarded_serve.facts.gpus import with_selftest
from guarded_serve.facts.model import ModelFacts
from guarded_serve.findings import Finding, Report
from guarded_serve.profile.deployment import Deployment


def judge(
    deployment: Deployment,
    families: Collection[str],
    configuration: tuple[Finding, ...] = (),
    deepen: Callable[[ModelFacts], ModelFacts] | None = None,
) -> tuple[Facts, Report]:
    """The facts of these families and what the checks say of them. ``configuration``: faults of profile and flags.

    ``deepen`` adds facts about the models that take longer (`check --deep`).
    """
    checks, ignore = checks_of(families), deployment.profile.preflight.ignore
    if not deployment.get("model_path") and {"profile", "target", "drafter"}.intersection(families):
        # The configuration's own checks say so; what a deployment of nothing would need is no use to anyone.
        checks, families = tuple(check for check in checks if check in profile.CHECKS), ()
    facts = replace(gather(deployment, families), configuration=configuration)
    if deepen is not None and facts.model is not None:
        facts = replace(facts, model=deepen(facts.model))
    report = run_checks(checks, facts, ignore)
    if facts.gpus is not None and deployment.profile.gpus.selftest and exit_code(report) is ExitCode.OK:
        facts = replace(facts, gpus=with_selftest(facts.gpus, deployment))
        report = run_checks(checks, facts, ignore)
    return facts, report
