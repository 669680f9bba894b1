"""The broken copies of a drafter, as a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from demo.broken import KINDS

ROOT = Path(__file__).resolve().parents[2]


def broken(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "demo.broken", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(not (ROOT / "demo/drafter/model.safetensors").is_file(), reason="the demo pair is not here")
def test_a_second_run_writes_over_nothing_and_says_so(tmp_path: Path) -> None:
    done = broken("--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == set(KINDS)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = broken("--out", str(tmp_path))
    assert again.returncode == 2
    assert "is there already" in again.stderr
    assert "Traceback" not in again.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_no_drafter_there(tmp_path: Path) -> None:
    done = broken("--drafter", str(tmp_path / "none"), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "found nothing at" in done.stderr
    assert not (tmp_path / "out").exists()
