"""No finding is folklore: for every fault here the guard's finding is an error, and bare SGLang does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faults import DRAFTER, FAULTS, TARGET, copy
from tests.support.folklore import PAGE, RIGHT, Seen, page_rows, row, watch, written
from tests.support.verdicts import deployment, errors, judge


@pytest.mark.parametrize("name", FAULTS)
def test_the_guard_finds_it(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    settings = dict(fault.settings)
    algorithm = settings.pop("speculative_algorithm", "EAGLE3")
    report = judge(deployment(TARGET, copy(tmp_path, fault), algorithm=algorithm, dtype="float32", **settings))
    assert errors(report) == [fault.finding]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.engine, *([] if fault.in_make_test else [pytest.mark.soak])])
        for name, fault in FAULTS.items()
    ],
)
def test_bare_sglang_does_what_the_finding_says(name: str, tmp_path: Path) -> None:
    seen = watch(FAULTS[name], tmp_path)
    assert seen.confirms(FAULTS[name]), (seen, (tmp_path / "server.log").read_text(errors="replace")[-3000:])


@pytest.mark.engine
@pytest.mark.soak
def test_the_right_drafter_is_worth_it(tmp_path: Path) -> None:
    """The same measure on the drafter that every fault is a copy of."""
    assert errors(judge(deployment(TARGET, DRAFTER, dtype="float32"))) == []
    seen = watch(None, tmp_path)
    assert seen.confirms(None), seen


def test_the_page_has_a_row_a_fault_and_every_one_is_as_claimed() -> None:
    rows = page_rows(PAGE.read_text())
    assert list(rows) == [RIGHT, *FAULTS]
    assert all(rows[name][1] == f"`{fault.finding}`" for name, fault in FAULTS.items())
    assert not any("not as claimed" in told for _, _, told in rows.values())
    assert sum("accept length" in told for _, _, told in rows.values()) >= 6
    assert sum("dies" in told for _, _, told in rows.values()) >= 6


def test_what_is_not_as_claimed_is_said() -> None:
    slow, dead = "map all zero", "truncated"
    assert row(slow, Seen(1.04))[2] == "serves, accept length 1.04"
    assert "not as claimed" in row(slow, Seen(2.6))[2]
    assert "not as claimed" in row(slow, Seen(None))[2]
    assert row(dead, Seen(None, "Error: file"))[2] == "dies: `Error: file`"
    assert "not as claimed" in row(dead, Seen(None))[2]
    assert "not as claimed" in row(dead, Seen(2.6))[2]
    assert "not as claimed" in row(RIGHT, Seen(1.1))[2]
    text = PAGE.read_text()
    changed = written(text, {**page_rows(text), slow: row(slow, Seen(1.5))})
    assert page_rows(changed)[slow][2] == "serves, accept length 1.50 (**not as claimed**)"
