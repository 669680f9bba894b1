"""Output formats: nothing is cut off, and what files call their tensors never reaches the terminal raw."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from guarded_serve.checks.formats import FORMATS, as_github, as_json, as_junit, as_text
from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding, Outcome, Report, Severity, Status

LONG = "word " * 200 + "end"
NASTY = "fc\x1b[31m\x07\nname%0A::error::"


@pytest.fixture
def report() -> Report:
    error = Finding(
        "drafter.shapes", Severity.ERROR, NASTY, expected=LONG, found="[3]", where="/x: y", remedy="mend it"
    )
    warning = Finding("drafter.rope", Severity.WARNING, "a warning", ignored=True)
    return Report(
        (
            Outcome("drafter.shapes", Status.FAIL, (error,), seconds=0.1),
            Outcome("drafter.rope", Status.WARN, (warning,)),
            Outcome("gpu.ecc", Status.SKIPPED, reason="no GPU"),
            Outcome("host.port", Status.PASS),
        )
    )


@pytest.mark.parametrize("terminal", [False, True])
def test_text(report: Report, terminal: bool) -> None:
    text = as_text.render(report, ExitCode.REFUSED, terminal=terminal, width=60)
    assert "fc\\x1b[31m\\x07\\nname" in text.replace("\n", "")
    assert text.replace("\n", " ").count("word") == 200
    assert "\x07" not in text
    assert ("\x1b" in text) is terminal
    assert "\x1b[31m\x07" not in text
    assert "ignored" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "4 checks: 1 passed, 1 with warnings, 1 failed, 1 skipped; exit code 65" in " ".join(plain.split())


def test_github_keeps_one_annotation_a_finding(report: Report) -> None:
    lines = as_github.render(report, ExitCode.REFUSED).splitlines()
    assert [line.split("::")[1].split()[0] for line in lines[:-1]] == ["error", "warning"]
    assert "%0Aname%250A::error::" in lines[0]


def test_junit_is_xml_whatever_the_names(report: Report) -> None:
    root = ElementTree.fromstring(as_junit.render(report, ExitCode.REFUSED))
    counts = {suite.get("name"): (suite.get("tests"), suite.get("failures"), suite.get("skipped")) for suite in root}
    assert counts == {"drafter": ("2", "1", "0"), "gpu": ("1", "0", "1"), "host": ("1", "0", "0")}


def test_every_format_is_there() -> None:
    assert set(FORMATS) == {"text", "json", "junit", "github"}
    assert as_json.SCHEMA["additionalProperties"] is False
