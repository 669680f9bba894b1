"""A report as one self-contained page: pictures (SVG, from matplotlib) and tables, each figure with its definition.

Needs matplotlib (the extra ``report``); everything else in `timing` does without.
"""

from __future__ import annotations

import html
import time
from collections.abc import Sequence

from guarded_serve.timing import pictures
from guarded_serve.timing.report import BatchReport
from guarded_serve.timing.summary import Summary

STYLE = """
:root { color-scheme: light dark; --ink: #212529; --paper: #ffffff; --faint: #868e96; --line: #dee2e6; --good: #2b8a3e;
  --bad: #c92a2a; --card: #f8f9fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e9ecef; --paper: #16191d; --faint: #909296; --line: #373a40;
  --good: #69db7c; --bad: #ff8787; --card: #1f2328; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto; padding: 2rem;
  max-width: 68rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .25rem; }
p.note, figcaption { color: var(--faint); max-width: 46rem; margin: .25rem 0 .75rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 1rem; margin: 1.5rem 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: 1rem; }
.card b { display: block; font-size: 1.7rem; line-height: 1.2; font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 0; } figure svg { width: 100%; height: auto; }
"""


def to_html(summary: Summary, reports: Sequence[BatchReport], files: Sequence[str]) -> str:
    """The whole page. Raises `pictures.NoMatplotlib`."""
    speculative = [entry for entry in reports if not entry.plain]
    span = f"{_moment(summary.first_t)} to {_moment(summary.last_t)}"
    parts = [
        f"<h1>Cycles, {html.escape(span)}</h1>",
        f"<p class=note>{summary.records:,} cycles, {len(files)} file{'s' * (len(files) != 1)},"
        f" rank {', '.join(map(str, sorted(summary.ranks)))}."
        + (f" {summary.cut_lines} cut and {summary.bad_lines} foreign lines left out." if _odd(summary) else "")
        + " The bonus token is counted everywhere.</p>",
        _cards(speculative),
        _section(
            "Stages and break-even by batch size",
            "Milliseconds, median and 99th percentile. Period: from a cycle's start to the next one's, where nothing"
            " came between. Break-even: period over plain step time, the accept length at which the drafter brings"
            " exactly what it costs. Gain: tokens per second over the baseline's, less one.",
            _table(reports),
        ),
        _section(
            "Where a cycle's time goes",
            "Means over the cycles that have a period. Other: between the stages and between cycles (scheduling,"
            " launching, results on their way out).",
            pictures.split(speculative),
        ),
        _section(
            "Stage times over time",
            "Means over equal spans of time, in milliseconds, at the batch sizes with most cycles.",
            pictures.over_time(summary),
        ),
        _section(
            "Accept length over time",
            "Mean tokens a request gets from a cycle; dashed: break-even, where a baseline is known.",
            pictures.accept_over_time(summary, speculative),
        ),
        _section(
            "Acceptance by position",
            "Share of rows whose n-th draft was accepted, and so were all before it. Their sum plus one is the accept"
            " length.",
            pictures.positions(speculative),
        ),
        _section(
            "Gain by batch size",
            "Tokens per second with the drafter over the baseline's, less one. Below zero the drafter costs more than"
            " it brings. Batch sizes without a baseline are left out.",
            pictures.gains(speculative),
        ),
        _section(
            "Slowest cycles",
            "By time from the first mark of the cycle to the last.",
            _slowest(summary),
        ),
    ]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Cycles, {html.escape(span)}</title><style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )


def _odd(summary: Summary) -> bool:
    return bool(summary.cut_lines or summary.bad_lines)


def _moment(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(t))


def _section(title: str, note: str, body: str) -> str:
    return f"<h2>{title}</h2><p class=note>{note}</p>{body}" if body else ""


def _cards(reports: Sequence[BatchReport]) -> str:
    """The headline: the batch size with most cycles, and what it comes to."""
    if not reports:
        return ""
    main = max(reports, key=lambda entry: entry.cycles)
    cards = [(f"accept length at batch size {main.bs}", _number(main.accept_length, 2), "")]
    if main.break_even is not None and main.gain is not None:
        kind = "good" if main.gain >= 0 else "bad"
        cards.append(("break-even accept length", _number(main.break_even, 2), ""))
        cards.append((f"gain over {main.baseline_tok_s:.0f} tok/s without a drafter", f"{main.gain:+.1%}", kind))
    if main.tok_s is not None:
        cards.append(("tokens per second of the batch", f"{main.tok_s:,.0f}", ""))
    if main.verify_share is not None:
        cards.append(("of the period is verify", f"{main.verify_share:.0%}", ""))
    body = "".join(f"<div class=card><b class={kind or 'plain'}>{value}</b>{text}</div>" for text, value, kind in cards)
    return f"<div class=cards>{body}</div>"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _table(reports: Sequence[BatchReport]) -> str:
    stages = ("period", "draft", "verify", "extend")
    heads = ["batch size", "cycles", "accept length", "break-even", "gain", "tok/s"]
    heads += [f"{stage} {percentile}" for stage in stages for percentile in ("p50", "p99")]
    rows = []
    for entry in reports:
        gain = ""
        if entry.gain is not None:
            gain = f"<span class={'good' if entry.gain >= 0 else 'bad'}>{entry.gain:+.1%}</span>"
        cells = [f"{entry.bs}{' plain' if entry.plain else ''}", f"{entry.cycles:,}"]
        cells += [_number(None if entry.plain else entry.accept_length, 2), _number(entry.break_even, 2)]
        cells += [gain, _number(entry.tok_s, 1)]
        for stage in stages:
            figures = entry.stages[f"{stage}_ms"] or {}
            cells += [_number(figures.get("p50"), 2), _number(figures.get("p99"), 2)]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{text}</th>" for text in heads)
    return f"<div class=wide><table><tr>{head}</tr>{''.join(rows)}</table></div>"


def _slowest(summary: Summary) -> str:
    rows = "".join(
        f"<tr><td>{_moment(t)}</td><td>{ms:.2f}</td><td>{bs}</td><td>{rank}</td><td>{forward}</td></tr>"
        for ms, t, rank, forward, bs in sorted(summary.slowest, reverse=True)
    )
    heads = "<tr><th>start</th><th>ms</th><th>batch size</th><th>rank</th><th>forward pass</th></tr>"
    return f"<div class=wide><table>{heads}{rows}</table></div>"
