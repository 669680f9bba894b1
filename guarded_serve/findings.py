"""What a check found: plain, frozen values that every output format and the launcher read.

A finding is one fact that is wrong or worth knowing. An outcome is what became of one check: it may hold
several findings (six bad shapes are six findings of one check), and it exists for every check that ran or was skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from guarded_serve.exit_codes import ExitCode


class Severity(str, Enum):
    """How much a finding matters."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Status(str, Enum):
    """What became of a check."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Finding:
    """One sentence, its evidence and its mend.

    ``check`` is the stable name ``family.what``. ``message`` is one sentence with the numbers in it. ``where`` is a
    file, a tensor in a file, a device or an address. ``exit_code`` is what such an error ends the launcher with.
    """

    check: str
    severity: Severity
    message: str
    expected: str | None = None
    found: str | None = None
    where: str | None = None
    remedy: str | None = None
    exit_code: ExitCode = ExitCode.REFUSED
    ignored: bool = False  # an error that the profile's `preflight.ignore` turned into a warning


@dataclass(frozen=True)
class Outcome:
    """One check, run or skipped."""

    check: str
    status: Status
    findings: tuple[Finding, ...] = ()
    reason: str | None = None  # why it was skipped, or how it crashed
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """All outcomes of one run of the checks, in the order of the registry."""

    outcomes: tuple[Outcome, ...] = field(default_factory=tuple)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every finding, in order."""
        return tuple(finding for outcome in self.outcomes for finding in outcome.findings)
