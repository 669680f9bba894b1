"""Starts the real SGLang on the CPU engine, without the guard, for tests and measurements of the operators."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from guarded_serve.facts.ports import free_port
from tests.support.tied import tied_to_parent

ROOT = Path(__file__).resolve().parents[2]
READY_S = 240.0
"""Longest start-up waited for, in seconds; 20 s is usual on two idle cores."""

PYTHON_KEY = "BARE_SGLANG_PYTHON"
"""Environment variable: the Python whose SGLang is started, for trying another version; default: this one."""


def python() -> str:
    """The interpreter that SGLang runs in."""
    return os.environ.get(PYTHON_KEY, sys.executable)


@functools.cache
def version() -> tuple[int, ...]:
    """The version of the SGLang that is started, such as (0, 5, 23); () when it is not installed."""
    ask = "import importlib.metadata; print(importlib.metadata.version('sglang'))"
    answer = subprocess.run([python(), "-c", ask], check=False, capture_output=True, text=True).stdout
    return tuple(int(part) for part in re.findall(r"\d+", answer)[:3])


def cpu_flags() -> list[str]:
    """What makes SGLang serve on the CPU engine.

    0.5.16 and 0.5.17 use `--attention-backend`, which they turn into torch_native on a CPU without AMX, unless prefill
    and decode differ; verification then follows prefill.
    """
    decode = "torch_native" if version() < (0, 5, 18) else "intel_amx"
    return [
        *("--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1"),
        *("--prefill-attention-backend", "intel_amx", "--decode-attention-backend", decode),
        *("--mem-fraction-static", "0.5", "--max-total-tokens", "20000", "--enable-metrics"),
    ]


def eagle3_flags(drafter: Path, steps: int, topk: int, draft_tokens: int) -> list[str]:
    """SGLang's flags for this drafter."""
    return [
        *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(drafter)),
        *("--speculative-draft-attention-backend", "intel_amx"),
        *("--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(topk)),
        *("--speculative-num-draft-tokens", str(draft_tokens)),
    ]


@dataclass(frozen=True)
class Server:
    """A ready server."""

    url: str
    log: Path

    def generate(self, tokens: Sequence[int], new_tokens: int) -> dict[str, Any]:
        """One greedy request on token ids, as /generate answers it."""
        sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
        body = {"input_ids": list(tokens), "sampling_params": sampling}
        answer = httpx.post(f"{self.url}/generate", json=body, timeout=120)
        answer.raise_for_status()
        result: dict[str, Any] = answer.json()
        return result

    def generate_at_once(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[dict[str, Any]]:
        """All prompts as requests of their own at the same time."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.generate(prompt, new_tokens), prompts))

    def metric(self, name: str) -> float:
        """The value of SGLang's metric of this name; KeyError when it is not there."""
        for line in httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines():
            if line.startswith((f"{name}{{", f"{name} ")):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)

    def flush_cache(self) -> None:
        """Empty SGLang's prefix cache."""
        httpx.post(f"{self.url}/flush_cache", timeout=30).raise_for_status()


@contextlib.contextmanager
def serve(
    target: Path, flags: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """SGLang on the CPU engine until the block ends; raises RuntimeError with the log's end when it does not start.

    `environment` adds variables; its PYTHONPATH comes before the operators' folder.
    """
    port = free_port()
    command = [python(), "-m", "sglang.launch_server", "--model-path", str(target)]
    command += [*cpu_flags(), "--port", str(port), *flags]
    kernels = str(ROOT / "guarded_serve" / "cpu_kernels")
    more = dict(environment or {})
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [more.pop("PYTHONPATH", ""), kernels])),
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "OMP_NUM_THREADS": "1",  # a toy's operators are too small for two threads to pay
        **more,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            start_new_session=True,
            preexec_fn=tied_to_parent(),  # noqa: PLW1509 - the tests start it from one thread
        )
    try:
        deadline = time.monotonic() + READY_S
        while b"ready to roll" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"SGLang did not start: {' '.join(command)}\n{log.read_text()[-4000:]}")
            time.sleep(0.2)
        yield Server(f"http://127.0.0.1:{port}", log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
