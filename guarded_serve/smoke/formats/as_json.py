"""The stable machine form: everything measured, and the verdicts. ``version`` rises when a key changes or goes."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from guarded_serve.checks.formats import as_json as check_json
from guarded_serve.smoke.facts import Acceptance, Run
from guarded_serve.smoke.run import Judged, Result
from guarded_serve.smoke.stats import CONFIDENCE, Interval

VERSION = 1


def render(result: Result) -> str:
    """One JSON object."""
    document = {
        "version": VERSION,
        "name": result.name,
        "verdict": result.word,
        "exit_code": int(result.code),
        "seconds": round(result.seconds, 1),
        "confidence": CONFIDENCE,
        "floors": asdict(result.floors),
        "prompts": len(result.plan.prompts),
        "new_tokens": result.plan.new_tokens,
        "batch_sizes": list(result.plan.batch_sizes),
        "baseline_tok_s": {str(size): round(rate, 3) for size, rate in result.baselines.items()},
        "baseline": _run(result.baseline),
        "recommended": result.recommended.contestant.label if result.recommended else None,
        "drafters": [_judged(one) for one in result.judged],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _judged(one: Judged) -> dict[str, Any]:
    figures = one.verdict.figures
    checks = json.loads(check_json.render(one.verdict.report, one.verdict.code))
    return {
        "label": one.contestant.label,
        "drafter": one.contestant.drafter,
        "settings": dict(one.contestant.settings),
        "verdict": one.verdict.word,
        "exit_code": int(one.verdict.code),
        "accept_length": _interval(figures.accept_length),
        "accepted_by_position": [round(share, 4) for share in figures.by_position],
        "first_position": _interval(figures.first_position),
        "gain": {str(size): _interval(interval) for size, interval in figures.gain.items()},
        "regression": _interval(figures.regression),
        "identity": one.identity.to_mapping() if one.identity else None,
        "run": _run(one.run),
        "outcomes": checks["outcomes"],
    }


def _interval(value: Interval | None) -> dict[str, float | None] | None:
    if value is None:
        return None
    return {name: round(number, 4) if math.isfinite(number) else None for name, number in asdict(value).items()}


def _run(run: Run | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {
        "label": run.label,
        "failure": run.failure,
        "stopped_early": run.stopped_early,
        "start_s": round(run.start_s, 1) if run.start_s is not None else None,
        "left_out": list(run.left_out),
        "cells": [
            {
                "batch_size": cell.batch_size,
                "accept_length": Acceptance.of(cell.samples).length,
                "engine": asdict(cell.engine),
                "repeats": [
                    [
                        {
                            "prompt": sample.prompt,
                            "kind": sample.kind,
                            "tokens": sample.tokens,
                            "decode_tokens": sample.decode_tokens,
                            "decode_s": round(sample.decode_s, 6),
                            "first_s": round(sample.first_s, 6),
                            "verifications": sample.verifications,
                            "correct_drafts": list(sample.correct_drafts),
                        }
                        for sample in repeat
                    ]
                    for repeat in cell.repeats
                ],
            }
            for cell in run.cells
        ],
    }
