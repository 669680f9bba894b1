"""Records how noisy this machine is for the smoke test: 20 runs without and with the demo drafter, every time kept.

    python -m benchmarks.smoke_noise baseline tests/smoke/recorded/baseline.json
    python -m benchmarks.smoke_noise drafter tests/smoke/recorded/drafter.json

One server each; its passes over the prompts in groups of three are the runs. tests/smoke/test_false_verdicts.py
resamples them. Record on a machine where other things run too: that is the noise that a verdict must stand.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from guarded_serve.profile.resolve import resolve
from guarded_serve.profile.variant import without_drafter
from guarded_serve.smoke.measure import Plan
from guarded_serve.smoke.prompts import load_prompts
from guarded_serve.smoke.run import to_stderr
from guarded_serve.smoke.server import Outlook, local, run_server
from guarded_serve.supervisor.run import SERVER_COMMAND

ROOT = Path(__file__).resolve().parents[1]
RUNS, REPEATS, PROMPTS, NEW_TOKENS = 20, 3, 12, 24


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("baseline", "drafter"))
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    deployment = resolve(ROOT / "profiles/demo-cpu.toml", ()).deployment
    if options.what == "baseline":
        deployment = without_drafter(deployment)
    prompts = load_prompts(str(ROOT / "demo/prompts.jsonl"))[:PROMPTS]
    plan = Plan(prompts, (1,), RUNS * REPEATS, NEW_TOKENS, most=RUNS * REPEATS)
    run = run_server(options.what, local(deployment), plan, SERVER_COMMAND, Outlook(to_stderr))
    if run.failure:
        raise SystemExit(run.failure)
    (cell,) = run.cells
    content = {
        "machine": f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "prompts": [sample.prompt for sample in cell.repeats[0]],
        "counts": [[sample.tokens, sample.verifications, list(sample.correct_drafts)] for sample in cell.repeats[0]],
        "us_per_token": [[round(sample.s_per_token * 1e6) for sample in repeat] for repeat in cell.repeats],
    }
    options.file.parent.mkdir(parents=True, exist_ok=True)
    options.file.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
