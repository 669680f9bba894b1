"""Gate 1 before a start: gather the facts once, run every check over them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from guarded_serve.checks.interface import FAMILIES
from guarded_serve.checks.runner import exit_code, run_checks
from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding, Report
from guarded_serve.profile.deployment import Deployment


@dataclass(frozen=True)
class Gate:
    """What the checks said; ``code`` is OK when the server may start."""

    code: ExitCode
    report: Report


def preflight(deployment: Deployment, configuration: tuple[Finding, ...] = (), *, strict: bool = False) -> Gate:
    """All families, and what the profile and the flags have wrong (``configuration``).

    Takes about a second; what may hang is read in children with deadlines.
    """
    from guarded_serve.checks.registry import CHECKS  # noqa: PLC0415 - a dry run needs none of them
    from guarded_serve.facts.gather import gather  # noqa: PLC0415

    facts = replace(gather(deployment, FAMILIES), configuration=configuration)
    report = run_checks(CHECKS, facts, deployment.profile.preflight.ignore)
    return Gate(exit_code(report, strict=strict), report)
