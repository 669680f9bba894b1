"""Every check that the code has is in the docs, and every check that the docs name is in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from guarded_serve.checks.profile import CHECKS as PROFILE_CHECKS
from guarded_serve.checks.registry import CHECKS
from guarded_serve.commands import launch
from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile import sglang_parser
from guarded_serve.profile.model import sections
from tests.support.check_reference import PAGE, with_tables

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = re.compile(r"`((?:profile|drafter|target|gpu|host|load|engine|probe|smoke)\.[a-z_0-9]+(?:_bsN)?)`")
BESIDE_GATE_1 = re.compile(r"(?:load|engine|probe|smoke)\.[a-z_0-9]+")
KEYS = {f"{section}.{key}" for section, model in sections().items() for key in model.model_fields}


def constants(source: str) -> set[str]:
    """Text in a module that has the form of a name of gates 2 to 4."""
    texts = {str(node.value) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    return {text for text in texts if BESIDE_GATE_1.fullmatch(text)}


def in_the_code() -> set[str]:
    modules = (path.read_text(encoding="utf-8") for path in (ROOT / "guarded_serve").rglob("*.py"))
    later = set().union(*map(constants, modules)) - KEYS
    return {check.name for check in CHECKS} | {"smoke.gain_bsN" if name == "smoke.gain_bs" else name for name in later}


def in_the_docs(texts: Iterable[str]) -> set[str]:
    return {name for text in texts for name in SHOWN.findall(text)}


def test_every_check_is_in_the_docs_and_every_one_there_is_in_the_code() -> None:
    code, docs = in_the_code(), in_the_docs(page.read_text(encoding="utf-8") for page in PAGES)
    assert code - docs - KEYS == set()
    assert docs - code - KEYS == set()
    assert {"profile.engine", "load.map_used", "engine.hello", "probe.answers", "smoke.gain_bsN"} <= code


def test_a_name_on_one_side_only_is_noticed() -> None:
    assert in_the_docs(["`gpu.colour` and `drafter.md` and gpu.shape"]) == {"gpu.colour", "drafter.md"}
    assert constants('NAME = "load.nothing"\nother = "load nothing"') == {"load.nothing"}


def test_names_that_are_a_key_too_are_documented_as_checks() -> None:
    """`smoke.record` is both: the table of the verdict has it."""
    smoke = (ROOT / "docs/smoke.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(smoke\.\w+)` \|", smoke, re.MULTILINE))
    assert {"smoke.record", "smoke.baseline", "smoke.likely_cause"} <= rows


def test_the_tables_are_those_of_the_registry() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "run `python -m tests.support.check_reference`"
    assert with_tables(page.replace("`gpu.xid`", "`gpu.xidd`")) == page


def test_the_exit_codes_of_the_profile_s_checks(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    page = (ROOT / "docs/profile.md").read_text(encoding="utf-8")
    section = page.partition("## Errors")[2].partition("\n## ")[0]
    rows = {
        name: {int(code) for code in re.findall(r"\b\d\d\b", cells)}
        for names, cells in re.findall(r"^\| (`.*?`) \| (.*) \|$", section, re.MULTILINE)
        for name in re.findall(r"`([\w.]+)`", names)
    }
    assert set(rows) == {check.name for check in PROFILE_CHECKS}
    monkeypatch.setattr(launch, "installed_version", lambda: None)
    missing = launch._engine_missing()
    assert missing is not None
    assert rows["profile.engine"] == {missing.exit_code} == {ExitCode.MISSING}
    assert rows["profile.sglang"] == {sglang_parser._unavailable("1", "x").exit_code}
    exit_codes = (ROOT / "docs/exit-codes.md").read_text(encoding="utf-8")
    assert re.search(r"^\| 66 \|.*`profile\.engine`", exit_codes, re.MULTILINE)
