"""Where the actions write: ``--output``, or standard output."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from guarded_serve.exit_codes import ExitCode


def add_output(parser: argparse.ArgumentParser) -> None:
    """``--output``."""
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there instead of to standard output")


def write(options: argparse.Namespace, text: str, *, fresh: bool = False) -> ExitCode:
    """``fresh``: not over a file that is there, as a profile may have its owner's comments in it."""
    if options.output is None:
        sys.stdout.write(text)
        return ExitCode.OK
    try:
        with options.output.open("x" if fresh else "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        print(f"{options.output}: exists and is not written over; name another file or remove it", file=sys.stderr)
        return ExitCode.USAGE
    except (IsADirectoryError, NotADirectoryError) as error:
        print(f"{options.output}: {error.strerror}; name a file", file=sys.stderr)
        return ExitCode.USAGE
    except FileNotFoundError:
        print(f"{options.output.parent}: there is no such folder", file=sys.stderr)
        return ExitCode.MISSING
    except PermissionError:
        print(f"{options.output}: may not be written", file=sys.stderr)
        return ExitCode.PERMISSION
    return ExitCode.OK
