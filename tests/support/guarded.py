"""The guarded launcher over the real SGLang, in a process of its own, as a person starts it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from guarded_serve.facts.ports import free_port
from tests.support.tied import tied_to_parent

ROOT = Path(__file__).resolve().parents[2]
DEMO_PROFILE = ROOT / "profiles/demo-cpu.toml"
READY_S = 240.0
"""Longest start-up waited for, in seconds; 20 s is usual on two idle cores."""


@dataclass
class Guarded:
    """A launcher and what it serves."""

    process: subprocess.Popen[bytes]
    port: int
    log_file: Path
    cycles: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def wait_for(self, text: str, seconds: float) -> bool:
        """Whether the log says so in time; stops waiting when the launcher has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if text in self.log:
                return True
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        return text in self.log

    def generate(self, prompt: str | list[int], new_tokens: int, **sampling: Any) -> dict[str, Any]:
        """One greedy request, as /generate answers it."""
        body: dict[str, Any] = {"text": prompt} if isinstance(prompt, str) else {"input_ids": prompt}
        body["sampling_params"] = {"temperature": 0, "max_new_tokens": new_tokens, **sampling}
        answer = httpx.post(f"{self.url}/generate", json=body, timeout=120)
        answer.raise_for_status()
        result: dict[str, Any] = answer.json()
        return result

    def records(self) -> list[dict[str, Any]]:
        """Every cycle record on disk, in order."""
        files = sorted(self.cycles.glob("cycles-*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def family(self) -> list[psutil.Process]:
        """Every live process below the launcher."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def stop(self, with_signal: int = signal.SIGINT, seconds: float = 60) -> int:
        """Ask the launcher to stop; its exit code."""
        self.process.send_signal(with_signal)
        return self.process.wait(seconds)


@contextlib.contextmanager
def guarded(folder: Path, *arguments: str, profile: Path = DEMO_PROFILE, ready: bool = True) -> Iterator[Guarded]:
    """The launcher on a free port, with its log and cycles in ``folder``; killed at the end if it still runs."""
    port = free_port()
    server = Guarded(_start(folder, port, profile, arguments), port, folder / "launcher.log", folder / "cycles")
    family: list[psutil.Process] = []
    try:
        if ready and not server.wait_for("state=serving", READY_S):
            raise RuntimeError(f"not serving; exit {server.process.poll()}\n{server.log[-6000:]}")
        family = server.family()
        yield server
    finally:
        if server.process.poll() is None:
            server.process.terminate()
            try:
                server.process.wait(60)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()


def _start(folder: Path, port: int, profile: Path, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "guarded_serve.launch_server", "--profile", str(profile), "--port", str(port)]
    command += ["--guard-cycles", str(folder / "cycles"), *arguments]
    with (folder / "launcher.log").open("wb") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
            env=dict(os.environ),
            preexec_fn=tied_to_parent(signal.SIGTERM),  # noqa: PLW1509 - the tests start it from one thread
        )
