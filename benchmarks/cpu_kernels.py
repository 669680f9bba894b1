"""What a speculative cycle costs on the CPU engine, how much of it the operators take, and throughput by batch size.

Run from the project's root: `python -m benchmarks.cpu_kernels [--target DIR --drafter DIR] [--threads N]`.
Without a pair it uses the toy of the tests. It starts SGLang three times: without a drafter, with a chain, and with
the chain under a probe (whose own cost is why throughput is not taken from that run).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.bare_sglang import Server, eagle3_flags, serve
from tests.support.toy import make_pair

NEW_TOKENS = 128
PROBE = Path(__file__).parent / "cpu_kernels_probe"


def throughput(server: Server, prompts: list[list[int]], batch: int) -> float:
    """Tokens a second over all prompts, `batch` requests at a time, after one batch to warm up."""
    server.generate_at_once(prompts[:batch], NEW_TOKENS)
    server.flush_cache()
    start = time.monotonic()
    tokens = 0
    for first in range(0, len(prompts), batch):
        for answer in server.generate_at_once(prompts[first : first + batch], NEW_TOKENS):
            tokens += answer["meta_info"]["completion_tokens"]
    return tokens / (time.monotonic() - start)


def cycles(file: Path, batch: int) -> None:
    """Print the medians of the recorded cycles of this batch size, in milliseconds."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    records = [record for record in records if record["bs"] == batch]
    if not records:
        print(f"  bs {batch}: no cycles recorded")
        return
    median = {key: 1000 * statistics.median(record[key] for record in records) for key in records[0] if key != "bs"}
    share = statistics.median(record["kernels"] / record["cycle"] for record in records)
    print(
        f"  bs {batch}: cycle {median['cycle']:.2f} ms = draft {median['draft']:.2f} + verify {median['verify']:.2f} "
        f"+ extend {median['extend']:.2f} + rest; operators {median['kernels']:.2f} ms = {share:.0%} "
        f"in {median['calls'] / 1000:.0f} calls ({len(records)} cycles)"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, help="folder of the target (default: a toy)")
    parser.add_argument("--drafter", type=Path, help="folder of its EAGLE-3 drafter")
    parser.add_argument("--threads", type=int, default=1, help="OMP_NUM_THREADS of the engine (default: 1)")
    parser.add_argument("--shape", type=int, nargs=3, default=(3, 1, 4), metavar=("STEPS", "TOPK", "DRAFT_TOKENS"))
    options = parser.parse_args()
    if (options.target is None) != (options.drafter is None):
        parser.error("--target and --drafter belong together")
    source = random.Random(3)
    prompts = [[source.randrange(256) for _ in range(source.randrange(10, 60))] for _ in range(16)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target, drafter = options.target, options.drafter
        if target is None:
            pair = make_pair(folder / "toy")
            target, drafter = pair.target, pair.drafter
        threads: Mapping[str, str] = {"OMP_NUM_THREADS": str(options.threads)}
        flags = eagle3_flags(drafter.resolve(), *options.shape)
        for label, extra in (("no drafter", []), ("steps {} topk {} draft tokens {}".format(*options.shape), flags)):
            with serve(target.resolve(), extra, folder / "log", threads) as server:
                speeds = {batch: throughput(server, prompts, batch) for batch in (1, 8)}
            print(f"{label}: {speeds[1]:.0f} tok/s at bs 1, {speeds[8]:.0f} at bs 8 ({speeds[8] / speeds[1]:.1f}x)")
        probe = {**threads, "PYTHONPATH": str(PROBE), "CPU_KERNELS_PROBE": str(folder / "cycles")}
        with serve(target.resolve(), flags, folder / "log", probe) as server:
            for batch in (1, 8):
                throughput(server, prompts, batch)
        for batch in (1, 8):
            cycles(folder / "cycles", batch)


if __name__ == "__main__":
    main()
