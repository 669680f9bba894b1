"""The rules against SGLang itself: every drafter of the grid, built and loaded by its own code on the CPU, and every
target class's own choice of layers. One child does it all.

Another version is held the same way (`make soak`): BARE_SGLANG_PYTHON names the interpreter that has it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from guarded_serve.checkpoint.config import parse_config
from guarded_serve.checks.drafter_engine import may_fail
from guarded_serve.engine_rules.capture import known_targets, predict_capture
from guarded_serve.engine_rules.versions import NEWEST, parse_version
from tests.support.bare_sglang import PYTHON_KEY
from tests.support.grid import CASES
from tests.support.oracle_grid import Grid, column, grid_names, load_grid

OTHER = os.environ.get(PYTHON_KEY, sys.executable)
INSTALLED = pytest.param(
    sys.executable,
    marks=[
        pytest.mark.engine,
        pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"),
    ],
    id="installed",
)
ANOTHER = pytest.param(
    OTHER,
    marks=[
        pytest.mark.soak,
        pytest.mark.skipif(sys.executable == OTHER, reason=f"{PYTHON_KEY} names no Python with another SGLang"),
    ],
    id="another",
)
IDS = (None, [1, 3, 4], [2, 4, 5], [1, 29, 57], [24, 30, 36], [4, 6, 8])
LAYERS = (8, 36, 61)
WANTED = [[target, layers, ids] for target in sorted(known_targets(NEWEST)) for layers in LAYERS for ids in IDS]
_GRIDS: dict[str, Grid] = {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("grid")


def loaded(python: str, folder: Path) -> Grid:
    """What one SGLang says, asked once."""
    if python not in _GRIDS:
        _GRIDS[python] = load_grid(folder / str(len(_GRIDS)), python, WANTED)
    return _GRIDS[python]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("python", [INSTALLED, ANOTHER])
@pytest.mark.parametrize("name", grid_names())
def test_prediction_and_truth_agree(python: str, name: str, folder: Path) -> None:
    assert loaded(python, folder).rows[name].differs == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("python", [INSTALLED, ANOTHER])
@pytest.mark.soak
def test_most_of_the_grid_is_really_loaded(python: str, folder: Path) -> None:
    """And what fails does so for a reason that preflight has seen; the kinds of failure and of gap all occur."""
    found = loaded(python, folder).rows
    done = {name for name, row in found.items() if row.load.failure is None}
    assert len(done) > 120
    assert sum(name.startswith("O MLA") for name in done) > 8
    assert all(may_fail(row.model) for name, row in found.items() if name not in done)
    assert {"config", "build", "load"} <= {row.load.stage for row in found.values()}
    states = {one.unwritten for row in found.values() for one in row.load.parameters.values()}
    assert {"no", "wholly"} <= states  # in part: tests/checks/test_with_engine.py
    assert any(row.load.without_effect for row in found.values())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("python", [INSTALLED, ANOTHER])
@pytest.mark.soak
def test_the_committed_page_says_the_same(python: str, folder: Path) -> None:
    grid = loaded(python, folder)
    committed = column(grid.version)
    if committed is None:
        pytest.skip(f"docs/compatibility.md has no column for SGLang {grid.version}")
    told = {name: row.verdict for name, row in grid.rows.items()}
    if python == sys.executable:  # a case may be newer than the page; `make soak` wants the page made again
        told = {name: verdict for name, verdict in told.items() if name in committed}
    assert committed == told


@pytest.mark.timeout(600)
@pytest.mark.parametrize("python", [INSTALLED, ANOTHER])
def test_captured_layers(python: str, folder: Path) -> None:
    """Every target class whose rule is known, at several depths, with and without ids."""
    grid = loaded(python, folder)
    version = parse_version(grid.version)
    assert version is not None
    compared = set()
    for (target, layers, ids), real in zip(WANTED, grid.captures, strict=True):
        if real is None:
            continue  # a class that this version lacks, or that does not import with the CPU operators
        raw = {} if ids is None else {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
        predicted = predict_capture(target, layers, parse_config(raw, Path("config.json")), version)
        assert predicted is not None, target
        assert list(predicted.requested) == real, (target, layers, ids)
        compared.add(target)
    assert len(compared) > 30
    assert {
        "LlamaForCausalLM",
        "DeepseekV3ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "GptOssForCausalLM",
    } <= compared


def test_nothing_of_the_grid_is_left_out() -> None:
    left = set(CASES) - set(grid_names())
    alone = {"R target with an unusual vocabulary, alone", "T dummy target without weights"}  # no drafter to load
    assert all(name.startswith("U ") or name in alone for name in left), left
