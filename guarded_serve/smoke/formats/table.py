"""The rows that terminal, Markdown and HTML share, as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from guarded_serve.findings import Finding, Severity
from guarded_serve.smoke.run import Judged, Result
from guarded_serve.smoke.stats import Interval
from guarded_serve.smoke.verdict import CAUSE


@dataclass(frozen=True)
class Row:
    """One contestant at one batch size, or one without a measurement."""

    label: str
    verdict: str
    batch_size: str
    accept_length: str
    positions: str
    tok_s: str
    baseline: str
    gain: str
    cycle: str
    break_even: str


HEADINGS = (
    "drafter",
    "verdict",
    "batch size",
    "accept length",
    "accepted by position",
    "tok/s",
    "without",
    "gain",
    "cycle ms",
    "break-even",
)


def cells(row: Row) -> tuple[str, ...]:
    """In the order of `HEADINGS`."""
    return tuple(vars(row).values())


def rows(result: Result) -> Iterator[Row]:
    """Contestants in order, batch sizes ascending."""
    from guarded_serve.smoke.facts import Acceptance  # noqa: PLC0415 - types only elsewhere
    from guarded_serve.smoke.record import tok_s  # noqa: PLC0415

    for one in result.judged:
        if one.run is None or not one.run.cells:
            yield Row(one.contestant.label, one.verdict.word, *("-",) * 8)
            continue
        for cell in one.run.cells:
            counted = Acceptance.of(cell.samples)
            gain = one.verdict.figures.gain.get(cell.batch_size)
            without = result.baselines.get(cell.batch_size)
            period = cell.engine.period_ms
            even = period * without / 1000 / cell.batch_size if period and without else None
            yield Row(
                one.contestant.label,
                one.verdict.word,
                str(cell.batch_size),
                number(counted.length, 2),
                " ".join(f"{share:.2f}" for share in counted.by_position) or "-",
                number(tok_s(cell), 1),
                number(without, 1),
                interval(gain),
                number(period, 2),
                number(even, 2),
            )


def number(value: float | None, digits: int) -> str:
    """A dash for nothing."""
    return "-" if value is None else f"{value:.{digits}f}"


def interval(value: Interval | None) -> str:
    """An estimate with its limits."""
    return "-" if value is None else f"{value.estimate:.2f} ({value.low:.2f} to {value.high:.2f})"


def reasons(one: Judged) -> list[Finding]:
    """What is worth saying of a contestant: errors, then likely causes, then warnings, then what smoke itself found."""
    findings = one.verdict.report.findings
    errors = [found for found in findings if found.severity is Severity.ERROR]
    causes = [found for found in findings if found.check == CAUSE]
    warnings = [found for found in findings if found.severity is Severity.WARNING]
    rest = [
        found
        for found in findings
        if found.severity is Severity.INFO and found.check.startswith("smoke.") and found.check != CAUSE
    ]
    return [*errors, *causes, *warnings, *rest]


def mark(found: Finding) -> str:
    """A word before a finding."""
    if found.check == CAUSE:
        return "cause"
    if found.severity is Severity.ERROR:
        return "unclear" if int(found.exit_code) == 75 else "error"
    return "warning" if found.severity is Severity.WARNING else "ok"


def baseline_table(result: Result) -> str:
    """For the profile's `[break_even]`."""
    entries = ", ".join(f"{size} = {rate:.1f}" for size, rate in sorted(result.baselines.items()))
    return f"baseline_tok_s = {{ {entries} }}" if entries else ""
