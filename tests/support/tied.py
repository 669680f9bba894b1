"""Children that end with the test that started them, even when that test is killed."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def tied_to_parent(with_signal: int = signal.SIGKILL) -> Callable[[], None]:
    """A `preexec_fn`: the child gets the signal when the thread that started it ends."""
    return lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, int(with_signal)) and None
