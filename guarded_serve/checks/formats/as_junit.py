"""JUnit XML: a suite a family, a case a check, a failure where it failed; warnings stand in system-out."""

from __future__ import annotations

import re
from itertools import groupby
from xml.etree import ElementTree as Xml

from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding, Outcome, Report, Severity, Status

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report, code: ExitCode) -> str:
    """One `<testsuites>` document. ``code`` is not part of the format."""
    root = Xml.Element("testsuites", name="guarded-serve check")
    add_suites(root, report)
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def add_suites(root: Xml.Element, report: Report, prefix: str = "") -> None:
    """A suite a family; ``prefix`` comes before the names of suites and classes."""
    for family, group in groupby(report.outcomes, key=lambda outcome: outcome.check.partition(".")[0]):
        outcomes = list(group)
        suite = Xml.SubElement(
            root,
            "testsuite",
            name=_clean(prefix + family),
            tests=str(len(outcomes)),
            failures=str(sum(outcome.status is Status.FAIL for outcome in outcomes)),
            errors=str(sum(outcome.status is Status.CRASHED for outcome in outcomes)),
            skipped=str(sum(outcome.status is Status.SKIPPED for outcome in outcomes)),
            time=f"{sum(outcome.seconds for outcome in outcomes):.6f}",
        )
        for outcome in outcomes:
            _case(suite, outcome, prefix)


def _case(suite: Xml.Element, outcome: Outcome, prefix: str) -> None:
    family, _, name = outcome.check.partition(".")
    case = Xml.SubElement(
        suite, "testcase", classname=_clean(prefix + family), name=name, time=f"{outcome.seconds:.6f}"
    )
    if outcome.status is Status.SKIPPED:
        Xml.SubElement(case, "skipped", message=_clean(outcome.reason or ""))
    errors = [finding for finding in outcome.findings if finding.severity is Severity.ERROR]
    if errors:
        tag = "error" if outcome.status is Status.CRASHED else "failure"
        failure = Xml.SubElement(case, tag, type=outcome.check, message=_clean(errors[0].message))
        failure.text = _clean("\n\n".join(map(_text, errors)))
    rest = [finding for finding in outcome.findings if finding.severity is not Severity.ERROR]
    if rest:
        Xml.SubElement(case, "system-out").text = _clean("\n\n".join(map(_text, rest)))


def _text(finding: Finding) -> str:
    lines = [f"{finding.severity.value}: {finding.message}"]
    for label in ("expected", "found", "where", "remedy"):
        value = getattr(finding, label)
        if value is not None:
            lines.append(f"{label}: {value}")
    return "\n".join(lines)


def _clean(text: str) -> str:
    """XML 1.0 has no control characters."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
