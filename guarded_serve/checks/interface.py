"""What a check is: a named, pure function from facts to findings.

A judge never touches a device, a file or the clock; whatever it needs is in `Facts`, so every rule is tested from
plain data. A judge yields findings, or raises `Skip` where the rule does not apply or its facts are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding, Severity

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts

FAMILIES = ("profile", "drafter", "target", "gpu", "host")


class Skip(Exception):
    """The rule does not apply here; the text is the reason that a person reads."""


Judge = Callable[["Facts"], Iterable[Finding]]


@dataclass(frozen=True)
class Check:
    """One rule. ``needs`` names checks whose failure makes this one skipped, not failed."""

    name: str
    summary: str  # one line for `check --list`, from the judge's docstring
    judge: Judge
    needs: tuple[str, ...] = ()
    source: str = ""  # where the rule comes from: an SGLang file, a report's number
    exit_code: ExitCode = ExitCode.REFUSED
    remedy: str | None = None  # of an error or warning that names none of its own

    @property
    def family(self) -> str:
        """The part of the name before the dot."""
        return self.name.partition(".")[0]

    def error(self, message: str, **evidence: Any) -> Finding:
        """An error of this check."""
        return self._finding(Severity.ERROR, message, evidence)

    def warning(self, message: str, **evidence: Any) -> Finding:
        """A warning of this check."""
        return self._finding(Severity.WARNING, message, evidence)

    def info(self, message: str, **evidence: Any) -> Finding:
        """A piece of information from this check."""
        return self._finding(Severity.INFO, message, evidence)

    def _finding(self, severity: Severity, message: str, evidence: dict[str, Any]) -> Finding:
        default: dict[str, Any] = {"exit_code": self.exit_code}
        if severity is not Severity.INFO:
            default["remedy"] = self.remedy
        return Finding(check=self.name, severity=severity, message=message, **{**default, **evidence})


def check(
    name: str,
    *,
    needs: tuple[str, ...] = (),
    source: str = "",
    exit_code: ExitCode = ExitCode.REFUSED,
    remedy: str | None = None,
) -> Callable[[Callable[[Check, Facts], Iterable[Finding]]], Check]:
    """Make a `Check` of a generator ``judge(check, facts)``; its docstring's first line is the summary.

    ::

        @check("drafter.map_dtype", needs=("drafter.files",), source="llama_eagle3.py: load_weights")
        def map_dtype(self: Check, facts: Facts) -> Iterator[Finding]:
            \"\"\"d2t is a one-dimensional int64 tensor.\"\"\"
            yield self.error(...)
    """

    def make(judge: Callable[[Check, Facts], Iterable[Finding]]) -> Check:
        made = Check(
            name=name,
            summary=(judge.__doc__ or "").strip().splitlines()[0],
            judge=lambda facts: judge(made, facts),
            needs=needs,
            source=source,
            exit_code=exit_code,
            remedy=remedy,
        )
        return made

    return make
