"""`guarded-serve holders`: who holds the GPUs, and an end for what an earlier server provably left behind."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from guarded_serve.exit_codes import ExitCode, most_telling
from guarded_serve.facts.environment import server_view
from guarded_serve.facts.gpu import MIB, Driver, ask_driver
from guarded_serve.facts.gpu_choice import choose_gpus
from guarded_serve.facts.gpu_holders import Holder, Holders, Leftover, find_holders, leftover
from guarded_serve.facts.gpus import cards_of
from guarded_serve.facts.processes import PROC
from guarded_serve.facts.terminate import Ended, end_processes
from guarded_serve.findings import Finding, Severity
from guarded_serve.profile.deployment import Deployment
from guarded_serve.profile.wording import finding_text

_FREEING_S = 20.0
_LOOK_AGAIN_S = 0.2

SUMMARY = "show who holds the GPUs; --terminate ends what an earlier server left behind"


@dataclass(frozen=True)
class Judged:
    """A holder, whether it is a leftover, and whether `--terminate` would end it."""

    holder: Holder
    leftover: Leftover
    ours: bool  # this user's, or root was told to

    @property
    def ends(self) -> bool:
        """Whether `--terminate` ends it."""
        return self.leftover.proven and self.ours


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument(
        "--terminate",
        action="store_true",
        help="end what is provably an earlier server's: SIGTERM, a wait, SIGKILL; at a terminal it asks first",
    )
    parser.add_argument("--dry-run", action="store_true", help="with --terminate: say what would be ended, and end")
    parser.add_argument("--yes", action="store_true", help="with --terminate: do not ask")
    parser.add_argument("--any-user", action="store_true", help="with --terminate, as root: other users' processes too")
    parser.add_argument(
        "--grace", type=float, default=10.0, metavar="S", help="between SIGTERM and SIGKILL (default: 10)"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="output format (default: text)")


def run(options: argparse.Namespace, sglang_flags: list[str]) -> int:
    """Look, show, end; returns the exit code: 75 when something holds a GPU after `--terminate`.

    With a profile or SGLang's flags, only the GPUs of that deployment count.
    """
    if options.any_user and os.geteuid() != 0:
        print("guarded-serve holders: --any-user needs root", file=sys.stderr)
        return ExitCode.PERMISSION
    asked, wrong = _deployment(options, sglang_flags)
    for finding in wrong:
        print(finding_text(finding), file=sys.stderr)
    if wrong:
        return most_telling(finding.exit_code for finding in wrong)
    driver, judged, found = look(asked, any_user=options.any_user)
    ended: tuple[Ended, ...] = ()
    wanted = [one for one in judged if one.ends]
    if options.terminate and wanted and not options.dry_run and _agreed(options, wanted):
        ended = end_processes(
            [one.holder.process for one in wanted],
            grace_s=options.grace,
            say=lambda text: print(text, file=sys.stderr),
        )
        driver, judged, found = _settled(asked, ended, any_user=options.any_user)
    if options.format == "json":
        print(json.dumps(as_json(driver, judged, found, ended), indent=2))
    else:
        print(as_text(driver, judged, found, ended, dry_run=options.terminate and not ended))
    return _code(driver, judged, ended, terminated=options.terminate and not options.dry_run)


def _deployment(options: argparse.Namespace, sglang_flags: list[str]) -> tuple[Deployment | None, list[Finding]]:
    """What was asked for, or None for all GPUs, and what the flags have wrong.

    What a deployment lacks, and a profile's other errors, are the business of `check`.
    """
    if not sglang_flags and not getattr(options, "profile", None):
        return None, []
    from guarded_serve.profile.resolve import resolve_options  # noqa: PLC0415 - not needed for all GPUs

    resolution = resolve_options(options, sglang_flags)
    found = (one for one in resolution.findings if one.check in ("profile.flags", "profile.file"))
    return resolution.deployment, [one for one in found if one.severity is Severity.ERROR]


def look(asked: Deployment | None, *, any_user: bool = False) -> tuple[Driver, tuple[Judged, ...], Holders]:
    """Ask the driver and /proc, and judge every holder of the deployment's GPUs (None: of all)."""
    driver = ask_driver()
    found = find_holders(driver.gpus, PROC)
    if asked is not None and driver.trouble is None:
        used = {device.index for device in choose_gpus(asked, cards_of(driver), server_view(asked)).chosen}
        if used:
            driver = replace(driver, gpus=tuple(gpu for gpu in driver.gpus if gpu.index in used))
            mine = [one for one in found.holders if used.intersection(use.gpu for use in one.uses)]
            found = replace(found, holders=tuple(mine))
    me = os.geteuid()
    judged = tuple(
        Judged(holder, leftover(holder), ours=holder.process.uid == me or (me == 0 and any_user))
        for holder in found.holders
        if holder.process.pid != os.getpid()
    )
    return driver, judged, found


def _settled(
    asked: Deployment | None, ended: Sequence[Ended], *, any_user: bool
) -> tuple[Driver, tuple[Judged, ...], Holders]:
    """The look after the end: the driver takes a moment to free the memory of a process that is gone."""
    gone = {one.process.pid for one in ended if one.is_gone}
    deadline = time.monotonic() + _FREEING_S
    while True:
        driver, judged, found = look(asked, any_user=any_user)
        listed = {process.pid for gpu in driver.gpus for process in gpu.compute.value or ()}
        if not gone & listed or time.monotonic() > deadline:
            return driver, judged, found
        time.sleep(_LOOK_AGAIN_S)


def _agreed(options: argparse.Namespace, wanted: Sequence[Judged]) -> bool:
    """A person at a terminal sees the list first; a script that says --terminate means it."""
    if options.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    for one in wanted:
        print(f"would end {one.holder.describe()}: {one.leftover.why}", file=sys.stderr)
    print(f"End {len(wanted)} process{'es' if len(wanted) > 1 else ''}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _code(driver: Driver, judged: Sequence[Judged], ended: Sequence[Ended], *, terminated: bool) -> ExitCode:
    if driver.trouble is not None:
        return ExitCode.UNFIT
    if any(one.how == "denied" for one in ended):
        return ExitCode.PERMISSION
    if terminated and any(one.holder.uses for one in judged):
        return ExitCode.BUSY
    return ExitCode.OK


def as_text(driver: Driver, judged: Sequence[Judged], found: Holders, ended: Sequence[Ended], *, dry_run: bool) -> str:
    """Cards, then holders, then what was ended."""
    lines = []
    if driver.trouble is not None:
        asked = f" ({driver.trouble.asking})" if driver.trouble.asking else ""
        lines.append(f"the NVIDIA driver does not answer: {driver.trouble.text}{asked}")
    for gpu in driver.gpus:
        memory = gpu.memory.value
        used = f"{memory.used // MIB:>7} of {memory.total // MIB} MiB used" if memory else f"memory: {gpu.memory.error}"
        lines.append(f"GPU {gpu.index}  {used}  {gpu.name}  {gpu.uuid}" if gpu.lost is None else f"{gpu.label}  lost")
    lines.append("")
    for one in judged:
        mark = "leftover" if one.leftover.proven else "holder"
        lines.append(f"{mark:<9} {one.holder.describe()}")
        owner = "" if one.ours or not one.leftover.proven else f"; it is {one.holder.process.user}'s: see --any-user"
        lines.append(f"{'':<9} {one.leftover.why}{owner}")
    if not judged:
        lines.append("nobody that can be seen holds a GPU")
    if found.unreadable:
        lines.append(f"the open files of {found.unreadable} processes may not be read by this user: root sees all")
    for gone in ended:
        lines.append(f"ended     PID {gone.process.pid} {gone.process.title}: {_HOW[gone.how]} ({gone.seconds:.1f} s)")
    if dry_run:
        for one in judged:
            if one.ends:
                lines.append(f"would end PID {one.holder.process.pid} {one.holder.process.title}")
    return "\n".join(lines).strip("\n")


_HOW = {
    "TERM": "at SIGTERM",
    "KILL": "at SIGKILL",
    "gone": "was gone already",
    "another": "its PID belongs to another process now: not touched",
    "denied": "this user may not signal it",
    "alive": "still there after SIGKILL: it waits inside the kernel",
}


def as_json(driver: Driver, judged: Sequence[Judged], found: Holders, ended: Sequence[Ended]) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "driver": None
        if driver.trouble is None
        else {"trouble": driver.trouble.kind.value, "text": driver.trouble.text},
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "lost": gpu.lost,
                "used": gpu.memory.value.used if gpu.memory.value else None,
                "total": gpu.memory.value.total if gpu.memory.value else None,
            }
            for gpu in driver.gpus
        ],
        "holders": [_holder_json(one) for one in judged],
        "unreadable_processes": found.unreadable,
        "ended": [{"pid": one.process.pid, "how": one.how, "seconds": round(one.seconds, 3)} for one in ended],
    }


def _holder_json(one: Judged) -> dict[str, Any]:
    process = one.holder.process
    return {
        "pid": process.pid,
        "seen_here": one.holder.seen_here,
        "state": process.state,
        "title": process.title,
        "user": process.user,
        "parent": process.parent,
        "age_s": process.age_s,
        "unit": process.unit,
        "container": process.container,
        "nodes": list(one.holder.nodes),
        "uses": [{"gpu": use.gpu, "uuid": use.uuid, "kind": use.kind, "used": use.used} for use in one.holder.uses],
        "leftover": one.leftover.proven,
        "why": one.leftover.why,
        "would_end": one.ends,
    }
