"""For a merge request."""

from __future__ import annotations

from guarded_serve.smoke.formats.table import HEADINGS, baseline_table, cells, mark, reasons, rows
from guarded_serve.smoke.run import Result
from guarded_serve.smoke.stats import CONFIDENCE


def render(result: Result) -> str:
    """Headings, one table, reasons as lists."""
    lines = [f"## Smoke test of {_plain(result.name)}: {result.word}", ""]
    lines += [_line(HEADINGS), _line(["---"] * len(HEADINGS))]
    lines += [_line(map(_plain, cells(row))) for row in rows(result)]
    lines += ["", f"Gains with the limits between which they lie with {CONFIDENCE:.0%} probability, paired by prompt."]
    lines += [f"{len(result.plan.prompts)} prompts, {result.plan.new_tokens} new tokens each, temperature 0."]
    for one in result.judged:
        lines += ["", f"### {_plain(one.contestant.label)}: {one.verdict.word}", ""]
        for found in reasons(one):
            remedy = f" *{_plain(found.remedy)}*" if found.remedy and mark(found) != "ok" else ""
            lines.append(f"- **{mark(found)}** `{found.check}` {_plain(found.message)}{remedy}")
    if result.recommended is not None:
        lines += ["", f"Recommended steps/topk/draft tokens: {result.recommended.contestant.label}"]
    if baseline_table(result):
        lines += ["", "For the profile:", "", "```toml", "[break_even]", baseline_table(result), "```"]
    return "\n".join(lines) + "\n"


def _line(texts: object) -> str:
    return "| " + " | ".join(texts) + " |"  # type: ignore[arg-type]


def _plain(text: str) -> str:
    """Nothing in it is Markdown or HTML."""
    for letter in "\\`*_[]<>|":
        text = text.replace(letter, f"\\{letter}" if letter not in "<>" else {"<": "&lt;", ">": "&gt;"}[letter])
    return text.replace("\n", " ")
