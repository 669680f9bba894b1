"""`guarded-serve launch`, also `python -m guarded_serve.launch_server`: SGLang under guard, flag for flag."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Iterable
from dataclasses import replace
from types import FrameType
from typing import NoReturn

from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding, Severity
from guarded_serve.profile.deployment import Deployment
from guarded_serve.profile.guard_options import GuardOptions
from guarded_serve.profile.resolve import resolve_options
from guarded_serve.profile.sglang_parser import CHILD_DEADLINE_S, installed_version
from guarded_serve.supervisor.lines import Format
from guarded_serve.supervisor.notify import Notify
from guarded_serve.supervisor.preflight import Gate, preflight
from guarded_serve.supervisor.redact import Redactor
from guarded_serve.supervisor.run import SERVER_COMMAND, Options, supervise
from guarded_serve.supervisor.secrets import exposed, hidden, with_api_key

SUMMARY = "check everything, start SGLang, and watch over it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None of its own: the guard's flags come with every command, all others are SGLang's."""


def _engine_missing() -> Finding | None:
    """`check` may run anywhere; a start needs SGLang for the Python that runs the launcher."""
    if installed_version() is not None:
        return None
    return Finding(
        "profile.engine",
        Severity.ERROR,
        "SGLang is not installed for the Python that would run the server",
        expected="the package sglang, 0.5.16 or newer",
        found=f"none for {sys.executable}",
        remedy="install guarded-serve into SGLang's environment, or SGLang into this one: pip install sglang",
        exit_code=ExitCode.MISSING,
    )


def run(options: argparse.Namespace, sglang_flags: list[str]) -> int:
    """Until the server's end; what to exit with."""
    # As PID 1, a signal without a handler is not delivered at all. Nothing is started before `supervise`,
    # which takes the signal over.
    signal.signal(signal.SIGTERM, _stop)
    from guarded_serve.checks.registry import CHECKS  # noqa: PLC0415 - `--help` needs none of it
    from guarded_serve.facts.draft_quantization import kept_apart  # noqa: PLC0415
    from guarded_serve.smoke.probe import probe, prompts_finding  # noqa: PLC0415

    guard = GuardOptions.from_namespace(options)
    notify = Notify()
    notify.send(STATUS="reading the profile and SGLang's flags")
    notify.extend(CHILD_DEADLINE_S + 60)  # the first time, a child imports SGLang for them
    resolution = resolve_options(options, sglang_flags, known_checks={check.name for check in CHECKS})
    if guard.dry_run:
        _show(resolution.findings)
        print(dry_run(kept_apart(resolution.deployment)))
        return resolution.exit_code(strict=guard.strict)

    more = (prompts_finding(resolution.deployment), _engine_missing())
    configuration = (*resolution.findings, *(found for found in more if found is not None))

    def gate(deployment: Deployment) -> Gate:
        said = preflight(deployment, configuration, strict=guard.strict)
        broken = resolution.exit_code()
        return said if said.code is not ExitCode.OK or broken is ExitCode.OK else replace(said, code=broken)

    def again() -> Deployment:
        fresh = resolve_options(options, sglang_flags, known_checks={check.name for check in CHECKS})
        if fresh.exit_code() is not ExitCode.OK:
            errors = (found for found in fresh.findings if found.severity is Severity.ERROR)
            raise ValueError("; ".join(f"{found.where}: {found.message}" for found in errors))
        return with_api_key(kept_apart(fresh.deployment))

    log_format = Format.JSON if guard.log_format == "json" else None
    try:
        deployment = with_api_key(kept_apart(resolution.deployment))
        deployment = replace(deployment, notes=(*deployment.notes, *exposed(deployment), *hidden(deployment)))
    except (OSError, ValueError) as error:
        print(f"error: the API key cannot be read: {error}", file=sys.stderr)
        return ExitCode.PERMISSION if isinstance(error, PermissionError) else ExitCode.MISSING
    try:
        return supervise(deployment, gate, Options(log_format=log_format, reload=again, probe=probe))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one that comes now must not change the exit code


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(ExitCode.OK)


def dry_run(deployment: Deployment) -> str:
    """The server's environment and command, as one would type them; secrets are masked."""
    redactor = Redactor.of(deployment)
    lines = [f"# {note}" for note in deployment.notes]
    for name, setting in sorted(deployment.environment.items()):
        lines.append(f"export {name}={shlex.quote(redactor.text(str(setting.value)))}")
    command = [*SERVER_COMMAND, *deployment.arguments]
    lines.append(" ".join(shlex.quote(redactor.text(part)) for part in command))
    return "\n".join(lines)


def _show(findings: Iterable[Finding]) -> None:
    """What is wrong with profile and flags, for a person, on standard error."""
    for finding in findings:
        where = f"{finding.where}: " if finding.where else ""
        print(f"{finding.severity.value}: {where}{finding.message} [{finding.check}]", file=sys.stderr)
        for name in ("expected", "found", "remedy"):
            if text := getattr(finding, name):
                print(f"  {name}: {text}", file=sys.stderr)
