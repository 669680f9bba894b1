"""The smoke test on the real SGLang, CPU engine: the demo pair, its sibling, and everything that `make smoke` runs.

No timing decides: a gain may be unclear on a busy machine, never refused for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from guarded_serve.engine_link import ENVIRONMENT_KEY

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not (ROOT / "demo/drafter/model.safetensors").is_file(), reason="the demo pair is not in this checkout"
    ),
]


def smoke(folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, result.json and output; no process of any server is left."""
    lines = (ROOT / "demo/prompts.jsonl").read_text().splitlines(keepends=True)
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(lines[:12]))
    command = [sys.executable, "-m", "guarded_serve.cli", "smoke", "--profile", str(ROOT / "profiles/demo-cpu.toml")]
    command += ["--prompts", str(prompts), "--batch-sizes", "1", "--repeats", "2", "--new-tokens", "32"]
    mark = {**os.environ, "SMOKE_TEST_MARK": str(folder)}
    done = subprocess.run(
        [*command, "--report", str(folder / "report"), *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=mark,
    )
    assert not [process for process in psutil.process_iter() if _is_ours(process, str(folder))]
    return done.returncode, json.loads((folder / "report/result.json").read_text()), done.stdout + done.stderr


def _is_ours(process: psutil.Process, mark: str) -> bool:
    try:
        environment = process.environ()
    except psutil.Error:
        return False
    return environment.get("SMOKE_TEST_MARK") == mark and ENVIRONMENT_KEY in environment


@pytest.mark.engine
@pytest.mark.soak
def test_the_demo_drafter_passes(tmp_path: Path) -> None:
    code, result, said = smoke(tmp_path)
    (drafter,) = result["drafters"]
    failed = {one["check"] for one in drafter["outcomes"] if one["status"] == "fail"}
    assert failed <= {"smoke.gain_bs1"}, said
    assert code == (75 if failed else 0), said
    assert drafter["gain"]["1"]["estimate"] > 0
    cell = drafter["run"]["cells"][0]
    # SGLang's counts of requests and the engine's own clock are two accounts of the same cycles.
    assert cell["engine"]["cycles"] > 0
    assert cell["engine"]["accept_length"] == pytest.approx(cell["accept_length"], rel=0.1)
    assert result["baseline"]["cells"][0]["engine"]["period_ms"] > 0


@pytest.mark.engine
@pytest.mark.soak
def test_the_sibling_fails_its_floor(tmp_path: Path) -> None:
    """Every static gate passes; accept length tells."""
    code, result, said = smoke(tmp_path, "--model-path", str(ROOT / "demo/sibling"))
    assert code == 65, said
    outcomes = {one["check"]: one for one in result["drafters"][0]["outcomes"]}
    assert outcomes["smoke.accept_length"]["status"] == "fail"
    assert outcomes["smoke.first_position"]["status"] in ("pass", "warn")
    assert not [name for name, one in outcomes.items() if one["status"] == "fail" and not name.startswith("smoke.")]
    assert "sibling" in said


@pytest.mark.soak
def test_make_smoke(tmp_path: Path) -> None:
    """Random weights, a shuffled map, shifted layers, EAGLE for EAGLE3: each told apart."""
    done = subprocess.run(
        [sys.executable, "tools/smoke_demo.py", "--report", str(tmp_path)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
