"""One HTML file that needs nothing else: the table, the reasons, and pictures where matplotlib is installed."""

from __future__ import annotations

from html import escape

from guarded_serve.smoke.formats import pictures
from guarded_serve.smoke.formats.table import HEADINGS, baseline_table, cells, mark, reasons, rows
from guarded_serve.smoke.run import Result
from guarded_serve.smoke.stats import CONFIDENCE

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { border-bottom: 1px solid #ddd; padding: .3rem .7rem; text-align: left }
.pass { color: #1a7f37 } .fail, .error { color: #cf222e } .inconclusive, .unclear, .warning { color: #9a6700 }
.cause { color: #8250df } .ok { color: #1a7f37 }
svg { max-width: 100%; height: auto }
small { color: #666 }
"""


def render(result: Result) -> str:
    """A whole page."""
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(result.name)}: {result.word}</title>",
        f"<style>{_STYLE}</style>",
        f"<h1>Smoke test of {escape(result.name)}: <span class={result.word}>{result.word}</span></h1>",
        "<table><tr>" + "".join(f"<th>{escape(heading)}" for heading in HEADINGS),
    ]
    parts += ["<tr>" + "".join(f"<td>{escape(text)}" for text in cells(row)) for row in rows(result)]
    parts.append(
        f"</table><p><small>{len(result.plan.prompts)} prompts, {result.plan.new_tokens} new tokens each. "
        f"Limits hold with {CONFIDENCE:.0%} probability, paired by prompt.</small>"
    )
    for one in result.judged:
        word = one.verdict.word
        parts.append(f"<h2>{escape(one.contestant.label)}: <span class={word}>{word}</span></h2><ul>")
        for found in reasons(one):
            name = mark(found)
            more = [
                f"{label}: {escape(text)}"
                for label in ("expected", "found", "where", "remedy")
                if name != "ok" and (text := getattr(found, label))
            ]
            parts.append(
                f"<li><b class={name}>{name}</b> <code>{escape(found.check)}</code> {escape(found.message)}"
                + "".join(f"<br><small>{text}</small>" for text in more)
            )
        parts.append("</ul>")
    if result.recommended is not None:
        parts.append(f"<p>Recommended steps/topk/draft tokens: <b>{escape(result.recommended.contestant.label)}</b>")
    if baseline_table(result):
        parts.append(f"<h2>For the profile</h2><pre>[break_even]\n{escape(baseline_table(result))}</pre>")
    if pictures.available():
        parts += [f"<h2>{escape(title)}</h2>{svg}" for title, svg in pictures.draw(result).items()]
    else:
        parts.append("<p><small>No pictures: matplotlib (the <code>report</code> extra) is not installed.</small>")
    return "\n".join(parts) + "\n"
