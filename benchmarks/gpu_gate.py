"""The GPU gate against a real card and the real SGLang: idle, busy, after kill -9, foreign programs, orphans.

Run by `gpu_gate.sh`. Every step says what it found against what it wanted; one that fails does not stop the others.
``--server CODE`` and ``--program CODE`` put stand-ins in the place of SGLang and of a CUDA program, for a rehearsal.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from guarded_serve.checks.gate import judge
from guarded_serve.facts.gpu import MIB, ask_driver
from guarded_serve.facts.gpus import with_selftest
from guarded_serve.facts.reading import Reading
from guarded_serve.profile.resolve import resolve

HERE = Path(__file__).parent
CLI = [sys.executable, "-c", "from guarded_serve.cli import run; run()"]
READY = "The server is fired up and ready to roll!"
PROGRAM = "import torch, time; x = torch.ones(2**28, device='cuda'); print('up', flush=True); time.sleep(600)"
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

rows: list[tuple[str, str, str, bool]] = []
figures: dict[str, Any] = {}


def row(step: str, wanted: str, found: str, ok: bool) -> None:
    """One line of the table."""
    rows.append((step, wanted, found, ok))
    print(f"{'ok  ' if ok else 'FAIL'} {step}: {found} (wanted: {wanted})", flush=True)


def make_models(folder: Path) -> tuple[Path, Path]:
    """A target and an EAGLE-3 drafter of an 8B Llama's shape: a config.json each, for `--load-format dummy`."""
    target, drafter = folder / "target", folder / "drafter"
    shapes = (
        (target, {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32}),
        (drafter, {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 128256}),
    )
    for path, own in shapes:
        path.mkdir()
        (path / "config.json").write_text(json.dumps({**LLAMA, **own}))
    return target, drafter


class Nvml:
    """Direct readings, beside the gate's own."""

    def __init__(self) -> None:
        import pynvml  # noqa: PLC0415

        self._module = pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def used(self, version: int = 2) -> float:
        """MiB in use on card 0 by version 1 or 2 of the query."""
        self._module.nvmlInit()  # counted only; a scripted driver reads its script again
        which = {} if version == 1 else {"version": self._module.nvmlMemory_v2}
        return float(self._module.nvmlDeviceGetMemoryInfo(self._handle, **which).used) / MIB


def check() -> tuple[int, str, float]:
    """`guarded-serve check --only gpu`: exit code, text, seconds with the command's start."""
    started = time.perf_counter()
    done = subprocess.run(
        [*CLI, "check", "--only", "gpu", "--model-path", "x"], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr, time.perf_counter() - started


def gate() -> tuple[Any, Any, float]:
    """The gate in this process: facts, report, seconds."""
    deployment = resolve(None, ["--model-path", "x"]).deployment
    started = time.perf_counter()
    facts, report = judge(deployment, ("gpu",))
    return facts, report, time.perf_counter() - started


@contextmanager
def server(command: list[str], log: Path, hook: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a session of its own, up when it says so; whatever is left of its session is killed at the end."""
    environment = dict(os.environ)
    if hook:
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE / "gpu_gate_orphan"), environment.get("PYTHONPATH", "")])
    with log.open("wb") as file:
        child = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
    try:
        until = time.monotonic() + 240
        while READY not in log.read_text(errors="replace"):
            if child.poll() is not None or time.monotonic() > until:
                print("\n".join(log.read_text(errors="replace").splitlines()[-40:]))
                raise RuntimeError(f"the server did not come up (exit {child.poll()})")
            time.sleep(0.2)
        yield child
    finally:
        for pid in (child.pid, *session(child.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        child.wait()


def session(leader: int) -> list[int]:
    """The processes of one session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat[3]) == leader and stat[0] != "Z":
                found.append(int(entry.name))
    return found


def until(condition: Callable[[], bool], seconds: float, every: float = 0.02) -> float | None:
    """Seconds until it holds, or None."""
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        if condition():
            return time.perf_counter() - started
        time.sleep(every)
    return None


def idle(nvml: Nvml) -> None:
    """An idle card passes, quickly, and is not touched."""
    before = nvml.used(1), nvml.used(2)
    row("idle card, version 1 and 2 of the memory query", "v2 at most 64 MiB", f"{before[0]:.0f}, {before[1]:.0f} MiB",
        before[1] <= 64)  # fmt: skip
    code, text, _ = check()
    row("idle card, check --only gpu", "exit 0", f"exit {code}" + ("" if code == 0 else f": {text[:300]}"), code == 0)
    times = [check()[2] for _ in range(5)]
    inside = [gate()[2] for _ in range(5)]
    figures["check_s"], figures["gate_s"] = sorted(times), sorted(inside)
    row("the gate's own time, median of 5", "under 0.7 s", f"{statistics.median(inside):.3f} s",
        statistics.median(inside) < 0.7)  # fmt: skip
    row("the whole command, median of 5", "a figure", f"{statistics.median(times):.3f} s", True)
    after = nvml.used(1), nvml.used(2)
    row("GPU memory before and after 11 gates", "equal", f"{before} and {after} MiB", before == after)
    facts, report, _ = gate()
    gpu = facts.gpus.driver.gpus[0]
    states = {one.name: getattr(gpu, one.name) for one in fields(gpu) if isinstance(getattr(gpu, one.name), Reading)}
    figures["driver"] = [facts.gpus.driver.version.value, facts.gpus.driver.cuda.value, gpu.name]
    figures["fields"] = {name: f"{value.state.value} {value.error}".strip() for name, value in states.items()}
    figures["findings"] = [f"{one.severity.value} {one.check}: {one.message}" for one in report.findings]
    absent = [name for name, value in states.items() if value.state.value != "value"]
    row("fields that this driver does not tell", "none failed", ", ".join(absent) or "none",
        not any(value.did_fail for value in states.values()))  # fmt: skip


def selftest(nvml: Nvml) -> None:
    """The self-test passes and gives the memory back."""
    facts, _, _ = gate()
    tested = with_selftest(facts.gpus, resolve(None, ["--model-path", "x"]).deployment).selftest
    assert tested is not None
    found = f"{tested.error or [f'{one.multiply_ms:.2f} ms' for one in tested.devices]} in {tested.seconds:.1f} s"
    row("self-test", "a right product", found, tested.error is None and all(not one.error for one in tested.devices))
    back = until(lambda: nvml.used() <= 64, 10)
    row(
        "memory after the self-test",
        "back",
        "not back" if back is None else f"back after {back:.2f} s",
        back is not None,
    )


def busy(nvml: Nvml, command: list[str], log: Path) -> None:
    """A server up is refused and named; after kill -9 the gate passes as soon as the memory is back."""
    with server(command, log) as child:
        code, text, seconds = check()
        named = re.search(r"PID (\d+) sglang::scheduler\S*", text)
        row("a server up, check --only gpu", "exit 75, named, within 2 s",
            f"exit {code} in {seconds:.2f} s, {named.group(0) if named else 'not named: ' + text[:300]}",
            code == 75 and named is not None and seconds < 2)  # fmt: skip
        figures["busy"] = text
        row("memory with the server up", "a figure", f"{nvml.used():.0f} MiB", True)
        freed: list[float] = []
        killed = time.perf_counter()

        def watch() -> None:
            if until(lambda: nvml.used() <= 64, 120) is not None:
                freed.append(time.perf_counter() - killed)

        for pid in session(child.pid):
            os.kill(pid, signal.SIGKILL)
        watcher = threading.Thread(target=watch)
        watcher.start()
        attempts = 0
        while True:
            attempts += 1
            _, report, _ = gate()
            errors = [one for one in report.findings if one.severity.value == "error"]
            passed = time.perf_counter() - killed
            if not errors or passed > 120:
                break
            time.sleep(0.1)
        watcher.join()
        lag = passed - freed[0] if freed else float("nan")
        row("after kill -9 of the server", "the gate passes within 1 s of the memory being back",
            f"memory back after {freed[0] if freed else -1:.2f} s, passed after {passed:.2f} s (gate {attempts})",
            not errors and lag < 1)  # fmt: skip


def foreign(nvml: Nvml, program: str) -> None:
    """A CUDA program that has nothing to do with SGLang is refused and named, and never ended."""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        code, text, seconds = check()
        ok = code == 75 and f"PID {child.pid} " in text
        row("a CUDA program without sglang", "exit 75, named", f"exit {code} in {seconds:.2f} s, named: {ok}", ok)
        subprocess.run([*CLI, "holders", "--terminate", "--yes"], capture_output=True, check=False)
        row("holders --terminate beside it", "leaves it alone", f"alive: {child.poll() is None}", child.poll() is None)
    finally:
        child.kill()
        child.communicate()
    until(lambda: nvml.used() <= 64, 20)


def orphan(nvml: Nvml, command: list[str], log: Path) -> None:
    """An orphaned scheduler is named as one, and `holders --terminate` frees the card."""
    with server(command, log, hook=True) as child:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        time.sleep(3)
        left = session(child.pid)
        row("kill -9 of the server's main process alone", "a scheduler is left", f"{len(left)} left, "
            f"{nvml.used():.0f} MiB held", bool(left) and nvml.used() > 64)  # fmt: skip
        code, text, _ = check()
        row("check beside the orphan", "exit 75, said to be orphaned", f"exit {code}, orphaned: {'orphaned' in text}",
            code == 75 and "orphaned" in text)  # fmt: skip
        dry = subprocess.run([*CLI, "holders", "--terminate", "--dry-run"], capture_output=True, text=True, check=False)
        row("holders --terminate --dry-run", "says it would end them, ends none",
            f"{dry.stdout.count('would end')} named, {len(session(child.pid))} alive",
            "would end" in dry.stdout and len(session(child.pid)) == len(left))  # fmt: skip
        started = time.perf_counter()
        done = subprocess.run(
            [*CLI, "holders", "--terminate", "--yes", "--grace", "5"], capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - started
        figures["holders"] = done.stdout
        row("holders --terminate", "exit 0, the card is free",
            f"exit {done.returncode} in {seconds:.1f} s, {nvml.used():.0f} MiB held, {len(session(child.pid))} alive",
            done.returncode == 0 and nvml.used() <= 64 and not session(child.pid))  # fmt: skip
        code, _, _ = check()
        row("check after it", "exit 0", f"exit {code}", code == 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu_gate.json"), help="where the figures go")
    parser.add_argument("--server", help="Python code in SGLang's place")
    parser.add_argument("--program", default=PROGRAM, help="Python code of a CUDA program")
    options = parser.parse_args()
    nvml = Nvml()
    with tempfile.TemporaryDirectory() as folder:
        target, drafter = make_models(Path(folder))
        flags = (
            f"--model-path {target} --load-format dummy --skip-tokenizer-init --port 30719 --host 127.0.0.1 "
            "--attention-backend triton --sampling-backend pytorch --cuda-graph-max-bs-decode 2 "
            "--max-running-requests 2 "
            f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {drafter} --speculative-num-steps 3 "
            "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --mem-fraction-static 0.6"
        )
        real = [sys.executable, "-m", "sglang.launch_server", *flags.split()]
        command = [sys.executable, "-c", options.server] if options.server else real
        steps: list[tuple[str, Callable[[], None]]] = [
            ("idle", lambda: idle(nvml)),
            ("selftest", lambda: selftest(nvml)),
            ("foreign", lambda: foreign(nvml, options.program)),
            ("busy", lambda: busy(nvml, command, Path(folder) / "busy.log")),
            ("orphan", lambda: orphan(nvml, command, Path(folder) / "orphan.log")),
        ]
        for name, step in steps:
            started = time.perf_counter()
            try:
                step()
            except Exception as error:
                row(name, "no fault of the script", f"{type(error).__name__}: {error}", False)
            figures[f"{name}_step_s"] = round(time.perf_counter() - started, 1)
    figures["rows"] = rows
    options.out.write_text(json.dumps(figures, indent=1, default=str))
    width = max(len(title) for title, *_ in rows)
    print()
    for title, _, found, ok in rows:
        print(f"{'ok  ' if ok else 'FAIL'} {title:<{width}}  {found}")
    print(f"driver {ask_driver().version.value}; {sum(ok for *_, ok in rows)} of {len(rows)} as wanted; {options.out}")
    return 0 if all(ok for *_, ok in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
