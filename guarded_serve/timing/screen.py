"""The live view of `top` as rich renderables: a table by batch size, and a line for what is known of the log."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from guarded_serve.timing.live import Lately

BAR = 24
COLOURS = {"draft": "cyan", "verify": "dark_orange", "extend": "medium_purple", "other": "grey50"}


def render(title: str, lately: Sequence[Lately], seconds: float) -> Group:
    """What happened in the last ``seconds``."""
    table = Table(expand=True, header_style="bold", box=None, padding=(0, 1))
    table.add_column("batch size")
    for name in ("cycles/s", "period", "draft", "verify", "extend"):
        table.add_column(name, justify="right")
    table.add_column("draft / verify / extend / other", min_width=BAR)
    for name in ("accept", "break-even", "gain", "tok/s"):
        table.add_column(name, justify="right")
    for entry in lately:
        totals = entry.totals
        table.add_row(
            f"{entry.bs}{' plain' if entry.plain else ''}",
            f"{totals.cycles / seconds:.1f}",
            _number(entry.period_ms, 2),
            *(
                _number(value / totals.cycles or None, 2)
                for value in (totals.draft_ms, totals.verify_ms, totals.extend_ms)
            ),
            _bar(entry),
            "" if entry.plain else _number(entry.accept_length, 2),
            _number(entry.break_even, 2),
            _gain(entry.gain),
            _number(entry.tok_s, 1),
        )
    nothing = Text("" if lately else f"no cycle in the last {seconds:.0f} s", style="dim")
    return Group(Text(title, style="bold"), table, nothing)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _gain(value: float | None) -> Text:
    if value is None:
        return Text("")
    return Text(f"{value:+.1%}", style="green" if value >= 0 else "bold red")


def _bar(entry: Lately) -> Text:
    """The period, split; empty where no cycle followed another."""
    bar = Text()
    filled = 0.0
    for stage, colour in COLOURS.items():
        share = entry.shares[f"{stage}_share"]
        if share is None:
            return bar
        start, filled = filled, filled + share
        bar.append("█" * (round(filled * BAR) - round(start * BAR)), style=colour)
    return bar
