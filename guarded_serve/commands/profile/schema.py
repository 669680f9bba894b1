"""``guarded-serve profile schema``: a JSON Schema of the profile, for completion in an editor."""

from __future__ import annotations

import argparse
import json
import sys

from guarded_serve.commands.profile._output import add_output, write
from guarded_serve.profile.schema import profile_schema
from guarded_serve.profile.sglang_parser import ParserUnavailable, sglang_parser
from guarded_serve.profile.wording import finding_text

SUMMARY = "print a JSON Schema of the profile, the installed SGLang's flags included, for an editor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to write."""
    add_output(parser)


def run(options: argparse.Namespace, sglang_flags: list[str]) -> int:
    """Print or write it."""
    try:
        dump = sglang_parser()
    except ParserUnavailable as error:
        print(finding_text(error.finding), file=sys.stderr)
        return error.finding.exit_code
    return write(options, json.dumps(profile_schema(dump), indent=2, ensure_ascii=False) + "\n")
