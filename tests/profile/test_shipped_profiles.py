"""The profiles in `profiles/`, and the reference page: each is what this version takes and says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from guarded_serve.profile.resolve import CPU_KERNELS, Resolution, resolve
from tests.support.profile_reference import PAGE, with_tables

FOLDER = Path(__file__).parents[2] / "profiles"
NAMES = (
    "demo-cpu",
    "llama-3.1-8b-eagle3",
    "qwen3-8b-eagle3",
    "gpt-oss-120b-eagle3",
    "deepseek-nextn",
    "no-drafter",
    "kimi-k2.5-eagle3-8x-rtx-pro-6000",
)


def resolved(name: str) -> Resolution:
    return resolve(FOLDER / f"{name}.toml", [], environ={})


def test_these_are_all() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.toml")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_no_finding(name: str) -> None:
    resolution = resolved(name)
    assert resolution.findings == ()
    assert resolution.deployment.profile.profile.name == name
    assert resolution.deployment.get("enable_metrics") is True


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("no-drafter",)])
def test_speculative_settings_are_complete_and_fit_each_other(name: str) -> None:
    deployment = resolved(name).deployment
    steps, topk, tokens = (
        deployment.get(f"speculative_{key}") for key in ("num_steps", "eagle_topk", "num_draft_tokens")
    )
    assert (topk, tokens) == (1, steps + 1)  # SGLang would force it silently
    assert deployment.is_set("speculative_draft_model_path") is (name != "deepseek-nextn")
    assert deployment.profile.probe.min_accept_length <= steps + 1


@pytest.mark.parametrize("name", [name for name in NAMES if name != "demo-cpu"])
def test_the_cycle_log_lies_where_the_shipped_unit_lets_it(name: str) -> None:
    """ProtectSystem=strict leaves an instance its own folder of logs only, and no two share one."""
    unit = (FOLDER.parent / "systemd/guarded-serve@.service").read_text()
    assert "ProtectSystem=strict" in unit
    (folder,) = re.findall(r"^LogsDirectory=(.*)$", unit, re.MULTILINE)
    directory = resolved(name).deployment.profile.timing.directory
    assert directory == (None if name == "no-drafter" else Path("/var/log", folder.replace("%i", name)))


def test_the_demo_runs_the_committed_pair_on_the_cpu() -> None:
    deployment = resolved("demo-cpu").deployment
    root = FOLDER.parent
    assert deployment.get("model_path") == str(root / "demo" / "target")
    assert deployment.get("speculative_draft_model_path") == str(root / "demo" / "drafter")
    assert deployment.profile.timing.directory == root / "cycles"
    assert deployment.environment["PYTHONPATH"].value == str(CPU_KERNELS)
    assert deployment.environment["SGLANG_USE_CPU_ENGINE"].value == "1"
    assert deployment.get("host") == "127.0.0.1"
    assert deployment.profile.break_even.baseline_tok_s == {}


def test_every_nccl_setting_has_its_reason_and_the_baseline_is_the_measured_one() -> None:
    name = "kimi-k2.5-eagle3-8x-rtx-pro-6000"
    deployment = resolved(name).deployment
    assert deployment.profile.break_even.baseline_tok_s == {1: 82.0}
    assert deployment.get("tp_size") == 8
    lines = (FOLDER / f"{name}.toml").read_text().splitlines()
    settings = [number for number, line in enumerate(lines) if line.startswith("NCCL_")]
    assert len(settings) >= 4
    assert all(lines[number - 1].startswith("# ") for number in settings)


def test_the_reference_page_is_the_model_s() -> None:
    page = PAGE.read_text()
    assert with_tables(page) == page, "run `python -m tests.support.profile_reference`"
