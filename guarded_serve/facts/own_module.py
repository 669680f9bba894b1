"""How one of the guard's own modules is run as a child: from anywhere, whatever lies in the working directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import guarded_serve

NEUTRAL_FOLDER = "/"
"""``python -m`` searches the working directory first; a user's `json.py` or `torch.py` must not be found there."""


def own_command(module: str, *arguments: str) -> list[str]:
    """The command line of ``guarded_serve.MODULE``; run it in `NEUTRAL_FOLDER`."""
    return [sys.executable, "-m", f"guarded_serve.{module}", *arguments]


def own_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which this very package is found, and relative entries of PYTHONPATH still are."""
    entries = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    root = Path(guarded_serve.__file__).parents[1]
    paths = [str(root), *(str(Path(entry).absolute()) for entry in entries)]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}
