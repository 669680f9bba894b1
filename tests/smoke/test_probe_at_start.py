"""Gate 3 at a start, over a scripted server: the states, the exit code, and a start without the drafter."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.facts.ports import free_port
from tests.support.smoked import pids, start
from tests.support.supervised import alive, wait_until

ROOT = Path(__file__).resolve().parents[2]
DEMO = (
    (ROOT / "profiles/demo-cpu.toml").read_text().replace('"../demo/', f'"{ROOT}/demo/').replace('"../cycles"', '"{}"')
)
GOOD: dict[str, Any] = {"accept": {"drafter": [10, 15, 25, 50]}}
BAD: dict[str, Any] = {"accept": {"drafter": [95, 5, 0, 0]}}
pytestmark = pytest.mark.skipif(
    not (ROOT / "demo/drafter/model.safetensors").is_file(), reason="the demo pair is not in this checkout"
)


@contextmanager
def launched(
    folder: Path, scenario: dict[str, Any], on_failure: str
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The launcher, read until it serves or ends."""
    profile = folder / "p.toml"
    text = DEMO.replace("{}", str(folder / "cycles")).replace("[probe]\n", f'[probe]\non_failure = "{on_failure}"\n')
    profile.write_text(text)
    scenario = {"ms_per_token": {"drafter": 0.1}, **scenario}
    process = start(folder, scenario, "--port", str(free_port()), profile=profile, command="launch")
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "state=serving" in line:
                break
        yield process, lines
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        lines += process.communicate(timeout=30)[0].splitlines(keepends=True)
        assert wait_until(lambda: not [pid for pid in pids(folder) if alive(pid)], 10)


def states(lines: list[str]) -> list[str]:
    return re.findall(r" state=(\w+)", "".join(lines))


def test_a_good_drafter_serves(tmp_path: Path) -> None:
    with launched(tmp_path, GOOD, "refuse") as (process, lines):
        assert states(lines) == ["preflight", "starting", "probing", "serving"]
        assert "probe: accept length 3." in "".join(lines)
    assert process.returncode == 0


def test_a_bad_one_is_refused_before_ready(tmp_path: Path) -> None:
    with launched(tmp_path, BAD, "refuse") as (process, lines):
        pass
    assert states(lines) == ["preflight", "starting", "probing", "refused"]
    assert "drafter and target do not fit" in "".join(lines)
    assert process.returncode == 65


def test_a_warning_serves(tmp_path: Path) -> None:
    with launched(tmp_path, BAD, "warn") as (process, lines):
        assert states(lines)[-1] == "serving"
        assert "level=warning" in next(line for line in lines if "do not fit" in line)
    assert process.returncode == 0


def test_it_serves_without_the_drafter(tmp_path: Path) -> None:
    """Started once more without speculation, which the scripted server shows by counting nothing."""
    with launched(tmp_path, BAD, "serve-without-drafter") as (process, lines):
        first = ["preflight", "starting", "probing", "refused"]
        assert states(lines) == [*first, "preflight", "starting", "probing", "serving"]
        assert "without the drafter" in "".join(lines)
    assert process.returncode == 0


def test_prompts_that_are_missing_are_found_before_the_start(tmp_path: Path) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text(DEMO.replace("{}", str(tmp_path)).replace(f"{ROOT}/demo/prompts.jsonl", "/nowhere.jsonl"))
    process = start(tmp_path, GOOD, "--port", str(free_port()), profile=profile, command="launch")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 66
    assert "there is no prompts file /nowhere.jsonl" in out
    assert not pids(tmp_path)
