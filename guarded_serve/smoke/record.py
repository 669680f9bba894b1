"""The record of an accepted drafter: what later runs and the break-even watch compare with.

`guarded_serve.timing.reference` reads the part that the watch needs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guarded_serve.smoke.facts import Acceptance, Cell, Run
from guarded_serve.smoke.identity import Identity, unlike_acceptance, unlike_time
from guarded_serve.smoke.stats import medians
from guarded_serve.smoke.verdict import Recorded, Verdict, by_prompt
from guarded_serve.smoke.writing import write_whole
from guarded_serve.timing.reference import KIND, VERSION, BadRecord


def tok_s(cell: Cell) -> float:
    """The whole batch's tokens per second while decoding: batch size over the mean time a token."""
    times = medians([[sample.s_per_token for sample in repeat] for repeat in cell.repeats])
    return cell.batch_size * len(times) / sum(times)


def baseline_tok_s(baseline: Run | None) -> dict[int, float]:
    """The table for the profile's `[break_even]`: by the engine's own clock where it timed the plain steps."""
    return {cell.batch_size: cell.engine.tok_s or tok_s(cell) for cell in baseline.cells} if baseline else {}


def write_record(path: Path, run: Run, verdict: Verdict, baseline: Run | None, identity: Identity) -> None:
    """Whole or not at all. Raises OSError."""
    smallest = run.smallest
    baselines = baseline_tok_s(baseline)
    content = {
        "kind": KIND,
        "version": VERSION,
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "label": run.label,
        "verdict": verdict.word,
        "batch_sizes": {
            str(cell.batch_size): {
                "accept_length": Acceptance.of(cell.samples).length,
                "by_position": [round(value, 4) for value in Acceptance.of(cell.samples).by_position],
                "tok_s": tok_s(cell),
                "baseline_tok_s": baselines.get(cell.batch_size),
                "gain": verdict.figures.gain[cell.batch_size].estimate
                if cell.batch_size in verdict.figures.gain
                else None,
                "period_ms": cell.engine.period_ms,
                "draft_ms": cell.engine.draft_ms,
                "verify_ms": cell.engine.verify_ms,
                "extend_ms": cell.engine.extend_ms,
            }
            for cell in run.cells
        },
        "counts": {name: list(pair) for name, pair in by_prompt(smallest.samples).items()} if smallest else {},
        "identity": identity.to_mapping(),
    }
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_record(path: Path, identity: Identity) -> Recorded:
    """A record beside what is tested now. Raises BadRecord, FileNotFoundError or another OSError."""
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
        if value["kind"] != KIND or value["version"] != VERSION:
            raise BadRecord(f"{path} is not a record of version {VERSION}")
        now, then = identity.to_mapping(), value["identity"]
        return Recorded(
            label=str(value["label"]),
            counts=_counts(value["counts"]),
            period_ms={
                int(size): cell["period_ms"] for size, cell in value["batch_sizes"].items() if cell["period_ms"]
            },
            unlike=unlike_acceptance(now, then),
            unlike_time=unlike_time(now, then),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRecord(f"{path} is no record of a smoke test: {type(error).__name__}: {error}") from None


def _counts(value: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    return {str(name): (int(tokens), int(tries)) for name, (tokens, tries) in value.items()}
