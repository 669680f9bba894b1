"""Each shipped profile, unchanged, passes the model gates on its models' shapes, and a wrong model is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import look_alikes
from tests.support.checkpoints import Data, kept_ids
from tests.support.look_alikes import LookAlike

PROFILES = Path(__file__).parents[2] / "profiles"
PROGRAM = [sys.executable, "-m", "guarded_serve.cli", "check", "--only", "profile,target,drafter", "--format", "json"]


@dataclass(frozen=True)
class Wrong:
    """A model that is not the profile's: what it is made of, the check that says so, and words of its message."""

    model: str  # whose place it takes, as the profile names it
    make: Callable[[], LookAlike]
    check: str
    says: str


@dataclass(frozen=True)
class Case:
    """A profile, the models that it names, and a wrong one."""

    models: dict[str, Callable[[], LookAlike]]
    wrong: Wrong
    warnings: tuple[str, ...] = ()  # these drafters are published without ids: SGLang's default holds


def _changed(make: Callable[[], LookAlike], change: Callable[[LookAlike], Any]) -> Callable[[], LookAlike]:
    def changed() -> LookAlike:
        model = make()
        change(model)
        return model

    return changed


def _absolute_map(model: LookAlike) -> None:
    model.values["d2t"] = Data("I64", (32000,), kept_ids(32000, model.config["vocab_size"]))


def _without_layer_61(model: LookAlike) -> None:
    model.shapes = {name: shape for name, shape in model.shapes.items() if ".61." not in name}


def _cut_off(model: LookAlike) -> None:
    model.cut = 4096


def _ids(*ids: int) -> Callable[[LookAlike], None]:
    def change(model: LookAlike) -> None:
        model.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = list(ids)

    return change


LLAMA, LLAMA_DRAFTER = "meta-llama/Llama-3.1-8B-Instruct", "lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B"
CASES = {
    "llama-3.1-8b-eagle3": Case(
        {LLAMA: look_alikes.llama_3_1_8b, LLAMA_DRAFTER: look_alikes.llama_3_1_8b_eagle3},
        Wrong(
            LLAMA_DRAFTER, _changed(look_alikes.llama_3_1_8b_eagle3, _absolute_map), "drafter.map_values", "absolute"
        ),
        warnings=("drafter.aux_layers", "drafter.context_length"),  # trained at 2048 positions
    ),
    "qwen3-8b-eagle3": Case(
        {"Qwen/Qwen3-8B": look_alikes.qwen3_8b, "Tengyunw/qwen3_8b_eagle3": look_alikes.qwen3_8b_eagle3},
        Wrong("Tengyunw/qwen3_8b_eagle3", look_alikes.llama_3_1_8b_eagle3, "drafter.vocab_size", "128256"),
        warnings=("drafter.aux_layers",),
    ),
    "gpt-oss-120b-eagle3": Case(
        {
            "openai/gpt-oss-120b": look_alikes.gpt_oss_120b,
            "lmsys/EAGLE3-gpt-oss-120b-bf16": look_alikes.gpt_oss_120b_eagle3,
        },
        Wrong(
            "lmsys/EAGLE3-gpt-oss-120b-bf16",
            _changed(look_alikes.gpt_oss_120b_eagle3, _ids(1, 17, 37)),
            "drafter.aux_layers",
            "37",
        ),
    ),
    "deepseek-nextn": Case(
        {"deepseek-ai/DeepSeek-V3-0324": look_alikes.deepseek_v3},
        Wrong(
            "deepseek-ai/DeepSeek-V3-0324",
            _changed(look_alikes.deepseek_v3, _without_layer_61),
            "drafter.own_layers",
            "61",
        ),
    ),
    "no-drafter": Case(
        {LLAMA: look_alikes.llama_3_1_8b},
        Wrong(LLAMA, _changed(look_alikes.llama_3_1_8b, _cut_off), "target.weights", "4096"),
    ),
    "kimi-k2.5-eagle3-8x-rtx-pro-6000": Case(
        {
            "/models/Kimi-K2.5-INT4": look_alikes.kimi_k2_5_int4,
            "/models/kimi-k2.5-eagle3": look_alikes.kimi_k2_5_eagle3,
        },
        Wrong("/models/kimi-k2.5-eagle3", look_alikes.gpt_oss_120b_eagle3, "drafter.hidden_size", "7168"),
    ),
}


def _place(root: Path, name: str, model: LookAlike) -> None:
    """Write a model to where its name is looked up: below ``root`` for a path, in a hub's cache for an id."""
    if name.startswith("/"):
        model.write(root / name[1:])
        return
    cached = root / "hub" / f"models--{name.replace('/', '--')}"
    revision = "0" * 40
    model.write(cached / "snapshots" / revision)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text(revision)


def _check(name: str, root: Path) -> tuple[int, dict[str, Any]]:
    """The profile as shipped; only that ``/models`` lies below ``root``."""
    text = (PROFILES / f"{name}.toml").read_text()
    profile = root / f"{name}.toml"
    profile.write_text(text.replace('"/models/', f'"{root}/models/'))
    done = subprocess.run(
        [*PROGRAM, "--profile", str(profile)],
        env={**os.environ, "HF_HUB_CACHE": str(root / "hub"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def _findings(report: dict[str, Any], severity: str) -> list[dict[str, Any]]:
    return [
        finding for outcome in report["outcomes"] for finding in outcome["findings"] if finding["severity"] == severity
    ]


def test_every_shipped_profile_but_the_demo_is_here() -> None:
    assert {path.stem for path in PROFILES.glob("*.toml")} == {*CASES, "demo-cpu"}


@pytest.mark.parametrize("name", CASES)
def test_a_shipped_profile_on_its_models_shapes(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    for model, make in case.models.items():
        _place(tmp_path, model, make())
    code, report = _check(name, tmp_path)
    assert _findings(report, "error") == []
    assert [finding["check"] for finding in _findings(report, "warning")] == list(case.warnings)
    assert code == 0


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_model_is_refused(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    for model, make in case.models.items():
        _place(tmp_path, model, case.wrong.make() if model == case.wrong.model else make())
    code, report = _check(name, tmp_path)
    errors = {finding["check"]: finding["message"] for finding in _findings(report, "error")}
    assert case.wrong.check in errors, errors
    assert case.wrong.says in errors[case.wrong.check]
    assert code == 65
