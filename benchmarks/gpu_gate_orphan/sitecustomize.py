"""Lets SGLang's schedulers outlive their server, as reports 23627 and 31645 saw them do: prctl does nothing here.

SGLang asks the kernel (PR_SET_PDEATHSIG) to kill a scheduler whose parent dies; that does not hold for every version
and every way to die. Put this folder first on PYTHONPATH of the one server that shall leave an orphan.
"""

import ctypes
import runpy
import sys
from pathlib import Path


class _Quiet(ctypes.CDLL):
    def prctl(self, *arguments: int) -> int:
        return 0


ctypes.CDLL = _Quiet  # type: ignore[misc]

for folder in sys.path:  # the next sitecustomize on the path still has its say
    other = Path(folder or ".") / "sitecustomize.py"
    if other.is_file() and other.resolve() != Path(__file__).resolve():
        runpy.run_path(str(other))
        break
