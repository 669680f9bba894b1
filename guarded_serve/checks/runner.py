"""Runs checks over facts: every one, in order; what depends on a failed one is skipped; a crash is a result."""

from __future__ import annotations

import time
import traceback
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from guarded_serve.checks.interface import Check, Skip
from guarded_serve.exit_codes import ExitCode, most_telling
from guarded_serve.findings import Finding, Outcome, Report, Severity, Status

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts


def run_checks(checks: Sequence[Check], facts: Facts, ignore: Collection[str] = ()) -> Report:
    """Run all checks; ``ignore`` names those whose errors count as warnings."""
    failed: set[str] = set()
    outcomes = []
    for check in checks:
        outcome = _run(check, facts, failed, ignore)
        if outcome.status in (Status.FAIL, Status.CRASHED) or (
            outcome.status is Status.SKIPPED and failed.intersection(check.needs)
        ):
            failed.add(check.name)
        outcomes.append(outcome)
    return Report(tuple(outcomes))


def _run(check: Check, facts: Facts, failed: Collection[str], ignore: Collection[str]) -> Outcome:
    blocking = [name for name in check.needs if name in failed]
    if blocking:
        return Outcome(check.name, Status.SKIPPED, reason=f"{blocking[0]} did not pass")
    started = time.perf_counter()
    try:
        findings: Iterable[Finding] = tuple(check.judge(facts))
    except Skip as skip:
        return Outcome(check.name, Status.SKIPPED, reason=str(skip), seconds=time.perf_counter() - started)
    except Exception as error:
        return _crashed(check, error, time.perf_counter() - started)
    if check.name in ignore:
        findings = tuple(_ignored(finding) for finding in findings)
    return Outcome(check.name, _status(findings), tuple(findings), seconds=time.perf_counter() - started)


def _ignored(finding: Finding) -> Finding:
    if finding.severity is not Severity.ERROR:
        return finding
    return replace(finding, severity=Severity.WARNING, ignored=True)


def _status(findings: Iterable[Finding]) -> Status:
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return Status.FAIL
    return Status.WARN if Severity.WARNING in severities else Status.PASS


def _crashed(check: Check, error: Exception, seconds: float) -> Outcome:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
    finding = Finding(
        check=check.name,
        severity=Severity.ERROR,
        message=f"the check itself failed: {type(error).__name__}: {error} ({place})",
        remedy="this is a fault of guarded_serve: please report it; "
        f'`[preflight] ignore = ["{check.name}"]` does not hide it',
        exit_code=ExitCode.INTERNAL,
    )
    return Outcome(check.name, Status.CRASHED, (finding,), reason=finding.message, seconds=seconds)


def exit_code(report: Report, *, strict: bool = False) -> ExitCode:
    """What the report ends a command with; ``strict`` counts warnings as errors."""
    counted = (Severity.ERROR, Severity.WARNING) if strict else (Severity.ERROR,)
    return most_telling(finding.exit_code for finding in report.findings if finding.severity in counted)
