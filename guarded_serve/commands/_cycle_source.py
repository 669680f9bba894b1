"""What `report` and `top` go by: folders of the cycle log and baselines, from the command line or a profile."""

from __future__ import annotations

import argparse
from pathlib import Path

from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile.load import load_profile
from guarded_serve.profile.wording import neighbour

WHERE = "a server writes them into its profile's timing.directory, or where --guard-cycles says"
EXPECTED = "a folder that holds cycles-RANK-NUMBER.jsonl, or such a file"


class Unusable(Exception):
    """The command line or the profile names nothing to read. ``code`` is what to exit with."""

    def __init__(self, code: ExitCode, message: str, **evidence: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.evidence = evidence


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
            evidence = {"expected": first.expected, "found": first.found, "remedy": first.remedy}
            raise Unusable(first.exit_code, f"{first.where or given}: {first.message}", **evidence)
        baselines = {**loaded.profile.break_even.baseline_tok_s, **baselines}
        if not paths and loaded.profile.timing.directory is not None:
            paths = [loaded.profile.timing.directory]
    if not paths:
        raise Unusable(
            ExitCode.USAGE,
            "no cycle log is named",
            expected="cycle files or folders, or a --profile whose timing.directory says where they are",
            found="a profile without timing.directory" if given is not None else "neither",
            remedy=WHERE,
        )
    return paths, baselines


def missing(path: Path) -> Unusable:
    """A path that is not there, with what was most likely meant."""
    return Unusable(
        ExitCode.MISSING,
        f"{path} does not exist",
        expected=EXPECTED,
        found="nothing of that name",
        remedy=neighbour(path) or WHERE,
    )


def unreadable(error: OSError) -> Unusable:
    """A path that is not there, may not be read or cannot be. Raises an error again that is of no path."""
    if error.filename is None:
        raise error
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return missing(Path(error.filename))
    if not isinstance(error, PermissionError):
        return Unusable(
            ExitCode.MISSING,
            f"{error.filename} cannot be read: {error.strerror}",
            expected=EXPECTED,
            found=error.strerror,
            remedy=WHERE,
        )
    return Unusable(
        ExitCode.PERMISSION,
        f"{error.filename} may not be read by this user",
        expected="a file that this user may read, in folders that it may enter",
        found=error.strerror,
        remedy="run as the user that the server runs as, or as one of its group",
    )
