"""Golden pairs: each `tests/profiles/NAME.toml` says exactly what stands in `NAME.errors.txt`.

To write them anew after a deliberate change: ``GOLDEN_UPDATE=1 pytest tests/profile/test_golden_errors.py``, then read
the difference.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Severity
from guarded_serve.profile import resolve as resolve_module
from guarded_serve.profile.resolve import resolve
from guarded_serve.profile.sglang_parser import snapshot
from guarded_serve.profile.wording import finding_text

PROFILES = Path(__file__).parents[1] / "profiles"
NAMES = sorted(path.stem for path in PROFILES.glob("*.toml"))


@pytest.fixture(autouse=True)
def judged_by_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answer whatever SGLang is installed: the shipped snapshot, as if it were."""
    dump = replace(snapshot(), installed=True)
    monkeypatch.setattr(resolve_module, "sglang_parser", lambda: dump)
    monkeypatch.chdir(PROFILES)


@pytest.mark.parametrize("name", NAMES)
def test_errors_are_exactly_the_golden_ones(name: str) -> None:
    resolution = resolve(Path(f"{name}.toml"), [], environ={}, known_checks={"drafter.rope"})
    text = "".join(f"{finding_text(finding)}\n" for finding in resolution.findings)
    golden = PROFILES / f"{name}.errors.txt"
    if os.environ.get("GOLDEN_UPDATE") == "1":
        golden.write_text(text)
    assert text == golden.read_text()
    assert resolution.exit_code() == (ExitCode.PROFILE if text else ExitCode.OK)


@pytest.mark.parametrize("name", NAMES)
def test_every_error_names_a_line_that_is_there(name: str) -> None:
    lines = (PROFILES / f"{name}.toml").read_text().splitlines()
    for finding in resolve(Path(f"{name}.toml"), [], environ={}).findings:
        file, _, line = str(finding.where).rpartition(":")
        assert file == f"{name}.toml"
        assert lines[int(line) - 1].strip()
        assert finding.severity is Severity.ERROR
        assert finding.expected
        assert finding.found
        assert finding.remedy
        assert finding.check.startswith(("profile.", "target."))


def test_there_are_enough_pairs() -> None:
    assert len([name for name in NAMES if (PROFILES / f"{name}.errors.txt").read_text()]) >= 15
    assert "everything" in NAMES
