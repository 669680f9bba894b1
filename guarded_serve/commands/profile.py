"""``guarded-serve profile``: write one from flags, show the effective settings with their origins, a JSON Schema."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile.deployment import Deployment
from guarded_serve.profile.model import sections
from guarded_serve.profile.resolve import Resolution, resolve_options
from guarded_serve.profile.schema import profile_schema
from guarded_serve.profile.sglang_parser import ParserUnavailable, sglang_parser
from guarded_serve.profile.wording import finding_text
from guarded_serve.profile.write import profile_text
from guarded_serve.supervisor.redact import Redactor

SUMMARY = "A profile from flags (new), the effective settings and their origins (show), a JSON Schema (schema)."

DEFAULT = "default"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to do, and how to print it."""
    parser.add_argument("action", choices=("new", "show", "schema"), help="what to print")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of `show`")
    parser.add_argument("--all", action="store_true", help="`show` SGLang's defaults as well")
    parser.add_argument("--name", help="the new profile's name")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there instead of to standard output")


def run(options: argparse.Namespace, sglang_flags: list[str]) -> int:
    """Print what was asked for. Errors of a profile or of flags are printed and end it with their code.

    `show` masks secrets, as every log does; `new` writes them, for a profile has to launch.
    """
    if options.action == "schema":
        return _schema(options)
    resolution = resolve_options(options, sglang_flags)
    for finding in resolution.findings:
        print(finding_text(finding), file=sys.stderr)
    code = resolution.exit_code(strict=bool(options.guard_strict))
    if options.action == "new":
        if code is ExitCode.OK:
            return _write(options, profile_text(resolution.deployment, sglang_parser(), name=options.name), fresh=True)
        return code
    text = as_json(resolution) if options.format == "json" else as_text(resolution.deployment, everything=options.all)
    return most(code, _write(options, Redactor.of(resolution.deployment).text(text)))


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


def _schema(options: argparse.Namespace) -> ExitCode:
    try:
        dump = sglang_parser()
    except ParserUnavailable as error:
        print(finding_text(error.finding), file=sys.stderr)
        return error.finding.exit_code
    return _write(options, json.dumps(profile_schema(dump), indent=2, ensure_ascii=False) + "\n")


def _write(options: argparse.Namespace, text: str, *, fresh: bool = False) -> ExitCode:
    """``fresh``: not over a file that is there, as a profile may have its owner's comments in it."""
    if options.output is None:
        sys.stdout.write(text)
        return ExitCode.OK
    try:
        with options.output.open("x" if fresh else "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        print(f"{options.output}: exists and is not written over; name another file or remove it", file=sys.stderr)
        return ExitCode.USAGE
    except (IsADirectoryError, NotADirectoryError) as error:
        print(f"{options.output}: {error.strerror}; name a file", file=sys.stderr)
        return ExitCode.USAGE
    except FileNotFoundError:
        print(f"{options.output.parent}: there is no such folder", file=sys.stderr)
        return ExitCode.MISSING
    except PermissionError:
        print(f"{options.output}: may not be written", file=sys.stderr)
        return ExitCode.PERMISSION
    return ExitCode.OK
