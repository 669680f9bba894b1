"""Whether the demo pair's text with the drafter is the target's text alone, token for token, by shape and batch size.

Run from the project's root: `python -m benchmarks.text_equality [--topk 1 4]`, with BARE_SGLANG_PYTHON set for another
SGLang than the installed one. It starts SGLang on the CPU engine without a drafter, then once a shape, and prints
a row of `docs/cpu-engine.md` for each. Float32, greedy. Exit 1 where a text differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.bare_sglang import ROOT, Server, eagle3_flags, serve, version

DEMO = ROOT / "demo"
SHAPES = ((1, 1, 2), (3, 1, 4), (5, 1, 6), (1, 4, 4), (3, 4, 12), (5, 4, 16))
"""Steps, topk, draft tokens."""

PROMPTS, BATCH, NEW_TOKENS = 16, 8, 48


@dataclass(frozen=True)
class Texts:
    """The tokens of every prompt's answer, asked one at a time and in batches, and the accept length of the former."""

    alone: list[list[int]]
    together: list[list[int]]
    accept_length: float


def texts(server: Server, prompts: list[list[int]]) -> Texts:
    """Every prompt at batch size 1, then, from an empty prefix cache, at batch size `BATCH`."""
    answers = [server.generate(prompt, NEW_TOKENS) for prompt in prompts]
    server.flush_cache()
    together = []
    for first in range(0, len(prompts), BATCH):
        together += server.generate_at_once(prompts[first : first + BATCH], NEW_TOKENS)
    verified = sum(answer["meta_info"].get("spec_verify_ct", 0) for answer in answers)
    tokens = sum(answer["meta_info"]["completion_tokens"] for answer in answers)
    return Texts(
        [answer["output_ids"] for answer in answers],
        [answer["output_ids"] for answer in together],
        tokens / verified if verified else 1.0,
    )


def token_ids() -> list[list[int]]:
    """The first of the demo's prompts, by its tokenizer."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - comes with SGLang

    tokenizer = Tokenizer.from_file(str(DEMO / "target" / "tokenizer.json"))
    lines = (DEMO / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[:PROMPTS]
    return [tokenizer.encode(json.loads(line)["text"]).ids for line in lines]


def equal(these: list[list[int]], those: list[list[int]]) -> int:
    """How many of the texts are the same."""
    return sum(one == other for one, other in zip(these, those, strict=True))


def main() -> int:
    """Run the shapes and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topk", type=int, nargs="+", default=[1, 4], help="shapes with these topk only")
    options = parser.parse_args()
    prompts, release = token_ids(), ".".join(map(str, version()))
    print("| SGLang | topk | steps | draft tokens | same text, bs 1 | same text, bs 8 | accept length |")
    print("|---|---|---|---|---|---|---|", flush=True)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with serve(DEMO / "target", [], log) as server:
            plain = texts(server, prompts)
        wrong += PROMPTS - equal(plain.together, plain.alone)
        print(f"| {release} | | no drafter | | | {equal(plain.together, plain.alone)} of {PROMPTS} | |", flush=True)
        for steps, topk, draft_tokens in (shape for shape in SHAPES if shape[1] in options.topk):
            with serve(DEMO / "target", eagle3_flags(DEMO / "drafter", steps, topk, draft_tokens), log) as server:
                found = texts(server, prompts)
            same = equal(found.alone, plain.alone), equal(found.together, plain.alone)
            wrong += 2 * PROMPTS - sum(same)
            print(
                f"| {release} | {topk} | {steps} | {draft_tokens} | {same[0]} of {PROMPTS} | {same[1]} of {PROMPTS} "
                f"| {found.accept_length:.2f} |",
                flush=True,
            )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
