"""docs/gpu-gate.md names every check of the two families, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from guarded_serve.checks import gpu, host
from guarded_serve.facts.gpu import PROBE_DEADLINE_S
from guarded_serve.facts.gpu_selftest import DEADLINE_S

TEXT = (Path(__file__).parents[2] / "docs" / "gpu-gate.md").read_text()


def test_the_table_is_complete() -> None:
    described = re.findall(r"^\| `((?:gpu|host)\.\w+)` \|", TEXT, re.MULTILINE)
    assert described == [check.name for check in (*gpu.CHECKS, *host.CHECKS)]


def test_the_deadlines_are_those_in_the_code() -> None:
    assert f"within {PROBE_DEADLINE_S:.0f} s" in TEXT
    assert f"{DEADLINE_S:.0f} s. A wrong sum" in " ".join(TEXT.split())
