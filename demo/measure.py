"""Ask a running SGLang for its accept length on the demo's prompts, from its own counters.

    python -m demo.measure --base-url http://127.0.0.1:30000

Accept length is the sum of completion tokens over the sum of `spec_verify_ct`, bonus token included. Standard library
only. Exit 0; 1 if `--at-least` is not reached or a text repeats a 20-token span more than twice; 69 if the server does
not answer; 66 if there is no prompts file.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

SPAN, MOST_REPEATS = 20, 2
UNAVAILABLE, NO_INPUT = 69, 66


def most_repeats(tokens: list[int], span: int = SPAN) -> int:
    """How often the commonest span of `span` tokens occurs; 0 for a shorter text."""
    spans = Counter(tuple(tokens[i : i + span]) for i in range(len(tokens) - span + 1))
    return max(spans.values(), default=0)


def complete(base_url: str, text: str, new_tokens: int, timeout: float) -> dict[str, Any]:
    """One greedy completion from `/generate`: SGLang's answer, with `output_ids` and `meta_info`."""
    body = {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens}}
    request = urllib.request.Request(
        f"{base_url.rstrip('/')}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def measure(base_url: str, prompts: list[str], new_tokens: int, timeout: float) -> dict[str, Any]:
    """Run every prompt, one at a time, and sum the server's counters."""
    completion_tokens = verify_passes = 0
    repeats: list[int] = []
    lengths: list[float] = []
    for prompt in prompts:
        answer = complete(base_url, prompt, new_tokens, timeout)
        meta = answer["meta_info"]
        passes = meta.get("spec_verify_ct", 0)
        completion_tokens += meta["completion_tokens"]
        verify_passes += passes
        repeats.append(most_repeats(answer["output_ids"]))
        lengths.append(meta["completion_tokens"] / max(1, passes))
    return {
        "prompts": len(prompts),
        "completion_tokens": completion_tokens,
        "spec_verify_ct": verify_passes,
        "accept_length": round(completion_tokens / verify_passes, 3) if verify_passes else None,
        "lowest": round(min(lengths), 3),
        "highest": round(max(lengths), 3),
        "most_repeats_of_a_span": max(repeats),
        "texts_that_repeat": sum(count > MOST_REPEATS for count in repeats),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    parser.add_argument("--prompts", type=Path, default=Path(__file__).parent / "prompts.jsonl")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one completion")
    parser.add_argument("--at-least", type=float, help="fail below this accept length, or if a text repeats itself")
    options = parser.parse_args()
    if not options.prompts.is_file():
        print(f"demo.measure: --prompts: no file {options.prompts}", file=sys.stderr)
        return NO_INPUT
    lines = options.prompts.read_text(encoding="utf-8").splitlines()
    try:
        found = measure(
            options.base_url, [json.loads(line)["text"] for line in lines], options.new_tokens, options.timeout
        )
    except (urllib.error.URLError, TimeoutError) as error:
        print(f"demo.measure: no answer from {options.base_url}: {error}; is the server up?", file=sys.stderr)
        return UNAVAILABLE
    print(json.dumps(found, indent=2))
    if options.at_least is None:
        return 0
    short = found["accept_length"] is None or found["accept_length"] < options.at_least
    return int(short or found["texts_that_repeat"] > 0)


if __name__ == "__main__":
    sys.exit(main())
