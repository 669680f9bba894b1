"""Where py-spy is: beside this Python, where its package says that it lies, or on the PATH."""

from __future__ import annotations

import shutil
import sys
from importlib import metadata
from pathlib import Path


def find_py_spy() -> str | None:
    """The path of the program, or None."""
    beside = Path(sys.executable).with_name("py-spy")
    if beside.is_file():
        return str(beside)
    try:
        files = metadata.files("py-spy") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "py-spy" and Path(str(file.locate())).is_file():
            return str(Path(str(file.locate())).resolve())
    return shutil.which("py-spy")
