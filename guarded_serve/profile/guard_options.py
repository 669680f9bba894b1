"""The launcher's own flags: one table, from which `--help`, the reference and the parsing come.

They are `--profile` and `--guard-*`, matched whole, so that none is ever taken for an abbreviation of one of SGLang's.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class GuardOption:
    """One flag. ``metavar`` None: a switch; ``key`` is the profile's key that it overrides or extends."""

    flag: str
    help: str
    metavar: str | None = None
    repeat: bool = False
    choices: tuple[str, ...] | None = None
    default: str | None = None
    key: str | None = None

    @property
    def dest(self) -> str:
        """The name in the parsed options."""
        return self.flag[2:].replace("-", "_")


PROFILE_OPTION = GuardOption("--profile", "the profile to launch by (TOML); SGLang's flags beat what it says", "FILE")

GUARD_OPTIONS = (
    PROFILE_OPTION,
    GuardOption("--guard-dry-run", "print the server's command and environment, and end"),
    GuardOption("--guard-cycles", "write the cycle log into this folder", "DIR", key="timing.directory"),
    GuardOption(
        "--guard-ignore",
        "count this check's errors as warnings (repeatable; `check --list` names the checks)",
        "CHECK",
        repeat=True,
        key="preflight.ignore",
    ),
    GuardOption(
        "--guard-cpu-kernels",
        "run SGLang's CPU engine with our CPU operators: EAGLE on a machine with no GPU",
        key="engine.cpu_kernels",
    ),
    GuardOption("--guard-strict", "warnings end the launch as errors would"),
    GuardOption(
        "--guard-log-format",
        "how the guard's own lines are written",
        "FORMAT",
        choices=("text", "json"),
        default="text",
    ),
)


@dataclass(frozen=True)
class GuardOptions:
    """The launcher's own flags as given."""

    profile: Path | None = None
    dry_run: bool = False
    cycles: Path | None = None
    ignore: tuple[str, ...] = ()
    cpu_kernels: bool = False
    strict: bool = False
    log_format: str = "text"

    @classmethod
    def from_namespace(cls, options: argparse.Namespace) -> GuardOptions:
        """From what a parser with `add_guard_options` parsed; flags that it does not have count as not given."""

        def given(name: str) -> Any:
            return getattr(options, name, None)

        return cls(
            profile=Path(options.profile) if given("profile") else None,
            dry_run=bool(given("guard_dry_run")),
            cycles=Path(options.guard_cycles) if given("guard_cycles") else None,
            ignore=tuple(given("guard_ignore") or ()),
            cpu_kernels=bool(given("guard_cpu_kernels")),
            strict=bool(given("guard_strict")),
            log_format=given("guard_log_format") or "text",
        )


def add_guard_options(parser: argparse.ArgumentParser, *, profile_only: bool = False) -> None:
    """Add the table's flags to a parser."""
    group = parser.add_argument_group("guard options")
    for option in (PROFILE_OPTION,) if profile_only else GUARD_OPTIONS:
        if option.metavar is None:
            group.add_argument(option.flag, action="store_true", help=option.help)
        else:
            group.add_argument(
                option.flag,
                action="append" if option.repeat else "store",
                metavar=option.metavar if option.choices is None else None,
                choices=option.choices,
                default=option.default,
                help=option.help,
            )
