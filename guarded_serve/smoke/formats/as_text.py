"""For a terminal, with rich: the table, then each contestant's verdict with its reasons."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from guarded_serve.smoke.formats.table import HEADINGS, baseline_table, cells, mark, reasons, rows
from guarded_serve.smoke.run import Result

_STYLES = {"pass": "green", "fail": "red", "inconclusive": "yellow"}
_MARKS = {"error": "red", "unclear": "yellow", "cause": "magenta", "warning": "yellow", "ok": "green"}
NARROWEST = 100


def render(result: Result, console: Console) -> None:
    """Print it."""
    table = Table(title=f"smoke test of {result.name}", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for row in rows(result):
        table.add_row(*map(escape, cells(row)))
    console.print(table)
    for one in result.judged:
        word = one.verdict.word
        title = f"[bold]{escape(one.contestant.label)}[/]: [{_STYLES[word]}]{word}[/] (exit {int(one.verdict.code)})"
        console.print(title)
        for found in reasons(one):
            name = mark(found)
            console.print(f"  [{_MARKS[name]}]{name}[/] {escape(found.check)}: {escape(found.message)}")
            if name != "ok":
                for label in ("expected", "found", "where", "remedy"):
                    text = getattr(found, label)
                    if text:
                        console.print(f"      {label}: {escape(text)}")
    if result.recommended is not None:
        console.print(f"recommended: steps/topk/draft tokens {escape(result.recommended.contestant.label)}")
    table_text = baseline_table(result)
    if table_text:
        console.print(f"for the profile's \\[break_even]: {table_text}")
    console.print(f"verdict: [{_STYLES[result.word]}]{result.word}[/], {result.seconds:.0f} s")
