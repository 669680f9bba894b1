"""GitHub's workflow commands: an annotation a finding, a line with the counts."""

from __future__ import annotations

from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding, Report, Severity, Status

_COMMAND = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(report: Report, code: ExitCode) -> str:
    """Lines for a workflow's log."""
    lines = [_annotation(finding) for finding in report.findings if finding.severity is not Severity.INFO]
    failed = sum(outcome.status in (Status.FAIL, Status.CRASHED) for outcome in report.outcomes)
    lines.append(f"{len(report.outcomes)} checks, {failed} failed, exit code {int(code)}")
    return "\n".join(lines) + "\n"


def _annotation(finding: Finding) -> str:
    parts = [finding.message]
    for label in ("expected", "found", "where", "remedy"):
        value = getattr(finding, label)
        if value is not None:
            parts.append(f"{label}: {value}")
    title = _escape(finding.check).replace(":", "%3A").replace(",", "%2C")
    return f"::{_COMMAND[finding.severity]} title={title}::{_escape(chr(10).join(parts))}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
