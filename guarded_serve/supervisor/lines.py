"""The launcher's own log lines, and the server's lines beside them: for a person, for a log collector, as JSON.

One stream in one order. The server's lines keep their text; as JSON they are wrapped.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Any

from guarded_serve.findings import Finding, Report, Status
from guarded_serve.supervisor.output import Output
from guarded_serve.supervisor.redact import Redactor

_JOURNAL_LEVELS = {"info": b"<6>", "warning": b"<4>", "error": b"<3>"}
_ERROR = re.compile(rb"\b(ERROR|CRITICAL|FATAL)\b|^Traceback \(most recent call last\)|^\w+(\.\w+)*(Error|Exception): ")
_COLOURS = {"info": "36", "warning": "33", "error": "31"}


class Format(str, Enum):
    """How lines are written."""

    HUMAN = "human"
    PLAIN = "plain"
    JOURNAL = "journal"  # plain, with sd-daemon(3)'s level before each line and no time: the journal has its own
    JSON = "json"

    @classmethod
    def suited_to(cls, descriptor: int) -> Format:
        """For a person on a terminal, the journal where systemd reads us, plain otherwise."""
        if os.isatty(descriptor):
            return cls.HUMAN
        status = os.fstat(descriptor)
        journal = os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
        return cls.JOURNAL if journal else cls.PLAIN


class Lines:
    """Writes lines to an `Output`."""

    def __init__(self, output: Output, style: Format, redactor: Redactor) -> None:
        self._output = output
        self._style = style
        self._redactor = redactor
        self._colour = style is Format.HUMAN and "NO_COLOR" not in os.environ

    @property
    def style(self) -> Format:
        """The format in use."""
        return self._style

    def info(self, message: str = "", **fields: Any) -> None:
        """One line; ``fields`` come first, as key=value."""
        self._own("info", message, fields)

    def warning(self, message: str = "", **fields: Any) -> None:
        """As `info`, of level warning."""
        self._own("warning", message, fields)

    def error(self, message: str = "", **fields: Any) -> None:
        """As `info`, of level error."""
        self._own("error", message, fields)

    def finding(self, finding: Finding) -> None:
        """One finding of a check, or a refusal of the engine."""
        level = finding.severity.value
        evidence = {name: getattr(finding, name) for name in ("where", "expected", "found", "remedy")}
        if finding.ignored:
            evidence["ignored"] = "by preflight.ignore"
        if self._style is not Format.HUMAN:
            self._own(level, finding.message, {"check": finding.check, **evidence})
            return
        self._own(level, f"{finding.check}: {finding.message}", {})
        for name, text in evidence.items():
            if text:
                self._own("info", f"    {name}: {text}", {})

    def report(self, report: Report) -> None:
        """What a run of the checks found: every finding, then the count."""
        for finding in report.findings:
            self.finding(finding)
        counts = Counter(outcome.status for outcome in report.outcomes)
        said = ", ".join(f"{counts[status]} {status.value}" for status in Status if counts[status])
        self.info(f"{len(report.outcomes)} checks: {said or 'none'}")

    def server(self, lines: Iterable[bytes]) -> None:
        """Lines of the server, without their ends, already free of secrets."""
        if self._style is Format.JSON:
            now = _now()
            wrapped = (
                json.dumps({"ts": now, "from": "server", "text": line.decode(errors="replace")}, ensure_ascii=False)
                for line in lines
            )
            self._output.write("".join(f"{line}\n" for line in wrapped).encode())
        elif self._style is Format.JOURNAL:
            self._output.write(b"".join(_journal_level(line) + line + b"\n" for line in lines))
        else:
            self._output.write(b"".join(line + b"\n" for line in lines))

    def _own(self, level: str, message: str, fields: dict[str, Any]) -> None:
        message = self._redactor.text(message)
        fields = {
            name: self._redactor.text(value) if isinstance(value, str) else value
            for name, value in fields.items()
            if value is not None
        }
        if self._style is Format.JSON:
            line = json.dumps(
                {"ts": _now(), "level": level, "from": "guard", **fields, **({"msg": message} if message else {})},
                ensure_ascii=False,
                default=str,
            )
        elif self._style is Format.HUMAN:
            pairs = " ".join(f"{name}={_value(value)}" for name, value in fields.items())
            tag = f"\033[{_COLOURS[level]}mguard\033[0m" if self._colour else "guard"
            mark = "" if level == "info" else f"{level}: "
            line = f"{tag} {mark}{pairs}{'  ' if pairs and message else ''}{message}"
        else:
            first: dict[str, Any] = {name: fields[name] for name in ("state", "check", "progress") if name in fields}
            said = {"msg": message} if message else {}
            named: dict[str, Any] = {"ts": _now(), "level": level, "from": "guard", **first, **said, **fields}
            line = " ".join(f"{name}={_value(value)}" for name, value in named.items())
        data = line.encode(errors="replace")
        if self._style is Format.JOURNAL:
            data = _JOURNAL_LEVELS[level] + data.partition(b" ")[2]  # without the time
        self._output.write(data + b"\n")


def _journal_level(line: bytes) -> bytes:
    """The level of a line of the server, from its words."""
    if _ERROR.search(line):
        return b"<3>"
    return b"<4>" if b"WARNING" in line or b"Warning:" in line else b"<6>"


def _value(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    bare = text and text.isprintable() and " " not in text and '"' not in text
    return text if bare else json.dumps(text, ensure_ascii=False)


def _now() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
