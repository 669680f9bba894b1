"""The registry: names are unique, needs are met in order, and every rule of the models speaks in some case."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from guarded_serve.checks.interface import FAMILIES
from guarded_serve.checks.registry import CHECKS, checks_of, ordered

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GRID = tomllib.loads((Path(__file__).parent / "grid.toml").read_text())
ELSEWHERE = {"target.model_path": "tests/profile", "drafter.engine_load": "tests/checks/test_with_engine.py"}


def test_names() -> None:
    names = [check.name for check in CHECKS]
    assert len(names) == len(set(names))
    assert {check.family for check in CHECKS} == set(FAMILIES)
    assert all(re.fullmatch(r"[a-z]+\.[a-z0-9_]+", name) for name in names)
    assert all(check.summary.endswith((".", ")")) for check in CHECKS)


def test_every_rule_of_the_models_says_where_it_comes_from() -> None:
    assert [check.name for check in checks_of(["target", "drafter"]) if not check.source] == []


def test_what_a_check_needs_stands_before_it() -> None:
    seen: set[str] = set()
    for check in CHECKS:
        assert set(check.needs) <= seen, check.name
        seen.add(check.name)
    assert ordered(reversed(CHECKS)) != CHECKS
    for given in (ordered(reversed(CHECKS)), ordered(CHECKS)):
        before: set[str] = set()
        for check in given:
            assert set(check.needs) <= before
            before.add(check.name)


def test_families() -> None:
    assert {check.family for check in checks_of(["target"])} == {"target"}
    assert checks_of(FAMILIES) == CHECKS


def test_every_rule_speaks_somewhere_in_the_grid() -> None:
    spoken = {name for case in GRID.values() for name in (*case.get("errors", ()), *case.get("warnings", ()))}
    rules = {check.name for check in checks_of(["target", "drafter"])} - set(ELSEWHERE)
    silent = rules - spoken
    assert silent == {"drafter.reference"}  # it only informs: tests/checks/test_origin.py
