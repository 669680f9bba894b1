"""The real launcher over the real engine on the CPU with a tiny pair, for fault and soak tests."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from guarded_serve.facts.ports import free_port
from guarded_serve.supervisor import sentinel
from tests.support.supervised import ROOT, alive, wait_until
from tests.support.toy import ToyPair

READY_S = 240.0
ENGINE = (
    *("--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1"),
    *("--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx"),
    *("--mem-fraction-static", "0.05", "--max-total-tokens", "20000"),
    *("--speculative-algorithm", "EAGLE3", "--speculative-draft-attention-backend", "intel_amx"),
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
)


def flags_of(pair: ToyPair, port: int) -> list[str]:
    models = ["--model-path", str(pair.target), "--speculative-draft-model-path", str(pair.drafter)]
    return [*ENGINE, *models, "--port", str(port)]


class Launcher:
    """The real launcher over the real engine."""

    def __init__(
        self, folder: Path, pair: ToyPair, supervise: Mapping[str, object], cycles: Path | None = None
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.log = folder / "log"
        self.profile = folder / "profile.toml"
        limits = "\n".join(f"{name} = {value}" for name, value in supervise.items())
        self.profile.write_text(f"[probe]\nenabled = false\n[gpus]\nwait_s = 5\n[supervise]\n{limits}\n")
        self.mapped: set[str] = set()
        flags = flags_of(pair, self.port)
        own = ["--profile", str(self.profile), "--guard-cpu-kernels"]
        own += ["--guard-cycles", str(cycles or folder / "cycles")]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "guarded_serve.launch_server", *own, *flags],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")},
            )
        self.seen: set[int] = set()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str, seconds: float = READY_S, count: int = 1) -> None:
        def there() -> bool:
            return len(re.findall(pattern, self.text())) >= count or self.process.poll() is not None

        wait_until(there, seconds)
        assert len(re.findall(pattern, self.text())) >= count, self.text()[-5000:]

    def processes(self) -> dict[str, int]:
        """The engine's processes by role, and the sentinel."""
        found = {}
        for pid in sentinel.descendants(self.process.pid):
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
            if title.startswith(b"sglang::scheduler"):
                found["scheduler"] = pid
            elif title.startswith(b"sglang::detokenizer"):
                found["detokenizer"] = pid
            elif b"sglang.launch_server" in title and "main" not in found:
                found["main"] = pid
            self.seen.add(pid)
        self.mapped |= sentinel.shared_memory_of(self.seen)
        return found

    def generate(self, tokens: int = 20) -> int:
        answer = httpx.post(
            f"http://127.0.0.1:{self.port}/generate",
            json={"text": "hello", "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}},
            timeout=120,
        )
        answer.raise_for_status()
        return int(answer.json()["meta_info"]["completion_tokens"])

    def left(self) -> list[str]:
        """Processes, the port, and shared memory that the engine had mapped whenever `processes` was asked."""
        left = [f"process {pid}" for pid in self.seen if alive(pid)]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError:
                left.append(f"port {self.port}")
        left += sorted(self.mapped & sentinel.shared_memory())
        return left


@contextlib.contextmanager
def launched(folder: Path, pair: ToyPair, cycles: Path | None = None, **supervise: object) -> Iterator[Launcher]:
    launcher = Launcher(folder, pair, supervise, cycles)
    try:
        yield launcher
    finally:
        if launcher.process.poll() is None:
            launcher.process.kill()
        launcher.process.wait()
        wait_until(lambda: not launcher.left(), 5)
