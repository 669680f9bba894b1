"""The demo drafter's accept length on target and sibling, by the counters of the SGLang that is installed.

Run from the project's root: `python -m benchmarks.demo_pair [--shape STEPS TOPK DRAFT_TOKENS]`. It starts SGLang on the
CPU engine twice, without the guard, and runs `demo.measure` against each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from demo.measure import measure
from tests.support.bare_sglang import ROOT, eagle3_flags, serve

DEMO = ROOT / "demo"
NEW_TOKENS = 128


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=3, default=(3, 1, 4), metavar=("STEPS", "TOPK", "DRAFT_TOKENS"))
    options = parser.parse_args()
    prompts = [json.loads(line)["text"] for line in (DEMO / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    flags = eagle3_flags(DEMO / "drafter", *options.shape)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("target", "sibling"):
            with serve(DEMO / name, flags, Path(folder) / "log") as server:
                found = measure(server.url, prompts, NEW_TOKENS, timeout=120)
            print(
                f"{name}: accept length {found['accept_length']:.2f} = {found['completion_tokens']} tokens / "
                f"{found['spec_verify_ct']} verifications ({found['lowest']:.2f} to {found['highest']:.2f} by prompt; "
                f"a 20-token span repeats at most {found['most_repeats_of_a_span']} times)"
            )


if __name__ == "__main__":
    main()
