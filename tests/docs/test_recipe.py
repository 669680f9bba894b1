"""docs/recipes/new-drafter.md: what its table says of gate 1 is what gate 1 says of the broken copies."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from guarded_serve import cli

pytest.importorskip("torch")
from demo.broken import make

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "docs/recipes/new-drafter.md").read_text(encoding="utf-8")


def row(fault: str) -> str:
    """The cell of gate 1."""
    (found,) = re.findall(rf"^\| {re.escape(fault)} \| (.*?) \|", RECIPE, re.MULTILINE)
    return found


def gate_1(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, set[str]]:
    """The exit code, and which checks warned or refused."""
    profile = ["--profile", str(ROOT / "profiles/demo-cpu.toml")]
    code = cli.main(["check", "--only", "target,drafter", "--format", "json", *profile, *flags])
    outcomes = json.loads(capsys.readouterr().out)["outcomes"]
    return code, {outcome["check"] for outcome in outcomes if outcome["status"] in ("warn", "fail", "crashed")}


@pytest.mark.parametrize(
    ("fault", "kind", "words", "code", "plain", "deep"),
    [
        ("random weights", "random-weights", "passes; with `--deep` warns", 0, set(), {"drafter.untrained"}),
        ("aux layers one later", "shifted-layers", "warns", 0, {"drafter.aux_layers"}, {"drafter.aux_layers"}),
        ("d2t in another order", "shuffled-map", "refuses", 65, {"drafter.map_values"}, {"drafter.map_values"}),
    ],
)
def test_the_table(
    fault: str,
    kind: str,
    words: str,
    code: int,
    plain: set[str],
    deep: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert row(fault).startswith(words)
    drafter = ["--speculative-draft-model-path", str(make(ROOT / "demo/drafter", tmp_path, kind))]
    assert gate_1(capsys, *drafter) == (code, plain)
    assert gate_1(capsys, *drafter, "--deep") == (code, deep)


def test_another_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    assert row("`--speculative-algorithm EAGLE`").startswith("refuses")
    code, wrong = gate_1(capsys, "--speculative-algorithm", "EAGLE")
    assert (code, bool(wrong)) == (65, True)


def test_the_sibling_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate_1(capsys, "--model-path", str(ROOT / "demo/sibling"), "--deep") == (0, set())
