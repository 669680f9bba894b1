"""Reports: the same verdict in every form, readable by the programs that they are for, whatever is in a name."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser
from xml.etree import ElementTree as Xml

import pytest
from rich.console import Console

from guarded_serve.smoke.formats import as_html, as_json, as_junit, as_markdown, pictures
from guarded_serve.smoke.formats.as_text import render as render_text
from guarded_serve.smoke.measure import Plan
from guarded_serve.smoke.prompts import Prompt
from guarded_serve.smoke.record import baseline_tok_s
from guarded_serve.smoke.run import Contestant, Judged, Result, recommend, sweep_settings
from guarded_serve.smoke.verdict import Case, judge
from tests.support.smoke_facts import FLOORS, run

HOSTILE = "_a$\\frac|b<script>alert(1)</script>[red]*x*`\x1b[31m"
BASELINE = run("baseline", first=None, ms=8.0)
PLAN = Plan((Prompt("a", "code", text="x"),), (1, 4), 3, 64)


def judged(label: str, settings: dict[str, int] | None = None, **wishes: float) -> Judged:
    measured = run(label, **wishes)  # type: ignore[arg-type]
    return Judged(Contestant(label, f"/d/{label}", settings or {}), judge(Case(measured, FLOORS, BASELINE)), measured)


def result(*contestants: Judged) -> Result:
    return Result("demo", contestants, BASELINE, FLOORS, PLAN, baseline_tok_s(BASELINE))


class Counter(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}

    def handle_starttag(self, tag: str, _: object) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1


def test_every_form_says_the_same() -> None:
    made = result(judged("good"), judged("bad", first=0.1))
    value = json.loads(as_json.render(made))
    assert (value["verdict"], [one["verdict"] for one in value["drafters"]]) == ("pass", ["pass", "fail"])
    suites = {suite.get("name"): suite for suite in Xml.fromstring(as_junit.render(made))}
    assert int(suites["good.smoke"].get("failures", 0)) == 0
    assert int(suites["bad.smoke"].get("failures", 0)) == 2
    assert "### bad: fail" in as_markdown.render(made)
    assert "broken pairing" in as_markdown.render(made)
    page = as_html.render(made)
    assert "Smoke test of demo: <span class=pass>pass</span>" in page
    text = io.StringIO()
    render_text(made, Console(file=text, width=200, highlight=False))
    assert "good: pass (exit 0)" in text.getvalue()
    assert "bad: fail (exit 65)" in text.getvalue()
    assert "baseline_tok_s = { 1 = 125" in text.getvalue()


def test_a_drafter_that_never_ran() -> None:
    """Refused by gate 1: a row of dashes, no picture, valid everywhere."""
    one = judged("gone")
    made = result(Judged(one.contestant, one.verdict, None))
    assert json.loads(as_json.render(made))["drafters"][0]["run"] is None
    assert "<svg" not in as_html.render(made)
    assert "| gone | pass | - |" in as_markdown.render(made)


def test_names_are_text_and_nothing_else() -> None:
    made = result(judged(HOSTILE))
    page = as_html.render(made)
    counter = Counter()
    counter.feed(page)
    assert "script" not in counter.tags
    assert "<script" not in as_markdown.render(made)
    table = [line for line in as_markdown.render(made).splitlines() if "frac" in line and line.startswith("|")]
    assert table
    assert all(line.replace("\\|", "").count("|") == 11 for line in table)
    Xml.fromstring(as_junit.render(made))
    assert json.loads(as_json.render(made))["drafters"][0]["label"] == HOSTILE
    text = io.StringIO()
    render_text(made, Console(file=text, width=300, highlight=False))
    assert "<script>alert(1)</script>[red]" in text.getvalue()


def test_html_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_html.render(result(judged("good"))).count("<svg") == 3
    monkeypatch.setattr(pictures, "available", lambda: False)
    page = as_html.render(result(judged("good")))
    assert "<svg" not in page
    assert "matplotlib" in page


def test_the_recommended_setting_is_the_fastest_that_gains() -> None:
    settings = {text: sweep_settings(text) for text in ("1/1/2", "3/1/4", "6/1/7")}
    slow, fast, slower = (
        judged(text, settings[text], ms=ms) for text, ms in zip(settings, (7.0, 5.0, 6.0), strict=True)
    )
    assert recommend([slow, fast, slower]) is fast
    assert recommend([judged("1/1/2", settings["1/1/2"], ms=9.0)]) is None
    assert settings["3/1/4"] == {
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    }
