"""`guarded-serve smoke`: the test of a drafter before it is merged."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from guarded_serve.commands._fail import fail
from guarded_serve.exit_codes import ExitCode, most_telling
from guarded_serve.profile.wording import finding_text

if TYPE_CHECKING:
    from guarded_serve.profile.deployment import Deployment
    from guarded_serve.smoke.run import Contestant, Result

SUMMARY = "test a drafter: check, serve with it and without it; a verdict with reasons"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags; SGLang's follow."""
    parser.add_argument("--drafter", metavar="DIR", help="the drafter to test (default: the profile's)")
    parser.add_argument(
        "--compare",
        metavar="DIR",
        action="append",
        default=[],
        help="another drafter to measure beside it (repeatable); the exit code is of the first one alone",
    )
    parser.add_argument(
        "--report", metavar="DIR", type=Path, help="write result.json, junit.xml, .md, .html and logs there"
    )
    parser.add_argument("--record", metavar="FILE", type=Path, help="write what later runs and the watch compare with")
    parser.add_argument("--against", metavar="FILE", type=Path, help="compare with this record (default: smoke.record)")
    parser.add_argument("--prompts", metavar="FILE", help='"builtin" or a JSONL file (default: probe.prompts)')
    parser.add_argument("--batch-sizes", metavar="N,...", type=_sizes, help="(default: smoke.batch_sizes)")
    parser.add_argument("--repeats", metavar="N", type=_positive, help="(default: smoke.repeats)")
    parser.add_argument("--new-tokens", metavar="N", type=_positive, help="(default: smoke.new_tokens)")
    parser.add_argument(
        "--sweep",
        metavar="STEPS/TOPK/TOKENS,...",
        nargs="?",
        const="",
        help="measure several settings of the drafter and recommend one (default: chains of 1 to 6 steps)",
    )


def run(options: argparse.Namespace, sglang_flags: list[str]) -> int:
    """Check, measure, judge, report; returns the exit code."""
    from guarded_serve.checks.registry import CHECKS  # noqa: PLC0415 - `--help` needs none of it
    from guarded_serve.facts.host import read_disk  # noqa: PLC0415
    from guarded_serve.profile.resolve import resolve_options  # noqa: PLC0415
    from guarded_serve.smoke.measure import Plan  # noqa: PLC0415
    from guarded_serve.smoke.prompts import BadPrompts, load_prompts  # noqa: PLC0415
    from guarded_serve.smoke.run import Wishes, smoke, to_stderr  # noqa: PLC0415
    from guarded_serve.smoke.server import Interrupted  # noqa: PLC0415
    from guarded_serve.supervisor.secrets import with_api_key  # noqa: PLC0415

    resolution = resolve_options(options, sglang_flags, known_checks={check.name for check in CHECKS})

    def wrong(code: ExitCode, message: str, **evidence: str | None) -> int:
        """What else is wrong is said with it: one look at the screen, not one for each fault."""
        for finding in resolution.findings:
            print(finding_text(finding), file=sys.stderr)
        return most_telling((fail("smoke", code, message, **evidence), resolution.exit_code()))

    try:
        deployment = with_api_key(resolution.deployment)
    except (OSError, ValueError) as error:
        code = ExitCode.PERMISSION if isinstance(error, PermissionError) else ExitCode.MISSING
        return wrong(code, f"the API key cannot be read: {error}")
    section = deployment.profile.smoke
    source = options.prompts or deployment.profile.probe.prompts
    try:
        prompts = load_prompts(source)
        contestants = _contestants(options, deployment)
    except BadPrompts as error:
        remedy = 'correct it, name another with --prompts, or take "builtin"'
        return wrong(error.code, str(error), expected='"builtin" or a JSONL file', found=source, remedy=remedy)
    except _NoContestant as error:
        return wrong(ExitCode.USAGE, str(error), **error.evidence)
    # A measurement may take an hour, and could not be told then.
    for flag, folder in (("--report", options.report), ("--record", options.record and options.record.parent)):
        place = read_disk(flag, folder, 0, asked=True) if folder else None
        if place is not None and not place.writable:
            return wrong(
                ExitCode.PERMISSION,
                f"{flag}: this user can make nothing in {place.nearest}",
                expected="a folder that is there or can be made, and can be written",
                found=place.why or "not writable",
                remedy="name another folder",
            )
    plan = Plan(
        prompts,
        options.batch_sizes or section.batch_sizes,
        max(2, options.repeats or section.repeats),
        options.new_tokens or section.new_tokens,
    )
    wishes = Wishes(
        contestants,
        plan,
        source,
        resolution.findings,
        options.against or section.record,
        options.report,
        say=to_stderr,
    )
    try:
        result = smoke(deployment, wishes)
    except Interrupted as interrupted:
        to_stderr(f"{interrupted.number.name}: stopped; nothing of any server is left, and no report was written")
        return _end_by(interrupted.number)
    _print(result)
    return _write(result, options)


class _NoContestant(Exception):
    """The command line names nothing that can be measured."""

    def __init__(self, message: str, **evidence: str | None) -> None:
        super().__init__(message)
        self.evidence = evidence


def _contestants(options: argparse.Namespace, deployment: Deployment) -> Sequence[Contestant]:
    """Raises _NoContestant for what the command line has wrong."""
    from guarded_serve.smoke.run import SWEEP, Contestant, sweep_settings  # noqa: PLC0415

    own = deployment.get("speculative_draft_model_path")
    drafter = options.drafter or own
    if not deployment.get("speculative_algorithm"):
        raise _NoContestant(
            "there is no drafter to test: neither profile nor flags set speculative_algorithm",
            expected="a deployment with a drafter",
            found=f"the profile {deployment.profile_path}, without one" if deployment.profile_path else "no profile",
            remedy="give --profile FILE, or SGLang's flags: --model-path, --speculative-algorithm and so on",
        )
    if not drafter:
        raise _NoContestant(
            "there is no drafter to test",
            expected="a drafter's folder or hub id",
            found="neither --drafter nor speculative_draft_model_path",
            remedy="give --drafter DIR or set speculative_draft_model_path",
        )
    drafters = [str(drafter), *options.compare]
    labels = _labels(drafters)
    if options.sweep is None:
        return [Contestant(label, path) for label, path in zip(labels, drafters, strict=True)]
    if options.compare:
        raise _NoContestant(
            "--sweep measures settings of one drafter",
            expected="--sweep or --compare",
            found="both",
            remedy="leave --compare out",
        )
    texts = options.sweep.split(",") if options.sweep else SWEEP
    try:
        return [Contestant(text, str(drafter), sweep_settings(text)) for text in texts]
    except ValueError as error:
        raise _NoContestant(f"--sweep: {error}", remedy="separate several by commas, as in 3/1/4,2/1/3") from None


def _labels(drafters: Sequence[str]) -> list[str]:
    """The folders' names, with as much of the path as tells them apart."""
    paths = [Path(drafter).parts or (drafter,) for drafter in drafters]
    deepest = max(map(len, paths))
    for depth in range(1, deepest + 1):
        labels = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{'/'.join(parts)} ({index})" for index, parts in enumerate(paths, 1)]


def _print(result: Result) -> None:
    from rich.console import Console  # noqa: PLC0415

    from guarded_serve.smoke.formats.as_text import NARROWEST, render  # noqa: PLC0415

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(160, NARROWEST))
    render(result, console)


def _write(result: Result, options: argparse.Namespace) -> int:
    """Reports and record; a verdict that could not be written down is said, and the exit code stays the verdict's."""
    from guarded_serve.smoke.formats import as_html, as_json, as_junit, as_markdown  # noqa: PLC0415
    from guarded_serve.smoke.record import write_record  # noqa: PLC0415
    from guarded_serve.smoke.run import to_stderr  # noqa: PLC0415
    from guarded_serve.smoke.writing import write_whole  # noqa: PLC0415

    code = result.code
    try:
        if options.report is not None:
            forms = {"result.json": as_json, "junit.xml": as_junit, "result.md": as_markdown, "result.html": as_html}
            written = {name: form.render(result) for name, form in forms.items()}
            for name, text in written.items():
                write_whole(options.report / name, text)
            to_stderr(f"reports are in {options.report}")
        first = result.judged[0]
        if options.record is not None and first.run is not None and first.identity is not None and code is ExitCode.OK:
            write_record(options.record, first.run, first.verdict, result.baseline, first.identity)
            to_stderr(f"recorded in {options.record}")
        elif options.record is not None:
            to_stderr(f"not recorded in {options.record}: only a drafter that passes is")
    except OSError as error:
        to_stderr(f"cannot write {error.filename}: {error.strerror}")
        return code if code is not ExitCode.OK else ExitCode.PERMISSION
    return code


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected batch sizes such as 1,8, found {text}") from None
    if not sizes or sizes[0] < 1:
        raise argparse.ArgumentTypeError(f"expected batch sizes of at least 1, found {text}")
    return sizes


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text}")
    return value


def _end_by(number: signal.Signals) -> int:
    """As the signal would have ended us, so that a shell or CI sees an interruption and not a verdict."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return ExitCode.INTERNAL
