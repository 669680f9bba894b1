"""``guarded-serve report``: cycle files to percentiles, shares, accept length and break-even, by batch size."""

from __future__ import annotations

import argparse
from pathlib import Path

from guarded_serve.commands._cycle_source import EXPECTED, WHERE, Unusable, add_source, source, unreadable
from guarded_serve.commands._fail import fail
from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile.wording import meant
from guarded_serve.timing.html import to_html
from guarded_serve.timing.pictures import NoMatplotlib
from guarded_serve.timing.reader import NoCycles, find_files, summarise
from guarded_serve.timing.report import report, to_json, to_text
from guarded_serve.timing.summary import Summary

SUMMARY = "percentiles, shares, accept length and break-even from cycle files"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files or folders, baselines, format, page."""
    add_source(parser, "cycle files, or folders with them (default: the profile's timing.directory)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="output format (default: text)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with pictures, all in one file")


def run(options: argparse.Namespace, sglang_flags: list[str]) -> int:
    """Print the report. 64: a wrong command line; 66: no such file, or no record in it; 77: not readable."""
    try:
        paths, baselines = source(options)
        files, summary = _read(paths)
    except Unusable as error:
        return fail("report", error.code, str(error), **error.evidence)
    reports = report(summary, baselines)
    if options.html is not None:
        try:
            options.html.write_text(to_html(summary, reports, [str(path) for path in files]), encoding="utf-8")
        except NoMatplotlib as error:
            return fail("report", ExitCode.USAGE, f"--html: {error}")
        except OSError as error:
            return fail(
                "report",
                ExitCode.PERMISSION,
                f"--html: {options.html} cannot be written",
                expected="a file in a folder that this user may write",
                found=error.strerror,
                remedy="name another file",
            )
    shape = to_json if options.format == "json" else to_text
    print(shape(summary, reports, len(files)))
    return ExitCode.OK


def _read(paths: list[Path]) -> tuple[list[Path], Summary]:
    """The cycle files and what they say. Raises Unusable."""
    try:
        files = find_files(paths)
        summary = summarise(files)
    except NoCycles as error:
        raise Unusable(ExitCode.MISSING, str(error), expected=EXPECTED, found="none", remedy=WHERE) from None
    except OSError as error:
        raise unreadable(error) from None
    if not summary.records:
        raise Unusable(
            ExitCode.MISSING,
            f"no cycle record in {', '.join(map(str, files))}",
            expected=EXPECTED,
            found=f"{summary.bad_lines} lines are something else" if summary.bad_lines else "no line",
            remedy=meant(map(str, paths), ("--profile",)) or WHERE,
        )
    return files, summary
