"""JUnit XML: a suite for each drafter and family of checks; an inconclusive rule is a failure too."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from guarded_serve.checks.formats.as_junit import add_suites
from guarded_serve.smoke.run import Result


def render(result: Result) -> str:
    """One `<testsuites>` document."""
    root = Xml.Element("testsuites", name="guarded-serve smoke")
    for one in result.judged:
        add_suites(root, one.verdict.report, prefix=f"{one.contestant.label}.")
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
