"""The rules against the SGLang that is installed: it builds and loads every head of the grid, and every target class
says which layers it would capture. One child does it all."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.checkpoint.config import parse_config
from guarded_serve.engine_rules.capture import known_targets, predict_capture
from guarded_serve.engine_rules.drafter import EAGLE3_CLASSES
from guarded_serve.engine_rules.settings import ROPE_TYPES
from guarded_serve.engine_rules.versions import parse_version
from guarded_serve.facts.model import ModelFacts, gather_models
from guarded_serve.profile.sglang_parser import installed_version
from tests.support.grid import CASES, build
from tests.support.verdicts import deployment

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"),
]

ROOT = Path(__file__).resolve().parents[2]
HEADS = [
    name
    for name in CASES
    if name[0] not in "UTV" and not (name[0] == "R" and name != "R norms of one") and "0.5.1" not in name
]
IDS = (None, [1, 3, 4], [2, 4, 5], [1, 29, 57], [24, 30, 36], [4, 6, 8])
LAYERS = (8, 36, 61)
WANTED = [(target, layers, ids) for target in sorted(known_targets((0, 5, 23))) for layers in LAYERS for ids in IDS]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Facts of every head, and what SGLang did with it."""
    root = tmp_path_factory.mktemp("grid")
    facts: dict[str, ModelFacts] = {}
    pairs = []
    for number, name in enumerate(HEADS):
        built = build(name, root / str(number))
        assert built.drafter is not None
        facts[name] = gather_models(deployment(built.target, built.drafter, version=installed_version()))
        pairs.append({"target": str(built.target), "drafter": str(built.drafter)})
    plain = next(i for i, name in enumerate(HEADS) if name == "B SpecForge")
    request = {"pairs": [pairs[plain], *pairs], "captures": WANTED}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("real_head.py"))],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "guarded_serve" / "cpu_kernels"), "TORCH_COMPILE_DISABLE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    return {"facts": facts, "heads": dict(zip(HEADS, told["pairs"][1:], strict=True)), "captures": told["captures"]}


@pytest.mark.parametrize("name", HEADS)
def test_head(name: str, truth: dict[str, Any]) -> None:
    facts, real = truth["facts"][name], truth["heads"][name]
    rules, loading = facts.rules, facts.loading
    if rules is None or facts.head_class not in EAGLE3_CLASSES:
        return  # another class: `drafter.class` refuses it
    if rules.failures:
        assert "failure" in real, real
        return
    if rules.dimensions.assumed:
        return  # refused: the config class's own default applies
    if "failure" in real:
        unknown_rope = facts.drafter.config.rope.type not in ROPE_TYPES
        assert _misfits(facts) or unknown_rope, real["failure"]
        return
    assert loading is not None
    names = {slot.parameter for slot in rules.slots}
    assert names == set(real["parameters"])
    unfilled = {slot.parameter for slot in rules.slots if slot.key not in loading.filled}
    assert unfilled == set(real["unwritten"]) - _only_partly(facts)
    assert rules.borrows_head == real["borrows_head"]
    assert rules.tied == real["tied"]
    statistics = facts.map.statistics
    if statistics is not None:
        assert list(statistics.ids) == real["map"]
    for slot in rules.slots:
        if not slot.part and slot.parameter not in ("model.embed_tokens.weight", "lm_head.weight"):
            assert list(slot.shape) == real["parameters"][slot.parameter]


def _misfits(facts: ModelFacts) -> bool:
    """Whether a tensor has another shape than its parameter: then SGLang may die as it loads."""
    assert facts.rules is not None
    assert facts.loading is not None
    assert facts.drafter is not None
    assert facts.drafter.weights is not None
    tensors = facts.drafter.weights.tensors
    map_rank = facts.map.d2t is not None and len(facts.map.d2t.shape) != 1
    return map_rank or any(
        (slot := facts.rules.slot(key)) is not None and slot.shape != tensors[name].shape
        for key, name in facts.loading.filled.items()
    )


def _only_partly(facts: ModelFacts) -> set[str]:
    """Parameters that a tensor of another shape fills in part."""
    assert facts.rules is not None
    assert facts.loading is not None
    assert facts.drafter is not None
    assert facts.drafter.weights is not None
    tensors = facts.drafter.weights.tensors
    return {
        slot.parameter
        for key, name in facts.loading.filled.items()
        if (slot := facts.rules.slot(key)) is not None and slot.shape != tensors[name].shape
    }


def test_most_heads_were_really_loaded(truth: dict[str, Any]) -> None:
    loaded = [name for name, real in truth["heads"].items() if "failure" not in real]
    assert len(loaded) > 50
    assert any(name.startswith("O MLA") for name in loaded)


def test_capture(truth: dict[str, Any]) -> None:
    version = parse_version(installed_version()) or (0, 0, 0)
    compared = set()
    for (target, layers, ids), real in zip(WANTED, truth["captures"], strict=True):
        if real is None:
            continue  # a class that does not import with the CPU operators
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
