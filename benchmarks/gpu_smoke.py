"""The smoke test's gain against SGLang's own `bench_serving`, on the same prompts, for a pair of any size.

Run by `gpu_smoke.sh`, which trains the pair first. ``test`` is `guarded-serve smoke`, during which `bench_serving`
measures each of its servers as well, once before and twice after it: both meet the same machine in the same mood, and
the median leaves out what a server just started still compiles. Both gains are ratios of the mean time per output token
of a request. Exit 1 when they differ by more than 3 %.

``--cpu`` runs it on the CPU engine, to rehearse it with a copy of the demo pair and `--new-tokens 32`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.plugin import write_plugin
from guarded_serve import cli
from guarded_serve.facts.ports import free_port
from guarded_serve.profile.load import load_profile
from guarded_serve.smoke import server
from guarded_serve.smoke.facts import Run
from guarded_serve.smoke.measure import Hooks, Plan, measure
from guarded_serve.supervisor.ready import Address

TOLERANCE = 0.03
SHOWN = ("verdict", "accept_length", "accepted_by_position", "first_position", "gain")
GPU = """attention_backend = "triton"
sampling_backend = "pytorch"
dtype = "bfloat16"
mem_fraction_static = 0.5
"""
CPU = """device = "cpu"
prefill_attention_backend = "intel_amx"
decode_attention_backend = "intel_amx"
speculative_draft_attention_backend = "intel_amx"
dtype = "float32"
mem_fraction_static = 0.5
max_total_tokens = 20000
[env]
OMP_NUM_THREADS = "1"
[engine]
cpu_kernels = true
"""
PROFILE = """[profile]
name = "bench"
[server]
model_path = "{pair}/target"
max_running_requests = 8
speculative_algorithm = "EAGLE3"
speculative_draft_model_path = "{pair}/drafter"
speculative_num_steps = 3
speculative_eagle_topk = 1
speculative_num_draft_tokens = 4
{device}
[smoke]
batch_sizes = {batch_sizes}
new_tokens = {new_tokens}
repeats = {repeats}
min_accept_length = 1.5
min_first_position = 0.3
[probe]
prompts = "{pair}/prompts.jsonl"
enabled = false
[gpus]
wait_s = 60
"""


def write_profile(pair: Path, options: argparse.Namespace, folder: Path) -> Path:
    """The deployment of a pair."""
    text = PROFILE.format(
        pair=pair,
        device=CPU if options.cpu else GPU,
        batch_sizes=options.batch_sizes,
        new_tokens=options.new_tokens,
        repeats=options.repeats,
    )
    path = folder / "bench.toml"
    path.write_text(text, encoding="utf-8")
    return path


def write_conversations(pair: Path, folder: Path, times: int) -> tuple[Path, int]:
    """The pair's prompts as `bench_serving` reads them, each ``times`` times, and how many that makes."""
    lines = (pair / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    path = folder / f"conversations-{times}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for line in lines * times:
            turns = [{"content": json.loads(line)["text"]}, {"content": "any answer at all"}]
            file.write(json.dumps({"conversations": turns}) + "\n")
    return path, len(lines) * times


class BenchServing:
    """`bench_serving` in a process of its own, which imports it once. Use as a context manager."""

    _LOOP = (
        "import json, sys\n"
        "from sglang import bench_serving\n"
        "for line in sys.stdin:\n"
        "    sys.argv = ['bench_serving', *json.loads(line)]\n"
        "    bench_serving.cli_main()\n"
        "    print('done', flush=True)\n"
    )

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._log = folder / "bench_serving.log"
        self.found: dict[str, dict[int, list[dict[str, Any]]]] = {}

    def __enter__(self) -> BenchServing:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", self._LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def measure(self, label: str, address: Address, plan: Plan, hooks: Hooks) -> Run:
        """What the smoke test calls: its own measurement, among three of `bench_serving`'s."""
        self._measure(label, address)
        run = measure(label, address, plan, hooks)
        self._measure(label, address)
        self._measure(label, address)
        return run

    def _measure(self, label: str, address: Address) -> None:
        for batch in self._options.batch_sizes:
            found = self._one(f"http://{address.host}:{address.port}", batch)
            self.found.setdefault(label, {}).setdefault(batch, []).append(found)
            print(f"bench_serving, {label}, batch size {batch}: {found}", flush=True)

    def _one(self, url: str, batch: int) -> dict[str, Any]:
        """One batch size; every prompt so often that the last answers, which see a smaller batch, weigh little."""
        path, count = write_conversations(self._options.pair, self._folder, batch)
        output = self._folder / f"bench-{batch}-{time.monotonic_ns()}.jsonl"
        target = str(self._options.pair / "target")
        arguments = [
            *("--backend", "sglang", "--base-url", url, "--model", target, "--tokenizer", target),
            *("--dataset-name", "custom", "--dataset-path", str(path), "--num-prompts", str(count)),
            *("--sharegpt-output-len", str(self._options.new_tokens), "--disable-ignore-eos"),
            *("--max-concurrency", str(batch), "--output-file", str(output), "--disable-tqdm"),
            *("--warmup-requests", str(batch)),
        ]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        if not any(line == "done\n" for line in self._process.stdout):
            raise SystemExit(self._log.read_text(errors="replace")[-3000:])
        found = json.loads(output.read_text().splitlines()[-1])
        wanted = ("completed", "output_throughput", "mean_tpot_ms", "median_tpot_ms", "mean_ttft_ms", "accept_length")
        return {name: found.get(name) for name in wanted}


def widen(target: Path, width: int) -> None:
    """Give a target's layers more hidden units that change nothing (their outputs are zero).

    Without them a layer is so small that the GPU waits for SGLang's Python most of the time, which no two runs do
    alike. More units, unlike more layers, make a prefill no longer on the CPU.
    """
    import torch  # noqa: PLC0415
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(target / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            tensors[name] = tensor.repeat(-(-width // len(tensor)), 1)[:width].contiguous()
        elif name.endswith("down_proj.weight"):
            tensors[name] = torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]))
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config["intermediate_size"] = width
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def warm(options: argparse.Namespace) -> None:
    """Start a bare server for an untrained pair of the same shapes, so that SGLang's kernels are compiled when they are
    needed: meant to run while the pair trains."""
    import torch  # noqa: PLC0415

    from demo import checkpoint  # noqa: PLC0415
    from demo.model import LARGE_DRAFTER, LARGE_TARGET, Drafter, Target  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="gs-warm-") as name:
        drafter = Drafter(LARGE_DRAFTER)
        drafter.set_vocabulary(torch.arange(LARGE_DRAFTER.draft_vocab))
        checkpoint.save(drafter, Path(name) / "drafter")
        checkpoint.save(Target(LARGE_TARGET), Path(name) / "target")
        port = free_port()
        settings = load_profile(write_profile(Path(name), options, Path(name))).profile.server
        flags = [part for key, value in settings.items() for part in (f"--{key.replace('_', '-')}", str(value))]
        few = ("--max-total-tokens", "20000")  # the training has the rest of the memory
        command = [
            *(sys.executable, "-m", "sglang.launch_server", *flags, *few),
            *("--port", str(port), "--skip-tokenizer-init"),
        ]
        process = subprocess.Popen(command, start_new_session=True)
        try:
            deadline = time.monotonic() + 240
            while process.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
                time.sleep(0.5)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test(options: argparse.Namespace) -> int:
    """The smoke test, with `bench_serving` in the same servers; then both gains side by side."""
    with tempfile.TemporaryDirectory(prefix="gs-") as name:
        folder = Path(name)
        plugin = write_plugin(folder / "plugin")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(plugin), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        profile = write_profile(options.pair, options, folder)
        with BenchServing(options, folder) as bench:
            server.measure = bench.measure
            code = cli.main(["smoke", "--profile", str(profile), "--report", str(folder / "report")])
        text = (folder / "report" / "result.json").read_text(encoding="utf-8")
    (options.out / "smoke.json").write_text(text, encoding="utf-8")
    smoked = json.loads(text)
    drafter = smoked["drafters"][0]
    training = json.loads((options.pair / "training.json").read_text(encoding="utf-8"))
    training.pop("recipe", None)
    figures = {
        "training": training,
        "smoke": {"exit": code, **{name: drafter[name] for name in SHOWN}},
        "bench_serving": bench.found,
        "gains": {},
    }
    worst = 0.0
    for batch in options.batch_sizes:
        time_ms = {label: median(one["mean_tpot_ms"] for one in found[batch]) for label, found in bench.found.items()}
        theirs = time_ms["baseline"] / time_ms["drafter"]
        ours = drafter["gain"][str(batch)]["estimate"]
        figures["gains"][batch] = {"smoke": ours, "bench_serving": theirs}
        worst = max(worst, abs(ours / theirs - 1))
        print(
            f"bs {batch}: smoke {ours:.3f}, bench_serving {theirs:.3f}, {100 * (ours / theirs - 1):+.1f} %", flush=True
        )
    (options.out / "gpu_smoke.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(f"smoke: exit {code}; " + ("agree within 3 %" if worst <= TOLERANCE else "they differ by more than 3 %"))
    return int(worst > TOLERANCE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["widen", "warm", "test"])
    parser.add_argument("--pair", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--width", type=int, default=98304, help="hidden units of the widened target's layers")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--batch-sizes", type=json.loads, default=[1, 8])
    parser.add_argument("--new-tokens", type=int, default=384)
    parser.add_argument("--repeats", type=int, default=4)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if options.step == "test":
        return test(options)
    if options.step == "widen":
        widen(options.pair / "target", options.width)
    else:
        warm(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
