"""``guarded-serve top``: stages, accept length and break-even by batch size, live, from the cycle log as it grows."""

from __future__ import annotations

import argparse
import copy
import time

from rich.console import Console
from rich.live import Live as Screen

from guarded_serve.commands._cycle_source import Unusable, add_source, missing, source, unreadable
from guarded_serve.commands._fail import fail
from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile.wording import meant
from guarded_serve.timing.live import Live
from guarded_serve.timing.screen import render
from guarded_serve.timing.tail import Tail

SUMMARY = "a live view of the cycle log: stages, accept length, break-even, by batch size"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A folder, baselines, window, refresh."""
    add_source(parser, "the folder of the cycle log (default: the profile's timing.directory)")
    parser.add_argument("--rank", type=int, metavar="N", help="the rank to look at (default: the lowest)")
    parser.add_argument("--window", type=float, default=10.0, metavar="S", help="seconds looked at (default: 10)")
    parser.add_argument("--refresh", type=float, default=1.0, metavar="S", help="seconds between looks (default: 1)")
    parser.add_argument("--once", action="store_true", help="look for one window, print it, and end")


def run(options: argparse.Namespace, sglang_flags: list[str]) -> int:
    """Until interrupted. 64: a wrong command line; 66: no such folder; 77: not readable."""
    if options.window <= 0 or options.refresh <= 0:
        return fail(
            "top",
            ExitCode.USAGE,
            "--window and --refresh must be above 0 seconds",
            expected="seconds above 0",
            found=f"--window {options.window:g}, --refresh {options.refresh:g}",
            remedy="leave them out: the defaults are 10 and 1",
        )
    try:
        paths, baselines = source(options)
        if len(paths) == 1 and not paths[0].exists():
            raise missing(paths[0])
        if len(paths) != 1 or not paths[0].is_dir():
            raise Unusable(
                ExitCode.USAGE,
                f"{', '.join(map(str, paths))} is not one folder: top follows the folder of one server's cycle log",
                expected="one folder",
                found=f"{len(paths)} paths" if len(paths) != 1 else "a file",
                remedy=meant(map(str, paths), ("--profile",)) or "name the folder that the files are in",
            )
        return _watch(Tail(paths[0]), Live(baselines, kept_s=options.window), str(paths[0]), options)
    except Unusable as error:
        return fail("top", error.code, str(error), **error.evidence)
    except OSError as error:
        lost = unreadable(error)
        return fail("top", lost.code, str(lost), **lost.evidence)
    except KeyboardInterrupt:
        return ExitCode.OK


def _watch(tail: Tail, live: Live, shown: str, options: argparse.Namespace) -> int:
    console = Console()
    _look(tail, live, options.rank)
    if options.once:
        time.sleep(options.window)
        rank = _look(tail, live, options.rank)
        console.print(render(_title(shown, rank), live.window(options.window), options.window))
        return ExitCode.OK
    with Screen(console=console, screen=console.is_terminal, auto_refresh=False) as screen:
        while True:
            rank = _look(tail, live, options.rank)
            screen.update(render(_title(shown, rank), live.window(options.window), options.window), refresh=True)
            time.sleep(options.refresh)


def _look(tail: Tail, live: Live, wanted: int | None) -> int | None:
    """Read on and hand the chosen rank's totals over; returns the rank, or None while there is none."""
    ranks = tail.read()
    rank = wanted if wanted is not None else min(ranks, default=None)
    if rank is None or rank not in ranks:
        return None
    live.take(rank, time.time(), copy.deepcopy(ranks[rank]))
    return rank


def _title(shown: str, rank: int | None) -> str:
    return f"{shown}: no cycle yet" if rank is None else f"{shown}, rank {rank}, {time.strftime('%H:%M:%S')}"
