"""``guarded-serve profile show``: the effective settings, each with its origin, and the server's command."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from typing import Any

from guarded_serve.commands.profile._output import add_output, write
from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile.deployment import Deployment
from guarded_serve.profile.model import sections
from guarded_serve.profile.resolve import Resolution, resolve_options
from guarded_serve.profile.wording import finding_text
from guarded_serve.supervisor.redact import Redactor

SUMMARY = "show every setting in effect, where it comes from, and the server's command"

DEFAULT = "default"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How to print it."""
    parser.add_argument("--format", choices=("text", "json"), default="text", help="output format (default: text)")
    parser.add_argument("--all", action="store_true", help="with SGLang's defaults as well (json always has them)")
    add_output(parser)


def run(options: argparse.Namespace, sglang_flags: list[str]) -> int:
    """Print it, secrets masked as in every log. Errors are printed too, and end it with their code."""
    resolution = resolve_options(options, sglang_flags)
    for finding in resolution.findings:
        print(finding_text(finding), file=sys.stderr)
    code = resolution.exit_code(strict=bool(options.guard_strict))
    text = as_json(resolution) if options.format == "json" else as_text(resolution.deployment, everything=options.all)
    return most(code, write(options, Redactor.of(resolution.deployment).text(text)))


def most(first: ExitCode, second: ExitCode) -> ExitCode:
    """The one that failed, the first if both did."""
    return first if first is not ExitCode.OK else second


def settings(deployment: Deployment, *, everything: bool) -> Iterator[tuple[str, Any, str]]:
    """Every effective setting: its dotted name, its value, where it comes from."""
    for name, setting in deployment.server.items():
        yield f"server.{name}", setting.value, setting.origin
    if everything:
        for name, value in deployment.defaults.items():
            if name not in deployment.server:
                yield f"server.{name}", value, f"{DEFAULT} of SGLang"
    for name, setting in deployment.environment.items():
        yield f"env.{name}", setting.value, setting.origin
    for section, model in sections().items():
        for key in model.model_fields:
            name = f"{section}.{key}"
            value = getattr(getattr(deployment.profile, section), key)
            yield name, value, deployment.origins.get(name, DEFAULT)


def as_text(deployment: Deployment, *, everything: bool) -> str:
    """A table, then what the guard set itself and the command."""
    rows = [(name, _plain(value), origin) for name, value, origin in settings(deployment, everything=everything)]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{name:<{widths[0]}}  {value:<{min(widths[1], 60)}}  {origin}" for name, value, origin in rows]
    sglang = deployment.sglang_version or "not installed here"
    lines += ["", f"SGLang: {sglang}", f"command: python -m sglang.launch_server {shlex.join(deployment.arguments)}"]
    lines += [f"note: {note}" for note in deployment.notes]
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> str:
    return "-" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def as_json(resolution: Resolution) -> str:
    """The same as one JSON object."""
    deployment = resolution.deployment
    data = {
        "sglang": deployment.sglang_version,
        "settings": {
            name: {"value": value, "origin": origin} for name, value, origin in settings(deployment, everything=True)
        },
        "arguments": deployment.arguments,
        "environment": {name: setting.value for name, setting in deployment.environment.items()},
        "notes": deployment.notes,
        "errors": len([finding for finding in resolution.findings if finding.severity.value == "error"]),
    }
    return json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n"
