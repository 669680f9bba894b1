"""Gate 1 at a start: what the profile adds to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from guarded_serve.findings import Severity
from guarded_serve.supervisor.preflight import preflight
from tests.support.checkpoints import Data, drafter, target
from tests.support.verdicts import deployment


@pytest.mark.parametrize("deep", [True, False])
def test_a_start_reads_every_byte_where_the_profile_says_so(tmp_path: Path, deep: bool) -> None:
    spoilt = drafter()
    spoilt.tensors["fc.weight"] = Data("BF16", (32, 96), [float("nan"), *[0.5] * 3071])
    asked = deployment(
        target().write(tmp_path / "target"),
        spoilt.write(tmp_path / "drafter"),
        profile={"preflight": {"deep": deep}},
        device="cpu",
    )
    refused = {one.check for one in preflight(asked).report.findings if one.severity is Severity.ERROR}
    assert ("drafter.numbers" in refused) is deep
