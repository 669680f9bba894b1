"""The target's quantization does not reach the drafter, and somebody is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from guarded_serve.commands.launch import dry_run
from guarded_serve.facts.draft_quantization import kept_apart
from guarded_serve.profile.resolve import resolve
from tests.support.checkpoints import drafter, target

FLAG = "--speculative-draft-model-quantization"


def asked(tmp_path: Path, *flags: str, **config: Any) -> list[str]:
    return [
        *("--model-path", str(target().write(tmp_path / "target")), "--speculative-algorithm", "EAGLE3"),
        *("--speculative-draft-model-path", str(drafter(**config).write(tmp_path / "drafter")), *flags),
    ]


def test_the_flag_is_added_and_noted(tmp_path: Path) -> None:
    deployment = kept_apart(resolve(None, asked(tmp_path, "--quantization", "fp8"), environ={}).deployment)
    assert deployment.arguments[-2:] == (FLAG, "unquant")
    assert deployment.get("speculative_draft_model_quantization") == "unquant"
    (note,) = deployment.notes
    assert f"{FLAG} unquant (the guard: the drafter is not quantized" in note
    shown = dry_run(deployment)
    assert f"# {note}" in shown
    assert f"{FLAG} unquant" in shown.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "config"),
    [
        ((), {}),
        (("--quantization", "fp8", FLAG, "fp8"), {}),
        (("--quantization", "fp8", FLAG, "unquant"), {}),
        (("--quantization", "fp8"), {"quantization_config": {"quant_method": "fp8"}}),
    ],
)
def test_what_needs_no_flag_is_left_as_it_is(tmp_path: Path, flags: tuple[str, ...], config: dict[str, Any]) -> None:
    deployment = resolve(None, asked(tmp_path, *flags, **config), environ={}).deployment
    assert kept_apart(deployment) is deployment


def test_a_drafter_that_is_not_there_is_left_to_the_checks(tmp_path: Path) -> None:
    flags = ["--model-path", "/no/m", "--speculative-algorithm", "EAGLE3", "--quantization", "fp8"]
    deployment = resolve(None, [*flags, "--speculative-draft-model-path", "/no/such/drafter"], environ={}).deployment
    assert kept_apart(deployment) is deployment
