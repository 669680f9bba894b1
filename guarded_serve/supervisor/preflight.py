"""Gate 1 before a start, and what it settled for the server: the GPUs that were checked are those that it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from guarded_serve.checks.interface import FAMILIES
from guarded_serve.checks.runner import exit_code
from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding, Report
from guarded_serve.profile.deployment import Deployment

if TYPE_CHECKING:
    from guarded_serve.checks.load import Foretold


@dataclass(frozen=True)
class Gate:
    """What the checks said; ``code`` is OK when the server may start, with ``environment`` on top of its own."""

    code: ExitCode
    report: Report
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    foretold: Foretold | None = None  # what the load is held against
    gpus: int = 0  # how many the server gets: their memory must be free again after a stop


def preflight(deployment: Deployment, configuration: tuple[Finding, ...] = (), *, strict: bool = False) -> Gate:
    """All families, and what the profile and the flags have wrong (``configuration``).

    Takes about a second, with `preflight.deep` two more a gigabyte of drafter; what may hang is read in children with
    deadlines.
    """
    from guarded_serve.checks.gate import judge  # noqa: PLC0415 - a dry run needs none of it
    from guarded_serve.checks.load import foretell  # noqa: PLC0415
    from guarded_serve.facts.model import scan_drafter  # noqa: PLC0415

    deepen = scan_drafter if deployment.profile.preflight.deep else None
    facts, report = judge(deployment, FAMILIES, configuration, deepen)
    choice = facts.gpus.choice if facts.gpus is not None else None
    return Gate(
        exit_code(report, strict=strict),
        report,
        dict(choice.environment) if choice is not None else {},
        choice.notes if choice is not None else (),
        foretell(facts.model),
        len(choice.chosen) if choice is not None else 0,
    )
