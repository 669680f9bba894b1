"""The grid of published forms: right ones pass without a word, wrong ones fail for the stated reason and no other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.findings import Severity, Status
from tests.support.grid import CASES, build
from tests.support.verdicts import deployment, errors, judge, warnings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPECTED: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "grid.toml").read_text())


def test_every_case_has_an_expectation() -> None:
    assert list(EXPECTED) == list(CASES)
    wrong = sum("errors" in expected for expected in EXPECTED.values())
    assert wrong > 60
    assert len(EXPECTED) - wrong > 60


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, tmp_path: Path) -> None:
    expected = EXPECTED[name]
    built = build(name, tmp_path)
    settings = dict(built.settings)
    deep = settings.pop("deep", False)
    report = judge(deployment(built.target, built.drafter, **settings), deep=deep)
    assert [outcome.reason for outcome in report.outcomes if outcome.status is Status.CRASHED] == []
    assert errors(report) == expected.get("errors", [])
    assert warnings(report) == expected.get("warnings", [])
    told = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    if "says" in expected:
        assert any(expected["says"] in finding.message for finding in told), [finding.message for finding in told]
    for finding in told:
        assert finding.message == finding.message.strip()
        assert finding.remedy, finding.message
        assert str(tmp_path) in (finding.where or str(tmp_path)) or not (finding.where or "").startswith("/")
