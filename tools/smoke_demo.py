"""`make smoke`: the smoke test on the demo pair and on what can be wrong with it, each with the answer it must get.

Real SGLang on the CPU engine, one server at a time. Reports go to ``smoke-report/``. Ends with 1 when an answer is not
the expected one; a drafter that passes but for an unclear gain (a busy machine) is said and not counted as wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
PROFILE = ROOT / "profiles/demo-cpu.toml"
PROMPTS = 12
"""Of 40: they give the accept lengths that 24 give, for the demo drafter and for the shifted one."""


@dataclass(frozen=True)
class Expected:
    """What a contestant must get: ``code`` and a text that its reasons must hold."""

    case: str
    code: int
    reason: str


def main() -> int:
    parser = argparse.ArgumentParser(description="smoke test of the demo pair")
    parser.add_argument("--report", type=Path, default=Path("smoke-report"))
    options = parser.parse_args()
    from demo.broken import KINDS, make  # noqa: PLC0415 - torch

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="guarded-serve-smoke-") as text:
        folder = Path(text)
        broken = [make(ROOT / "demo/drafter", folder, kind) for kind in KINDS]
        prompts = folder / "prompts.jsonl"
        lines = (ROOT / "demo/prompts.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        prompts.write_text("".join(lines[:PROMPTS]), encoding="utf-8")
        common = ["--profile", str(PROFILE), "--prompts", str(prompts), "--skip-server-warmup"]
        compared = [part for place in broken for part in ("--compare", str(place))]
        wrong = [
            *_run(
                [*common, "--drafter", str(ROOT / "demo/drafter"), *compared],
                options.report / "demo",
                (
                    Expected("demo drafter", 0, "gain over no drafter at batch size 1"),
                    Expected("random weights", 65, "the weights look random"),
                    Expected("shuffled d2t", 65, "does not rise"),
                    Expected("shifted aux layers", 65, "shifted by +1"),
                ),
            ),
            *_run(
                [*common, "--model-path", str(ROOT / "demo/sibling")],
                options.report / "sibling",
                (Expected("the target's sibling", 65, "made for a sibling"),),
            ),
            *_run(
                [*common, "--speculative-algorithm", "EAGLE"],
                options.report / "eagle",
                (Expected("EAGLE instead of EAGLE3", 65, "EAGLE-3 head"),),
            ),
        ]
    print(f"{time.monotonic() - began:.0f} s, reports in {options.report}/")
    for text in wrong:
        print(f"not as expected: {text}")
    return 1 if wrong else 0


def _run(arguments: list[str], report: Path, expected: tuple[Expected, ...]) -> list[str]:
    """What is not as expected."""
    command = [sys.executable, "-m", "guarded_serve.cli", "smoke", *arguments, "--report", str(report)]
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    try:
        result = json.loads((report / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [f"{expected[0].case}: exit {done.returncode} without a report: {error}"]
    pairs = zip(expected, result["drafters"], strict=True)
    return [text for wanted, found in pairs if (text := _judge(wanted, found))]


def _judge(wanted: Expected, found: dict[str, Any]) -> str | None:
    findings = [finding for outcome in found["outcomes"] for finding in outcome["findings"]]
    told = next((finding["message"] for finding in findings if wanted.reason in finding["message"]), None)
    length = found["accept_length"]["estimate"] if found["accept_length"] else None
    gain = found["gain"].get("1") if found["gain"] else None
    print(
        f"{wanted.case:24} {found['verdict']:12} exit {found['exit_code']:<3}"
        + (f" accept length {length:.2f}" if length else "")
        + (f" gain {gain['estimate']:.2f} ({gain['low']:.2f} to {gain['high']:.2f})" if gain else "")
        + f"  {told or ''}"
    )
    unclear = wanted.code == 0 and found["exit_code"] == 75
    if unclear:
        print(f"{'':24} the machine is too busy for a clear gain")
    if found["exit_code"] != wanted.code and not unclear:
        return f"{wanted.case}: exit {found['exit_code']}, expected {wanted.code}"
    return None if told else f"{wanted.case}: nothing says '{wanted.reason}'"


if __name__ == "__main__":
    sys.exit(main())
