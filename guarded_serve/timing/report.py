"""A summary as numbers with names: by batch size, in JSON and as text for a terminal. No maths of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from guarded_serve.timing import maths
from guarded_serve.timing.summary import BatchSummary, Summary
from guarded_serve.timing.totals import STAGES, BatchTotals

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class BatchReport:
    """What is said of one batch size. docs/timing.md defines every figure; None where it cannot be known."""

    bs: int
    plain: bool
    cycles: int
    rows: int
    dropped_rows: int
    accepted: int
    cut: int
    steps: list[int]
    sources: list[str]
    stages: dict[str, dict[str, float] | None]  # by stage: mean, p50, p90, p99, max (milliseconds)
    accept_length: float | None
    accept_by_position: list[float]  # share of rows whose n-th draft was accepted
    draft_share: float | None
    verify_share: float | None
    extend_share: float | None
    other_share: float | None
    tok_s: float | None
    baseline_tok_s: float | None = None
    baseline_from: str | None = None  # "given" or "plain cycles in this log"
    break_even: float | None = None
    margin: float | None = None
    gain: float | None = None


def shares(totals: BatchTotals) -> dict[str, float | None]:
    """Draft, verify, extend and the rest as parts of the period, over the cycles that have one."""
    if totals.period_ms <= 0:
        return dict.fromkeys(("draft_share", "verify_share", "extend_share", "other_share"))
    draft = totals.period_draft_ms / totals.period_ms
    verify = totals.period_verify_ms / totals.period_ms
    extend = totals.period_extend_ms / totals.period_ms
    return {
        "draft_share": draft,
        "verify_share": verify,
        "extend_share": extend,
        "other_share": 1 - draft - verify - extend,
    }


def batch_tok_s(totals: BatchTotals) -> float | None:
    """Tokens per second of the whole batch while cycle followed cycle."""
    return totals.period_accepted / totals.period_ms * 1e3 if totals.period_ms > 0 else None


def by_position(accept_counts: list[int]) -> list[float]:
    """The n-th entry: the share of rows in which the n-th draft was accepted (and so were those before it)."""
    rows = sum(accept_counts)
    return [sum(accept_counts[n:]) / rows for n in range(2, len(accept_counts))] if rows else []


def report(summary: Summary, baselines: Mapping[int, float]) -> list[BatchReport]:
    """By batch size, speculative cycles first. ``baselines``: plain tokens per second of the whole batch.

    Where none is given for a batch size and the log holds plain cycles of it, those are the baseline.
    """
    measured = {bs: batch_tok_s(batch.totals) for (bs, plain), batch in summary.batches.items() if plain}
    made = []
    for (bs, plain), batch in sorted(summary.batches.items(), key=lambda item: (item[0][1], item[0][0])):
        baseline, origin = baselines.get(bs), "given"
        if baseline is None:
            baseline, origin = measured.get(bs), "plain cycles in this log"
        made.append(_batch_report(bs, plain, batch, None if plain else baseline, origin))
    return made


def _batch_report(bs: int, plain: bool, batch: BatchSummary, baseline: float | None, origin: str) -> BatchReport:
    totals = batch.totals
    rate = batch_tok_s(totals)
    length = maths.accept_length(totals.accepted, totals.rows) if totals.rows else None
    period = totals.period_ms / totals.period_cycles if totals.period_cycles else None
    even = maths.break_even(period, baseline, bs) if baseline and period else None
    return BatchReport(
        bs=bs,
        plain=plain,
        cycles=totals.cycles,
        rows=totals.rows,
        dropped_rows=totals.dropped_rows,
        accepted=totals.accepted,
        cut=totals.cut,
        steps=sorted(batch.steps),
        sources=sorted(batch.sources),
        stages={stage: _figures(batch, stage) for stage in STAGES},
        accept_length=length,
        accept_by_position=by_position(totals.accept_counts),
        **shares(totals),
        tok_s=rate,
        baseline_tok_s=baseline,
        baseline_from=origin if baseline else None,
        break_even=even,
        margin=length - even if length is not None and even is not None else None,
        gain=maths.gain(rate, baseline) if rate is not None and baseline else None,
    )


def _figures(batch: BatchSummary, stage: str) -> dict[str, float] | None:
    histogram = batch.stages[stage]
    if not histogram.count:
        return None
    figures = {"mean": histogram.mean, **{f"p{p}": histogram.percentile(p) for p in PERCENTILES}}
    return {name: value for name, value in figures.items() if value is not None} | {"max": histogram.highest}


def to_json(summary: Summary, reports: list[BatchReport], files: int) -> str:
    """One JSON object; numbers rounded to what they can mean."""
    value = {
        "files": files,
        "records": summary.records,
        "bad_lines": summary.bad_lines,
        "cut_lines": summary.cut_lines,
        "ranks": sorted(summary.ranks),
        "from_t": summary.first_t if summary.records else None,
        "to_t": summary.last_t if summary.records else None,
        "batch_sizes": [_flat(entry) for entry in reports],
        "slowest": [
            {"gpu_ms": ms, "t": t, "rank": rank, "forward": forward, "bs": bs}
            for ms, t, rank, forward, bs in sorted(summary.slowest, reverse=True)
        ],
    }
    return json.dumps(_rounded(value), indent=2)


def to_text(summary: Summary, reports: list[BatchReport], files: int) -> str:
    """For a terminal: a block a batch size."""
    lines = [f"{summary.records} cycles in {files} file{'s' * (files != 1)}, rank {_list(summary.ranks)}"]
    if summary.cut_lines:
        lines.append(f"{summary.cut_lines} last line cut off (a crash, or still being written): left out")
    if summary.bad_lines:
        lines.append(f"{summary.bad_lines} lines are no cycle records: left out")
    for entry in reports:
        lines += ["", *_block(entry)]
    return "\n".join(lines)


def _block(entry: BatchReport) -> list[str]:
    kind = "plain decode" if entry.plain else f"steps {_list(entry.steps)}"
    lines = [
        f"batch size {entry.bs}, {kind}: {entry.cycles} cycles, {entry.rows} rows"
        + (f" and {entry.dropped_rows} dropped" if entry.dropped_rows else "")
        + f" ({_list(entry.sources)})",
        f"  {'ms':<10}{'mean':>9}{'p50':>9}{'p90':>9}{'p99':>9}{'max':>9}{'share':>9}",
    ]
    of_period = {
        "draft_ms": entry.draft_share,
        "verify_ms": entry.verify_share,
        "extend_ms": entry.extend_share,
    }
    for stage in STAGES:
        figures = entry.stages[stage]
        if figures is None:
            continue
        row = f"  {stage.removesuffix('_ms'):<10}" + "".join(f"{figures[n]:9.3f}" for n in _FIGURES)
        share = of_period.get(stage)
        lines.append(row + (f"{share:9.1%}" if share is not None else ""))
    if entry.other_share is not None:
        lines.append(f"  {'other':<10}{'':45}{entry.other_share:9.1%}")
    facts = []
    if entry.accept_length is not None and not entry.plain:
        facts.append(f"accept length {entry.accept_length:.3f}")
        if entry.accept_by_position:
            facts.append("by position " + " ".join(f"{share:.2f}" for share in entry.accept_by_position))
    if entry.tok_s is not None:
        facts.append(f"{entry.tok_s:.1f} tok/s")
    if facts:
        lines.append("  " + ", ".join(facts))
    if entry.break_even is not None and entry.gain is not None and entry.margin is not None:
        lines.append(
            f"  break-even at {entry.break_even:.3f}"
            f" (baseline {entry.baseline_tok_s:.1f} tok/s, {entry.baseline_from}):"
            f" margin {entry.margin:+.3f}, gain {entry.gain:+.1%}"
        )
    return lines


_FIGURES = ("mean", "p50", "p90", "p99", "max")


def _flat(entry: BatchReport) -> dict[str, Any]:
    value = asdict(entry)
    value.update(value.pop("stages"))
    return value


def _list(values: Any) -> str:
    return ", ".join(str(value) for value in sorted(values)) or "none"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    return value
