"""The page: one file, nothing fetched, every part there, and no fault where there is little to draw."""

from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from guarded_serve.timing.html import to_html
from guarded_serve.timing.pictures import NoMatplotlib
from guarded_serve.timing.record import Cycle
from guarded_serve.timing.report import report
from guarded_serve.timing.summary import Summary

pytest.importorskip("matplotlib")
CYCLE = Cycle(1.76e9, 0, 1, 1, 3, 4, 2.0, 20.0, 2.0, 25.0, 30.0, [2], "cuda-event")


def _page(cycles: list[Cycle], baselines: dict[int, float]) -> str:
    import json  # noqa: PLC0415

    summary = Summary()
    for cycle in cycles:
        summary.add(json.loads(cycle.to_line()))
    return to_html(summary, report(summary, baselines), ["cycles-0-000001.jsonl"])


def _day() -> list[Cycle]:
    return [
        CYCLE._replace(t=1.76e9 + i * 30, forward=i, bs=1 + i % 2, accept=[1 + i % 4] * (1 + i % 2)) for i in range(400)
    ]


def test_every_part_is_there_and_nothing_is_fetched() -> None:
    page = _page(_day(), {1: 82.0, 2: 150.0})
    for title in (
        *("Stages and break-even", "Where a cycle", "Stage times over time", "Accept length over time"),
        *("Acceptance by position", "Gain by batch size", "Slowest cycles"),
    ):
        assert title in page
    assert page.count("<svg") == 5
    assert "break-even accept length" in page
    assert not re.findall(r"""(?:src|href)=["']?https?:|@import|url\((?!#)""", page.replace("xmlns:xlink", ""))


def test_the_pictures_are_well_formed_and_their_marks_do_not_clash() -> None:
    page = _page(_day(), {1: 82.0})
    identifiers: list[str] = []
    for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        tree = ElementTree.fromstring(picture)
        identifiers += [node.attrib["id"] for node in tree.iter() if "id" in node.attrib]
    assert len(identifiers) == len(set(identifiers))


def test_a_loss_is_shown_as_one() -> None:
    assert "<b class=bad>-18.7%" in _page([CYCLE] * 3, {1: 82.0})
    assert "<b class=good>+33.3%" in _page([CYCLE] * 3, {1: 50.0})


def test_one_cycle_without_period_or_baseline() -> None:
    page = _page([CYCLE._replace(period_ms=None, draft_ms=None)], {})
    assert "Gain by batch size" not in page
    assert "Where a cycle" not in page
    assert "Slowest cycles" in page


def test_only_plain_steps() -> None:
    assert "1 plain" in _page([CYCLE._replace(plain=True, accept=[1])], {})


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    really = builtins.__import__

    def no_matplotlib(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return really(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(NoMatplotlib, match="pip install matplotlib"):
        _page([CYCLE], {})


def test_the_command_writes_it(tmp_path: Path) -> None:
    import argparse  # noqa: PLC0415

    from guarded_serve.commands import report as command  # noqa: PLC0415

    log, page = tmp_path / "cycles-0-000001.jsonl", tmp_path / "page.html"
    log.write_text(CYCLE.to_line())
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args([str(log), "--html", str(page)]), []) == 0
    assert page.read_text().startswith("<!doctype html>")
    assert command.run(parser.parse_args([str(log), "--html", str(tmp_path / "no" / "page.html")]), []) == 77
