"""The stable machine form; its JSON Schema is `SCHEMA`, and `version` rises when a key changes its meaning or goes."""

from __future__ import annotations

import json
from typing import Any

from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding, Report, Severity, Status

VERSION = 1

_TEXT: dict[str, Any] = {"type": ["string", "null"]}
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "guarded-serve check report",
    "type": "object",
    "additionalProperties": False,
    "required": ["version", "exit_code", "counts", "outcomes"],
    "properties": {
        "version": {"const": VERSION},
        "exit_code": {"enum": sorted(int(code) for code in ExitCode)},
        "counts": {
            "type": "object",
            "additionalProperties": False,
            "required": [status.value for status in Status],
            "properties": {status.value: {"type": "integer", "minimum": 0} for status in Status},
        },
        "outcomes": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["check", "status", "reason", "seconds", "findings"],
                "properties": {
                    "check": {"type": "string", "pattern": r"^[a-z]+\.[a-z0-9_]+$"},
                    "status": {"enum": [status.value for status in Status]},
                    "reason": _TEXT,
                    "seconds": {"type": "number", "minimum": 0},
                    "findings": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": [
                                "check", "severity", "message", "expected", "found", "where", "remedy", "exit_code",
                                "ignored",
                            ],
                            "properties": {
                                "check": {"type": "string"},
                                "severity": {"enum": [severity.value for severity in Severity]},
                                "message": {"type": "string"},
                                "expected": _TEXT,
                                "found": _TEXT,
                                "where": _TEXT,
                                "remedy": _TEXT,
                                "exit_code": {"enum": sorted(int(code) for code in ExitCode)},
                                "ignored": {"type": "boolean"},
                            },
                        },
                    },
                },
            },
        },
    },
}  # fmt: skip


def render(report: Report, code: ExitCode) -> str:
    """One JSON object."""
    counts = {status.value: 0 for status in Status}
    for outcome in report.outcomes:
        counts[outcome.status.value] += 1
    document = {
        "version": VERSION,
        "exit_code": int(code),
        "counts": counts,
        "outcomes": [
            {
                "check": outcome.check,
                "status": outcome.status.value,
                "reason": outcome.reason,
                "seconds": round(outcome.seconds, 6),
                "findings": [_finding(finding) for finding in outcome.findings],
            }
            for outcome in report.outcomes
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "severity": finding.severity.value,
        "message": finding.message,
        "expected": finding.expected,
        "found": finding.found,
        "where": finding.where,
        "remedy": finding.remedy,
        "exit_code": int(finding.exit_code),
        "ignored": finding.ignored,
    }
