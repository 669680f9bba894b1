"""What `report` and `top` go by: folders of the cycle log and baselines, from the command line or a profile."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile.load import load_profile


class Unusable(Exception):
    """The command line or the profile names nothing to read. ``code`` is what to exit with."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def baseline(text: str) -> tuple[int, float]:
    """``BS=TOK_S``: the whole batch's tokens per second without a drafter, at one batch size."""
    bs_text, separator, rate_text = text.partition("=")
    try:
        bs, rate = int(bs_text), float(rate_text)
    except ValueError:
        separator = ""
        bs, rate = 0, 0.0
    if not separator or bs < 1 or not 0 < rate < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not BS=TOK_S, as in 1=82.0: a batch size and tokens per second")
    return bs, rate


def add_source(parser: argparse.ArgumentParser, cycles_help: str) -> None:
    """CYCLES and ``--baseline``."""
    parser.add_argument("cycles", nargs="*", type=Path, metavar="CYCLES", help=cycles_help)
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        type=baseline,
        metavar="BS=TOK_S",
        help="tokens per second of the whole batch without a drafter, at batch size BS; may be repeated",
    )


def source(options: argparse.Namespace) -> tuple[list[Path], dict[int, float]]:
    """Paths and baselines: what the command line says, else the profile's. Raises Unusable."""
    paths, baselines = list(options.cycles), dict(options.baseline)
    given = getattr(options, "profile", None)
    if given is not None:
        loaded = load_profile(Path(given))
        errors = [finding for finding in loaded.findings if finding.severity.value == "error"]
        if errors:
            first = errors[0]
            raise Unusable(first.exit_code, f"{first.where or given}: {first.message}")
        baselines = {**loaded.profile.break_even.baseline_tok_s, **baselines}
        if not paths and loaded.profile.timing.directory is not None:
            paths = [loaded.profile.timing.directory]
    if not paths:
        raise Unusable(
            ExitCode.USAGE, "name cycle files or folders, or a --profile whose timing.directory says where they are"
        )
    return paths, baselines


def fail(command: str, code: ExitCode, message: str) -> ExitCode:
    """One line on standard error."""
    print(f"guarded-serve {command}: {message}", file=sys.stderr)
    return code
