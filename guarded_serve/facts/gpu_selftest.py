"""The self-test before a start: a matrix product on each chosen GPU, and an all-reduce of what a verify step sends.

The child alone imports torch (`gpu_selftest_child`); it has a deadline, and its whole process group is killed at it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guarded_serve.checkpoint.config import read_config
from guarded_serve.facts.gpu_choice import GpuChoice
from guarded_serve.facts.own_module import NEUTRAL_FOLDER, own_command, own_environment

if TYPE_CHECKING:
    from guarded_serve.profile.deployment import Deployment

DEADLINE_S = 120.0
"""CUDA contexts and NCCL on eight cards take about 20 s; a hung all-reduce never ends."""
_HALF_BYTES = 2
_USUAL_HIDDEN = 8192
_REDUCES_PER_LAYER = 2  # after attention and after the feed-forward part


@dataclass(frozen=True)
class DeviceTest:
    """One card: milliseconds for a matrix product, or what went wrong. ``place`` is its number in CUDA's order."""

    place: int
    multiply_ms: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class AllReduce:
    """All chosen cards together: microseconds for one all-reduce of ``size`` bytes (median), or what went wrong."""

    size: int
    ranks: int
    us: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class SelfTest:
    """What came of it. ``error`` is of the whole (no torch, deadline), with ``stage`` where it stood."""

    devices: tuple[DeviceTest, ...] = ()
    all_reduce: AllReduce | None = None
    layers: int | None = None  # of the target: each sends two all-reduces a step
    error: str | None = None
    seconds: float = 0.0

    @property
    def verify_ms(self) -> float | None:
        """What all all-reduces of one verify step take together, milliseconds."""
        if self.all_reduce is None or self.all_reduce.us is None or self.layers is None:
            return None
        return self.all_reduce.us * _REDUCES_PER_LAYER * self.layers / 1000


def verify_bytes(deployment: Deployment) -> tuple[int, int | None]:
    """Bytes that one all-reduce of a verify step at batch size 1 sends, and the target's layers (None: unknown)."""
    config = read_config(Path(str(deployment.get("model_path"))).expanduser())
    hidden = config.integer("hidden_size")
    tokens = int(deployment.get("speculative_num_draft_tokens") or 1)
    return tokens * (hidden or _USUAL_HIDDEN) * _HALF_BYTES, config.integer("num_hidden_layers")


def run_selftest(
    deployment: Deployment, choice: GpuChoice, environment: Mapping[str, str], deadline_s: float = DEADLINE_S
) -> SelfTest:
    """Run the child on the devices of the ranks; never raises."""
    size, layers = verify_bytes(deployment)
    places = [choice.visible.index(device) for device in choice.chosen]
    started = time.perf_counter()
    child = subprocess.Popen(
        own_command("facts.gpu_selftest_child", json.dumps({"places": places, "bytes": size})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=own_environment({**environment, **choice.environment}),
        cwd=NEUTRAL_FOLDER,
        start_new_session=True,
    )
    try:
        output, errors = child.communicate(timeout=deadline_s)
        problem = None if child.returncode == 0 else _end(child.returncode, errors)
    except subprocess.TimeoutExpired as expired:
        output, problem = expired.stdout or b"", f"no result within {deadline_s:.0f} s"
        os.killpg(child.pid, signal.SIGKILL)
        try:
            child.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            problem += f"; the test (PID {child.pid}) waits inside the kernel and cannot be killed"
    finally:
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
    said = [json.loads(line) for line in output.decode(errors="replace").splitlines() if line.startswith("{")]
    return read_results(said, layers, problem, time.perf_counter() - started)


def _end(status: int, errors: bytes) -> str:
    last = errors.decode(errors="replace").strip().splitlines()[-1:]
    how = f"signal {-status}" if status < 0 else f"exit {status}"
    return f"the test ended with {how}" + (f": {last[0]}" if last else "")


def read_results(said: list[dict[str, Any]], layers: int | None, problem: str | None, seconds: float) -> SelfTest:
    """The child's lines: `{"stage": ...}` before each step, then `device`, `all_reduce` or `error`."""
    devices = tuple(DeviceTest(**line["device"]) for line in said if "device" in line)
    reduces = [AllReduce(**line["all_reduce"]) for line in said if "all_reduce" in line]
    errors = [line["error"] for line in said if "error" in line]
    stages = [line["stage"] for line in said if "stage" in line]
    error = errors[-1] if errors else problem
    if problem and not errors and stages:
        error = f"{problem}, in: {stages[-1]}"
    return SelfTest(devices, reduces[-1] if reduces else None, layers, error, seconds=seconds)
