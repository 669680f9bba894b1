"""`guarded-serve check`: gate 1 alone. Needs neither GPU nor SGLang nor torch."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from guarded_serve.checks.formats import FORMATS
from guarded_serve.checks.interface import FAMILIES
from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Report
from guarded_serve.profile.wording import nearest

if TYPE_CHECKING:
    from guarded_serve.facts.model import ModelFacts
    from guarded_serve.profile.deployment import Deployment

SUMMARY = "judge profile, drafter, target, GPUs and host without starting anything"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags; SGLang's follow."""
    parser.add_argument(
        "--only",
        metavar="FAMILY,...",
        type=families,
        default=FAMILIES,
        help=f"only these families of checks, of {', '.join(FAMILIES)}; where no driver is, gpu refuses: leave it out",
    )
    parser.add_argument(
        "--deep", action="store_true", help="read every byte of the drafter: NaN, Inf, constant tensors, sha256"
    )
    parser.add_argument(
        "--with-engine",
        action="store_true",
        help="let the installed SGLang build and load the drafter on the CPU, and compare (half a minute)",
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="output format (default: %(default)s)")
    parser.add_argument("--strict", action="store_true", help="count warnings as errors")
    parser.add_argument("--list", action="store_true", help="print every check's name and rule, and end")


def families(text: str) -> tuple[str, ...]:
    """``gpu,host`` to names; raises argparse's error for an unknown one."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in FAMILIES]
    if unknown or not names:
        wrong = f"no such family: {', '.join(unknown)}" if unknown else "no family named"
        near = [nearest(name, FAMILIES) for name in unknown]
        hint = f"did you mean {', '.join(filter(None, near))}?" if all(near) and near else "choose from"
        raise argparse.ArgumentTypeError(f"{wrong}; {hint} ({', '.join(FAMILIES)})")
    return names


def run(options: argparse.Namespace, sglang_flags: list[str]) -> int:
    """Gather, judge, print; returns the exit code."""
    if options.list:
        sys.stdout.write(listing(options.only))
        return ExitCode.OK
    from guarded_serve.checks.gate import judge  # noqa: PLC0415 - `--help` needs none of it
    from guarded_serve.checks.registry import CHECKS  # noqa: PLC0415
    from guarded_serve.checks.runner import exit_code  # noqa: PLC0415
    from guarded_serve.profile.resolve import resolve_options  # noqa: PLC0415

    resolution = resolve_options(options, sglang_flags, known_checks={check.name for check in CHECKS})
    deepen = partial(_deepened, options=options, deployment=resolution.deployment)
    _, report = judge(resolution.deployment, options.only, resolution.findings, deepen)
    code = exit_code(report, strict=options.strict)
    sys.stdout.write(rendered(report, code, options.format))
    return code


def _deepened(model: ModelFacts, options: argparse.Namespace, deployment: Deployment) -> ModelFacts:
    """What takes longer and was asked for."""
    if options.deep or deployment.profile.preflight.deep:
        model = _scanned(model)
    if options.with_engine:
        from guarded_serve.facts.engine_load import with_engine_load  # noqa: PLC0415

        model = with_engine_load(model, deployment)
    return model


def _scanned(model: ModelFacts) -> ModelFacts:
    """Every byte of the drafter, with a progress bar where standard error is a terminal."""
    from guarded_serve.facts.model import scan_drafter  # noqa: PLC0415

    weights = model.drafter.weights if model.drafter else None
    if weights is None or not sys.stderr.isatty():
        return scan_drafter(model)
    from rich.console import Console  # noqa: PLC0415 - 60 ms that a pipe need not pay
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    columns = (TextColumn("reading the drafter"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=sum(shard.size for shard in weights.shards))
        return scan_drafter(model, lambda done: bar.advance(task, done))


def rendered(report: Report, code: ExitCode, form: str) -> str:
    """The report in one of `FORMATS`."""
    return str(import_module(f"guarded_serve.checks.formats.as_{form}").render(report, code))


def listing(only: tuple[str, ...]) -> str:
    """Every check of these families: name, rule, where the rule comes from."""
    from guarded_serve.checks.registry import checks_of  # noqa: PLC0415 - imports every family

    checks = checks_of(only)
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.name:<{width}}  {check.summary}")
        if check.source:
            lines.append(f"{'':<{width}}  source: {check.source}")
    return "\n".join(lines) + "\n"
