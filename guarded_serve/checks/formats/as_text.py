"""For people: findings first in full, wrapped and never cut off, then one line that sums up."""

from __future__ import annotations

import io
import sys

from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding, Report, Severity, Status

_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_WORD = {Severity.ERROR: "refused", Severity.WARNING: "warning", Severity.INFO: "note"}
_LABELS = ("expected", "found", "where", "remedy")


def render(report: Report, code: ExitCode, *, terminal: bool | None = None, width: int | None = None) -> str:
    """Text; coloured and wrapped to the terminal where standard output is one."""
    if terminal is None:
        terminal = sys.stdout.isatty()
    return _coloured(report, code, width) if terminal else _plain(report, code)


def _plain(report: Report, code: ExitCode) -> str:
    lines = []
    for finding in report.findings:
        lines.append(f"{_word(finding)}: {finding.check}: {visible(finding.message)}")
        lines += [f"    {label + ':':<9} {visible(text)}" for label in _LABELS if (text := getattr(finding, label))]
    lines.append(summary(report, code))
    return "\n".join(lines) + "\n"


def _coloured(report: Report, code: ExitCode, width: int | None) -> str:
    from rich.console import Console  # noqa: PLC0415 - 60 ms that other formats need not pay
    from rich.padding import Padding  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False)
    for finding in report.findings:
        style = _STYLE[finding.severity]
        console.print(
            Text.assemble((_word(finding), style), " ", (finding.check, "bold"), " ", visible(finding.message))
        )
        for label in _LABELS:
            text = getattr(finding, label)
            if text:
                console.print(Padding(Text.assemble((f"{label}: ", "dim"), visible(text)), (0, 0, 0, 4)))
    console.print(Text(summary(report, code), style="bold green" if code == ExitCode.OK else "bold red"))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def summary(report: Report, code: ExitCode) -> str:
    """One line: how many of what, and what it comes to."""
    words = {
        Status.PASS: "passed",
        Status.WARN: "with warnings",
        Status.FAIL: "failed",
        Status.CRASHED: "crashed",
        Status.SKIPPED: "skipped",
    }
    counts = [
        f"{number} {word}"
        for status, word in words.items()
        if (number := sum(outcome.status is status for outcome in report.outcomes))
    ]
    return f"{len(report.outcomes)} checks: {', '.join(counts)}; exit code {int(code)}"


def visible(text: str) -> str:
    """Text with control characters shown, not sent to the terminal: names come from files that others wrote."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _word(finding: Finding) -> str:
    return "ignored" if finding.ignored else _WORD[finding.severity]
