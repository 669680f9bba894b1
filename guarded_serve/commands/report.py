"""``guarded-serve report``: cycle files to percentiles, shares, accept length and break-even, by batch size."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from guarded_serve.exit_codes import ExitCode
from guarded_serve.timing.html import to_html
from guarded_serve.timing.pictures import NoMatplotlib
from guarded_serve.timing.reader import NoCycles, find_files, summarise
from guarded_serve.timing.report import report, to_json, to_text

SUMMARY = "Percentiles, shares, accept length and break-even from cycle files."


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files or folders, baselines, format."""
    parser.add_argument("cycles", nargs="+", type=Path, metavar="CYCLES", help="cycle files, or folders with them")
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        type=baseline,
        metavar="BS=TOK_S",
        help="tokens per second of the whole batch without a drafter, at batch size BS; may be repeated",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with pictures, all in one file")


def run(options: argparse.Namespace, sglang_flags: list[str]) -> int:
    """Print the report. 64: a wrong command line; 66: no such file, or no record in it; 77: not readable."""
    if sglang_flags:
        return _fail(ExitCode.USAGE, f"report takes no such argument: {sglang_flags[0]}")
    try:
        files = find_files(options.cycles)
        summary = summarise(files)
    except FileNotFoundError as error:
        return _fail(ExitCode.MISSING, f"{error.filename} does not exist")
    except NoCycles as error:
        return _fail(ExitCode.MISSING, str(error))
    except PermissionError as error:
        return _fail(ExitCode.PERMISSION, f"{error.filename} may not be read by this user")
    if not summary.records:
        bad = f" ({summary.bad_lines} lines are something else)" if summary.bad_lines else ""
        return _fail(ExitCode.MISSING, f"no cycle record in {', '.join(map(str, files))}{bad}")
    reports = report(summary, dict(options.baseline))
    if options.html is not None:
        try:
            options.html.write_text(to_html(summary, reports, [str(path) for path in files]), encoding="utf-8")
        except NoMatplotlib as error:
            return _fail(ExitCode.USAGE, f"--html: {error}")
        except OSError as error:
            return _fail(ExitCode.PERMISSION, f"--html: {options.html} cannot be written: {error.strerror}")
    shape = to_json if options.format == "json" else to_text
    print(shape(summary, reports, len(files)))
    return ExitCode.OK


def _fail(code: ExitCode, message: str) -> int:
    print(f"guarded-serve report: {message}", file=sys.stderr)
    return code
