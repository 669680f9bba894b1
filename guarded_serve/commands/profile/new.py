"""``guarded-serve profile new``: a commented profile from SGLang's flags."""

from __future__ import annotations

import argparse
import sys

from guarded_serve.commands.profile._output import add_output, write
from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile.resolve import resolve_options
from guarded_serve.profile.sglang_parser import sglang_parser
from guarded_serve.profile.wording import finding_text
from guarded_serve.profile.write import profile_text

SUMMARY = "write a commented profile from SGLang's flags, or from a profile with other flags"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A name, and where to write."""
    parser.add_argument("--name", help="the new profile's name")
    add_output(parser)


def run(options: argparse.Namespace, sglang_flags: list[str]) -> int:
    """Print or write it, secrets included, for a profile has to launch. With errors nothing is written."""
    resolution = resolve_options(options, sglang_flags)
    for finding in resolution.findings:
        print(finding_text(finding), file=sys.stderr)
    code = resolution.exit_code(strict=bool(options.guard_strict))
    if code is not ExitCode.OK:
        return code
    return write(options, profile_text(resolution.deployment, sglang_parser(), name=options.name), fresh=True)
