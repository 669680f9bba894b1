"""The pictures of a report's page, as SVG text that takes its ink from the page. Needs matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from guarded_serve.timing.report import BatchReport
from guarded_serve.timing.summary import BatchSummary, Summary, TimeBin

COLOURS = {"draft": "#0b7285", "verify": "#e8590c", "extend": "#5f3dc4", "other": "#adb5bd"}
MOST_POINTS = 600  # of a line over time; more are averaged together
MOST_BATCH_SIZES = 6  # drawn over time, those with most cycles


class NoMatplotlib(Exception):
    """matplotlib is not installed; the text says what installs it."""


def _figure(columns: int = 1, height: float = 3.0) -> tuple[Any, Any]:
    try:
        from matplotlib import rc_context  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise NoMatplotlib("pictures need matplotlib: pip install matplotlib") from None
    with rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, height), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.grid(axis="y", alpha=0.3)
        axis.set_axisbelow(True)
    return figure, axes


def _svg(figure: Any, name: str) -> str:
    """The drawing in the page's own ink, so that it reads on dark paper too."""
    from matplotlib import rc_context  # noqa: PLC0415

    stream = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :].replace("#000000", "currentColor")
    text = re.sub(r"<text style=\"", '<text style="fill: currentColor; ', text)
    text = re.sub(r'\b(id="|url\(#|xlink:href="#)', rf"\g<1>{name}-", text)
    return f"<figure role=img aria-label='{name}'>{text}</figure>"


def split(reports: Sequence[BatchReport]) -> str:
    known = [entry for entry in reports if entry.verify_share is not None]
    if not known:
        return ""
    figure, (axis,) = _figure(height=0.9 + 0.38 * len(known))
    places = range(len(known))
    left = [0.0] * len(known)
    for stage, colour in COLOURS.items():
        values = [100 * (getattr(entry, f"{stage}_share") or 0.0) for entry in known]
        axis.barh(places, values, left=left, color=colour, label=stage, height=0.7)
        for place, start, value in zip(places, left, values, strict=True):
            if value > 4:
                axis.text(start + value / 2, place, f"{value:.0f}", ha="center", va="center", color="white")
        left = [start + value for start, value in zip(left, values, strict=True)]
    axis.set_yticks(places, [f"batch size {entry.bs}" for entry in known])
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("% of the period")
    axis.grid(visible=False)
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False)
    return _svg(figure, "split")


def _busiest(summary: Summary) -> list[tuple[int, BatchSummary]]:
    speculative = [(bs, batch) for (bs, plain), batch in summary.batches.items() if not plain]
    chosen = sorted(speculative, key=lambda item: -item[1].totals.cycles)[:MOST_BATCH_SIZES]
    return sorted(chosen, key=lambda item: item[0])


def _points(batch: BatchSummary, first_t: float, last_t: float) -> list[tuple[float, TimeBin]]:
    """Time bins merged to at most `MOST_POINTS` over the whole span; the time is minutes since the start."""
    span = max(last_t - first_t, 1.0)
    width = max(span / MOST_POINTS, 10.0)
    merged: dict[int, TimeBin] = {}
    for moment, entry in batch.bins.items():
        place = int(max(moment * 10.0 - first_t, 0.0) // width)
        merged.setdefault(place, TimeBin()).merge(entry)
    return [(place * width / 60, merged[place]) for place in sorted(merged)]


def over_time(summary: Summary) -> str:
    chosen = _busiest(summary)
    if not chosen:
        return ""
    figure, axes = _figure(columns=3, height=3.0)
    for axis, stage in zip(axes, ("draft", "verify", "extend"), strict=True):
        for place, (bs, batch) in enumerate(chosen):
            points = _points(batch, summary.first_t, summary.last_t)
            values = [getattr(entry, f"{stage}_ms") / entry.cycles for _, entry in points]
            _line(axis, [t for t, _ in points], values, bs, place)
        axis.set_title(stage)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("minutes")
    axes[0].set_ylabel("ms")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=MOST_BATCH_SIZES, frameon=False
    )
    return _svg(figure, "stages")


def _line(axis: Any, minutes: list[float], values: list[float], bs: int, place: int) -> None:
    """One batch size over time; with marks where there are too few points to see a line."""
    mark = "o" if len(minutes) < 3 else None
    axis.plot(minutes, values, label=f"bs {bs}", color=f"C{place}", linewidth=1, marker=mark, markersize=4)


def accept_over_time(summary: Summary, reports: Sequence[BatchReport]) -> str:
    chosen = _busiest(summary)
    if not chosen:
        return ""
    evens = {entry.bs: entry.break_even for entry in reports}
    figure, (axis,) = _figure()
    for place, (bs, batch) in enumerate(chosen):
        points = [(t, entry) for t, entry in _points(batch, summary.first_t, summary.last_t) if entry.rows]
        values = [entry.accepted / entry.rows for _, entry in points]
        _line(axis, [t for t, _ in points], values, bs, place)
        even = evens.get(bs)
        if even is not None:
            axis.axhline(even, color=f"C{place}", linestyle="--", linewidth=1)
    axis.set_ylim(bottom=0.9)
    axis.set_xlabel("minutes")
    axis.set_ylabel("tokens")
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=MOST_BATCH_SIZES, frameon=False)
    return _svg(figure, "accept")


def positions(reports: Sequence[BatchReport]) -> str:
    known = [entry for entry in reports if entry.accept_by_position]
    if not known:
        return ""
    known = sorted(sorted(known, key=lambda entry: -entry.cycles)[:MOST_BATCH_SIZES], key=lambda entry: entry.bs)
    figure, (axis,) = _figure()
    width = 0.8 / len(known)
    for place, entry in enumerate(known):
        where = [n + (place - (len(known) - 1) / 2) * width for n in range(1, len(entry.accept_by_position) + 1)]
        heights = [100 * share for share in entry.accept_by_position]
        axis.bar(where, heights, width=width * 0.9, color=f"C{place}", label=f"bs {entry.bs}")
    longest = max(len(entry.accept_by_position) for entry in known)
    axis.set_xticks(range(1, longest + 1))
    axis.set_xlabel("draft position")
    axis.set_ylabel("% accepted")
    axis.set_ylim(0, 100)
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=MOST_BATCH_SIZES, frameon=False)
    return _svg(figure, "positions")


def gains(reports: Sequence[BatchReport]) -> str:
    known = [entry for entry in reports if entry.gain is not None]
    if not known:
        return ""
    figure, (axis,) = _figure(height=2.6)
    values = [100 * (entry.gain or 0.0) for entry in known]
    bars = axis.bar(
        [str(entry.bs) for entry in known],
        values,
        color=["#2f9e44" if v >= 0 else "#e03131" for v in values],
        width=0.5,
    )
    axis.bar_label(bars, fmt="%+.1f %%", padding=2)
    axis.axhline(0, color="#868e96", linewidth=1)
    axis.margins(y=0.2)
    axis.set_xlabel("batch size")
    axis.set_ylabel("gain, %")
    axis.set_xlim(-0.75, max(len(known), 4) - 0.25)
    return _svg(figure, "gain")
