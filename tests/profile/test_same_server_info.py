"""Drop-in, on two real servers: `/server_info` says the same of the launcher's as of `sglang.launch_server`'s."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from guarded_serve.facts.ports import free_port
from guarded_serve.profile.resolve import CPU_KERNELS
from guarded_serve.profile.sglang_parser import installed_version

pytestmark = [
    pytest.mark.engine,
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(installed_version() is None, reason="SGLang is not installed"),
]

DEMO = Path(__file__).parents[2] / "demo"
KEY = "sk-server-info"
FLAGS = [
    *("--model", str(DEMO / "target"), "--device=cpu", "--dtype", "float32", "--enable-metrics", "--api-key", KEY),
    *("--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx"),
    *("--mem-fraction-static", "0.5", "--max-total-tokens", "8k", "--served-model-name", "demo"),
    *("--speculative-algo", "EAGLE3", "--speculative-draft-model-path", str(DEMO / "drafter")),
    *("--speculative-draft-attention-backend", "intel_amx", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
]
BY_CHANCE_OR_TIME = {"port", "nccl_port", "random_seed", "startup_time", "internal_states", "launch_command"}
"""Ports, seeds and times; the command, which has the port in it, and a private file in place of the key."""


def _server_info(module: str, folder: Path) -> dict[str, Any]:
    """Start a server by this module, ask it, and stop it."""
    port = free_port()
    environment = {
        **os.environ,
        "PYTHONPATH": str(CPU_KERNELS),
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
    }
    log = folder / f"{module}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *FLAGS, "--port", str(port)],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + 240
        while b"ready to roll" not in log.read_bytes():
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.5)
        headers = {"Authorization": f"Bearer {KEY}"}
        answer = httpx.get(f"http://127.0.0.1:{port}/server_info", headers=headers, timeout=60)
        answer.raise_for_status()
        information: dict[str, Any] = answer.json()
        return information
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_the_servers_say_the_same_of_themselves(tmp_path: Path) -> None:
    ours = _server_info("guarded_serve.launch_server", tmp_path)
    theirs = _server_info("sglang.launch_server", tmp_path)
    assert ours.keys() == theirs.keys()
    assert len(theirs) > 300
    differences = {name: (ours[name], theirs[name]) for name in theirs if ours[name] != theirs[name]}
    assert set(differences) <= BY_CHANCE_OR_TIME, differences
    assert {"port", "random_seed"} <= set(differences)  # two servers they were
    assert ours["speculative_num_steps"] == 3
