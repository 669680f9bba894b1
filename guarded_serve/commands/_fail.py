"""How a command says that it cannot begin: one line, and below it what was expected, what was found and the mend."""

from __future__ import annotations

import sys

from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile.wording import with_evidence


def fail(
    command: str,
    code: ExitCode,
    message: str,
    *,
    expected: str | None = None,
    found: str | None = None,
    remedy: str | None = None,
) -> ExitCode:
    """Written to standard error; the code comes back."""
    first = f"guarded-serve {command}: {message}"
    print(with_evidence(first, expected=expected, found=found, remedy=remedy), file=sys.stderr)
    return code
