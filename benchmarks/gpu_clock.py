"""The cycle clock on a real card and the real SGLang: does it tell the truth, and what does it cost.

Run by `gpu_clock.sh`. An 8B Llama's shape with random weights; the accept length is SGLang's own simulation
(`SGLANG_SIMULATE_ACC_LEN`), exactly 3 in every cycle, so that two runs differ in time alone. For timing only.

- stages: accept length over period against the tok/s that a client measures, at batch sizes 1, 8, 32; shares; the same
  without a drafter, which is the baseline of break-even.
- overhead: the clock switched on and off in turn within one server, pairs of runs, the 95 % interval of their ratio.
- synchronisation: what a profiler trace counts with the clock on and off.
- accounts: rows of the records against `spec_verify_ct` over requests of mixed lengths, under the overlap scheduler.

``--server``, ``--flags`` and ``--eagle`` put another command or a small model in place, ``--quick`` makes all runs
short: a rehearsal.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gzip
import json
import math
import os
import random
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.plugin import write_plugin
from guarded_serve.engine_link import ENVIRONMENT_KEY, EngineSettings
from guarded_serve.facts.ports import free_port
from guarded_serve.timing import maths
from guarded_serve.timing.reader import cycles, find_files
from guarded_serve.timing.record import Cycle

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
FLAGS = (
    "--load-format dummy --skip-tokenizer-init --host 127.0.0.1 --attention-backend triton --sampling-backend pytorch"
    " --cuda-graph-max-bs-decode 32 --mem-fraction-static 0.6 --disable-radix-cache --max-running-requests 48"
)
EAGLE = (
    "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1"
    " --speculative-num-draft-tokens 4"
)
SIMULATED = {"SGLANG_SIMULATE_ACC_LEN": "3", "SGLANG_SIMULATE_ACC_METHOD": "match-expected"}
BATCHES = (1, 8, 32)
READY = b"The server is fired up and ready to roll!"
figures: dict[str, Any] = {}


class Server:
    """A server with the launcher's mark, and what its plugin said."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.events: list[dict[str, Any]] = []

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            self.url + path, json.dumps(body or {}).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            text = answer.read()
        try:
            return json.loads(text)
        except ValueError:
            return text

    def generate(self, batch: int, tokens: int) -> list[dict[str, Any]]:
        """Meta of ``batch`` requests of 32 tokens sent as one."""
        prompts = [[random.randrange(1000, 100000) for _ in range(32)] for _ in range(batch)]
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        answers = self.post("/generate", {"input_ids": prompts, "sampling_params": sampling})
        return [answer["meta_info"] for answer in answers]

    def beat(self) -> dict[str, Any]:
        """The next beat but one: all that happened before the call is in it."""
        seen = sum(event["event"] == "beat" for event in self.events)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            beats = [event for event in self.events if event["event"] == "beat"]
            if len(beats) >= seen + 2:
                return beats[-1]
            time.sleep(0.02)
        raise SystemExit("no beat")

    def records(self) -> list[Cycle]:
        self.beat()
        return [cycle for path in find_files([self.folder / "cycles"]) for cycle in cycles(path)]

    def switch(self, on: bool) -> None:
        (self.folder / "control").write_text(json.dumps({"clock": on}))
        deadline = time.monotonic() + 20
        while self.beat()["clock"] is not on:
            if time.monotonic() > deadline:
                raise SystemExit("the clock did not switch")


@contextlib.contextmanager
def serve(command: list[str], flags: str, folder: Path, **environment: str) -> Iterator[Server]:
    folder.mkdir(parents=True)
    plugin = write_plugin(folder / "plugin")
    port = free_port()
    server = Server(f"http://127.0.0.1:{port}", folder)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(folder / "s"))

    def listen() -> None:
        with contextlib.suppress(OSError):
            while True:
                server.events.append(json.loads(listener.recv(1 << 20)))

    threading.Thread(target=listen, daemon=True).start()
    mark = EngineSettings("benchmark", str(folder / "s"), str(folder / "control"), str(folder / "cycles"))
    path = os.pathsep.join([str(plugin), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": path, ENVIRONMENT_KEY: mark.to_json(), **environment}
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *shlex.split(flags), "--port", str(port)],
            env=variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 240
        while READY not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the server did not start\n" + log.read_text(errors="replace")[-3000:])
            time.sleep(0.3)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        listener.close()


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def timed_run(server: Server, batch: int, tokens: int) -> tuple[float, int, float, list[Cycle]]:
    """A run: its seconds for the client, and tokens, seconds and cycles by the records."""
    before = len(server.records())
    started = time.perf_counter()
    server.generate(batch, tokens)
    seconds = time.perf_counter() - started
    found = [cycle for cycle in server.records()[before:] if cycle.bs == batch and cycle.period_ms is not None]
    kept = sum(sum(cycle.kept()) for cycle in found)
    return seconds, kept, sum(cycle.period_ms or 0 for cycle in found) / 1e3, found


def stages(server: Server, batch: int, quick: bool) -> dict[str, float]:
    """What the records say, and what the client measured, at one batch size.

    Both rates are the difference of a long and a short run: prefill and transport fall out, and both stand for the same
    cycles (those of longer contexts, which take longer).
    """
    short, long = (16, 64) if quick else (64, 832)
    server.generate(batch, short)
    client, records, found = [], [], []
    for _ in range(3):
        short_run, long_run = timed_run(server, batch, short), timed_run(server, batch, long)
        client.append(batch * (long - short) / (long_run[0] - short_run[0]))
        records.append((long_run[1] - short_run[1]) / (long_run[2] - short_run[2]))
        found += long_run[3]
    period = mean([cycle.period_ms or 0 for cycle in found])
    result = {
        "cycles": len(found),
        "period_ms": period,
        "gpu_ms": mean([cycle.gpu_ms or 0 for cycle in found]),
        "accept_length": mean([float(count) for cycle in found for count in cycle.kept()]),
        "client_tok_s": statistics.median(client),
        "tok_s": statistics.median(records),
    }
    for stage in ("draft_ms", "verify_ms", "extend_ms"):
        result[stage] = mean([getattr(cycle, stage) or 0.0 for cycle in found])
    result["gap_in_cycle_ms"] = result["gpu_ms"] - sum(result[s] for s in ("draft_ms", "verify_ms", "extend_ms"))
    result["gap_between_ms"] = period - result["gpu_ms"]
    result["verify_share"] = result["verify_ms"] / period
    result["client_over_records"] = result["client_tok_s"] / result["tok_s"]
    return result


def overhead(server: Server, batch: int, pairs: int, tokens: int) -> dict[str, float]:
    """Rates with the clock over rates without, run in turn; the mean ratio and its 95 % interval."""
    ratios = []
    for pair in range(pairs):
        rates = {}
        for on in (True, False) if pair % 2 == 0 else (False, True):
            server.switch(on)
            started = time.perf_counter()
            server.generate(batch, tokens)
            rates[on] = batch * tokens / (time.perf_counter() - started)
        ratios.append(rates[True] / rates[False])
    server.switch(True)
    spread = statistics.stdev(ratios) / math.sqrt(pairs)
    middle = mean(ratios)
    student = {10: 2.262, 12: 2.201, 15: 2.145, 20: 2.093}.get(pairs, 2.3)
    return {"pairs": pairs, "ratio": middle, "low": middle - student * spread, "high": middle + student * spread}


def trace(server: Server, on: bool, folder: Path) -> dict[str, int]:
    """Runtime calls that wait for the device, in a profile of 40 forward passes at batch size 1."""
    server.switch(on)
    folder.mkdir(parents=True, exist_ok=True)
    server.post(
        "/start_profile",
        {"output_dir": str(folder), "num_steps": 40, "activities": ["CPU", "GPU"], "with_stack": False},
    )
    server.generate(1, 400)
    deadline = time.monotonic() + 60
    while not (files := list(folder.rglob("*.json.gz"))) and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(2)
    calls: collections.Counter[str] = collections.Counter()
    for name in files:
        with gzip.open(name) as stream:
            for event in json.load(stream).get("traceEvents", []):
                if event.get("cat") in ("cuda_runtime", "cuda_driver"):
                    calls[event["name"]] += 1
    wanted = ("Synchronize", "EventQuery", "EventRecord", "Malloc")
    return {name: count for name, count in sorted(calls.items()) if any(word in name for word in wanted)}


def accounts(server: Server, requests: int) -> dict[str, int]:
    """Requests of mixed lengths, sixteen at a time."""
    before = len(server.records())

    def one(number: int) -> dict[str, Any]:
        choose = random.Random(number)
        prompt = [choose.randrange(1000, 100000) for _ in range(choose.randrange(4, 200))]
        sampling = {"temperature": 0, "max_new_tokens": choose.randrange(1, 90), "ignore_eos": True}
        meta: dict[str, Any] = server.post("/generate", {"input_ids": prompt, "sampling_params": sampling})["meta_info"]
        return meta

    with ThreadPoolExecutor(16) as pool:
        meta = list(pool.map(one, range(requests)))
    records = server.records()[before:]
    return {
        "requests": requests,
        "rows_kept": sum(len(cycle.kept()) for cycle in records),
        "spec_verify_ct": sum(entry.get("spec_verify_ct", 0) for entry in meta),
        "rows_dropped": sum(len(cycle.dropped) for cycle in records),
        "completion_tokens": sum(entry["completion_tokens"] for entry in meta),
        "accepted_less_cut": sum(sum(cycle.kept()) - cycle.cut for cycle in records) + requests,
    }


def row(*cells: Any) -> None:
    print("  ".join(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--server", default=f"{sys.executable} -m sglang.launch_server")
    parser.add_argument("--flags", default=None, help="in place of our own, a rehearsal's")
    parser.add_argument("--eagle", default=None, help="in place of our own, a rehearsal's")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    command = shlex.split(options.server)
    failures = []
    started = time.monotonic()

    def check(name: str, good: bool) -> None:
        row("ok" if good else "FAIL", name)
        if not good:
            failures.append(name)

    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary)
        for name, changes in {
            "target": {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32},
            "drafter": {
                "architectures": ["LlamaForCausalLMEagle3"],
                "num_hidden_layers": 1,
                "draft_vocab_size": 128256,
            },
        }.items():
            (top / name).mkdir()
            (top / name / "config.json").write_text(json.dumps({**LLAMA, **changes}))
        flags = options.flags or f"{FLAGS} --model-path {top / 'target'}"
        eagle = options.eagle or f"{EAGLE} --speculative-draft-model-path {top / 'drafter'}"
        with serve(command, f"{flags} {eagle}", top / "eagle", **SIMULATED) as server:
            row("ready after", time.monotonic() - started)
            (hello,) = [event for event in server.events if event["event"] == "hello"]
            figures["hello"] = hello
            check("every hook took hold", set(hello["hooks"].values()) == {"applied"})
            for batch in BATCHES:
                figures[f"eagle bs {batch}"] = found = stages(server, batch, options.quick)
                row(f"eagle bs {batch}", *(f"{name}={value:.3f}" for name, value in found.items()))
                check(f"client within 2 % of the records, bs {batch}", abs(found["client_over_records"] - 1) < 0.02)
            figures["accounts"] = found_accounts = accounts(server, 40 if options.quick else 300)
            row("accounts", found_accounts)
            check("rows equal spec_verify_ct", found_accounts["rows_kept"] == found_accounts["spec_verify_ct"])
            check("tokens add up", found_accounts["completion_tokens"] == found_accounts["accepted_less_cut"])
            for batch, tokens in ((1, 750), (32, 450)):
                cost = overhead(server, batch, 2 if options.quick else 10, 64 if options.quick else tokens)
                figures[f"overhead bs {batch}"] = cost
                row(f"overhead bs {batch}", *(f"{name}={value:.4f}" for name, value in cost.items()))
                check(f"the interval lies above 0.995, bs {batch}", cost["low"] > 0.995)
            beat = server.beat()
            check("nothing dropped, lost or at fault", not (beat["dropped"] or beat["lost"] or beat["faults"]))
            figures["faults"] = [event for event in server.events if event["event"] == "fault"]
            try:
                for on in (True, False):
                    figures[f"calls with the clock {'on' if on else 'off'}"] = trace(server, on, top / f"trace-{on}")
                    row(
                        f"calls, clock {'on' if on else 'off'}",
                        figures[f"calls with the clock {'on' if on else 'off'}"],
                    )
            except Exception as error:
                row("no trace", repr(error))
            _save(options.out)
        with serve(command, flags, top / "plain") as server:
            for batch in BATCHES:
                figures[f"plain bs {batch}"] = found = stages(server, batch, options.quick)
                row(f"plain bs {batch}", *(f"{name}={value:.3f}" for name, value in found.items()))
                check(f"plain: client within 2 %, bs {batch}", abs(found["client_over_records"] - 1) < 0.02)
                drafted = figures[f"eagle bs {batch}"]
                even = maths.break_even(drafted["period_ms"], found["tok_s"], batch)
                figures[f"break-even bs {batch}"] = even
                row(f"bs {batch} break-even", even, "accept", drafted["accept_length"])
    _save(options.out)
    row("seconds", time.monotonic() - started)
    return 1 if failures else 0


def _save(folder: Path) -> None:
    (folder / "gpu_clock.json").write_text(json.dumps(figures, indent=2, default=str))


if __name__ == "__main__":
    raise SystemExit(main())
