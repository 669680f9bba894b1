"""Puts the operators' folder on sys.path, as PYTHONPATH does for the engine."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "guarded_serve" / "cpu_kernels"))

settings.register_profile("operators", deadline=None)  # the first call of a torch operator takes long
settings.load_profile("operators")
