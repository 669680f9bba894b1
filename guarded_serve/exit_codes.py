"""Exit codes: sysexits(3), so that systemd and CI can act on them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """What the process ends with. The names say what failed; docs/exit-codes.md says what to do about it."""

    OK = 0  # an asked-for stop, or nothing refused
    USAGE = 64  # the command line is wrong
    REFUSED = 65  # drafter, target or probe refused
    MISSING = 66  # a path does not exist
    SERVER = 69  # the server died, hung or never became ready
    INTERNAL = 70  # a fault of ours
    UNFIT = 71  # hardware or driver unfit
    BUSY = 75  # GPUs, ports or shared memory in use; or a smoke test without a clear answer
    PERMISSION = 77  # not allowed to read or signal
    PROFILE = 78  # the profile is invalid


_PRECEDENCE = (
    ExitCode.USAGE,
    ExitCode.PROFILE,
    ExitCode.MISSING,
    ExitCode.REFUSED,
    ExitCode.PERMISSION,
    ExitCode.UNFIT,
    ExitCode.SERVER,
    ExitCode.INTERNAL,
    ExitCode.BUSY,
)

NOT_WORTH_A_RESTART = (
    ExitCode.USAGE,
    ExitCode.REFUSED,
    ExitCode.MISSING,
    ExitCode.UNFIT,
    ExitCode.PERMISSION,
    ExitCode.PROFILE,
)
"""Ascending; the same numbers as ``RestartPreventExitStatus=`` in the unit file (a test holds that)."""


def most_telling(codes: Iterable[int]) -> ExitCode:
    """The one code that stands for several: 64 > 78 > 66 > 65 > 77 > 71 > 75, and OK when there is none."""
    present = set(codes)
    return next((code for code in _PRECEDENCE if code in present), ExitCode.OK)
