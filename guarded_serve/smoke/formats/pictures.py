"""Pictures of a result as SVG text, with matplotlib (the ``report`` extra)."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from guarded_serve.smoke.facts import Acceptance
from guarded_serve.smoke.run import Judged, Result
from guarded_serve.smoke.verdict import by_prompt

_WIDTH = 9.0  # inches


def available() -> bool:
    """Whether matplotlib is there."""
    try:
        import matplotlib  # noqa: F401, PLC0415 - an extra
    except ImportError:
        return False
    return True


def draw(result: Result) -> dict[str, str]:
    """SVG by title; empty where nothing was measured."""
    measured = [one for one in result.judged if one.run is not None and one.run.cells]
    if not measured:
        return {}
    return {
        "Accepted drafts by position": _figure(lambda axes: _positions(axes, result, measured)),
        "Accept length by prompt": _figure(lambda axes: _lengths(axes, result, measured)),
        "Gain over no drafter": _figure(lambda axes: _gains(axes, result, measured)),
    }


def _figure(paint: Callable[[Any], None]) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(_WIDTH, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    paint(axes)
    axes.spines[["top", "right"]].set_visible(False)
    target = io.StringIO()
    figure.savefig(target, format="svg", metadata={"Date": None})
    text = target.getvalue()
    return text[text.index("<svg") :]


def _label(one: Judged) -> str:
    """A name for a legend, where a dollar sign begins a formula and a leading underscore hides the entry."""
    text = "".join(letter if letter.isprintable() else "?" for letter in one.contestant.label)
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _positions(axes: Any, result: Result, measured: list[Judged]) -> None:
    width = 0.8 / len(measured)
    most = 1
    for index, one in enumerate(measured):
        shares = one.verdict.figures.by_position
        most = max(most, len(shares))
        places = [position + (index - (len(measured) - 1) / 2) * width for position in range(1, len(shares) + 1)]
        axes.bar(places, shares, width, label=_label(one))
    axes.axhline(result.floors.first_position, linestyle="--", color="grey", linewidth=1)
    axes.text(most + 0.5, result.floors.first_position, " broken below", va="center", color="grey", fontsize=8)
    axes.set_xticks(range(1, most + 1))
    axes.set_xlabel("position of the drafted token")
    axes.set_ylabel("share accepted")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False)


def _lengths(axes: Any, result: Result, measured: list[Judged]) -> None:
    for one in measured:
        assert one.run is not None
        cell = one.run.smallest
        assert cell is not None
        lengths = sorted(tokens / tries for tokens, tries in by_prompt(cell.samples).values())
        mean = Acceptance.of(cell.samples).length
        label = f"{_label(one)} ({mean:.2f})" if mean else _label(one)
        axes.plot(range(1, len(lengths) + 1), lengths, marker="o", markersize=3, linewidth=1, label=label)
    axes.axhline(result.floors.accept_length, linestyle="--", color="grey", linewidth=1)
    axes.text(1, result.floors.accept_length, "floor", va="bottom", color="grey", fontsize=8)
    axes.set_xlabel("prompts, worst first")
    axes.set_ylabel("accept length, bonus included")
    axes.set_ylim(bottom=1)
    axes.legend(frameon=False)


def _gains(axes: Any, result: Result, measured: list[Judged]) -> None:
    sizes = sorted({size for one in measured for size in one.verdict.figures.gain})
    for index, one in enumerate(measured):
        gains = one.verdict.figures.gain
        if not gains:
            continue
        places = [sizes.index(size) + (index - (len(measured) - 1) / 2) * 0.1 for size in gains]
        values = [interval.estimate for interval in gains.values()]
        errors = [
            [interval.estimate - interval.low for interval in gains.values()],
            [min(interval.high - interval.estimate, 2 * interval.estimate) for interval in gains.values()],
        ]
        axes.errorbar(places, values, yerr=errors, fmt="o", capsize=4, label=_label(one))
    axes.axhline(1, color="black", linewidth=0.8)
    axes.axhline(result.floors.gain, linestyle="--", color="grey", linewidth=1)
    axes.set_xticks(range(len(sizes)), map(str, sizes))
    axes.set_xlabel("batch size")
    axes.set_ylabel("times as fast as without")
    if sizes:
        axes.legend(frameon=False)
