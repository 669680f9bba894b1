"""The command line: finds the subcommand, parses its flags, calls it, and turns what comes back into an exit code.

A subcommand is a module of `guarded_serve.commands` with ``SUMMARY``, ``add_arguments(parser)`` and
``run(options, sglang_flags) -> int``. Only the one that is asked for is imported. Our own flags are matched whole
wherever they stand; for commands that describe a deployment, everything else goes on to SGLang's parser untouched.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from guarded_serve import __version__
from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile.guard_options import add_guard_options
from guarded_serve.profile.wording import nearest

PROGRAM = "guarded-serve"
COMMANDS = ("launch", "check", "smoke", "report", "top", "inspect", "holders", "profile")
"""In the order of `--help`; one that has no module is not there."""

TAKE_SGLANG_FLAGS = ("launch", "check", "smoke", "holders", "profile")
"""Commands about a deployment: they take all guard options, and SGLang's flags after their own."""

DEBUG_VARIABLE = "GUARDED_SERVE_DEBUG"
_FOLDER = Path(__file__).with_name("commands")


def run() -> NoReturn:
    """The console script."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run a command line without the program's name; the exit code comes back, whatever happens."""
    return _guarded(lambda: _dispatch(list(argv)))


def launch_main(argv: Sequence[str]) -> int:
    """`python -m guarded_serve.launch_server`: the launch command alone, with SGLang's own command line."""
    return _guarded(lambda: run_command("launch", argv, "python -m guarded_serve.launch_server"))


def _guarded(body: Callable[[], int]) -> int:
    try:
        code = int(body())
        sys.stdout.flush()  # a closed pipe shows here, not as a complaint at exit
        return code
    except _Exit as ending:
        return ending.code
    except KeyboardInterrupt:
        return _end_by(signal.SIGINT)
    except BrokenPipeError:
        return _end_by(signal.SIGPIPE)
    except Exception as error:
        return _fault(error)


def available() -> dict[str, str]:
    """The commands that exist, with their summaries, read without importing them."""
    return {name: _summary(_FOLDER / f"{name}.py") for name in COMMANDS if (_FOLDER / f"{name}.py").is_file()}


def split(argv: Sequence[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Part a command's own arguments from SGLang's flags, order kept.

    Own flags are matched whole, with as many values as they take. A word that belongs to no flag is the command's own
    if it stands before the first of SGLang's flags and the command takes words; else it is a value of SGLang's.
    """
    options = parser._option_string_actions
    takes_words = any(not action.option_strings for action in parser._actions)
    own: list[str] = []
    rest: list[str] = []
    at = 0
    while at < len(argv):
        word = argv[at]
        if word == "--":
            rest.extend(argv[at:])
            break
        action = options.get(word.partition("=")[0]) if word.startswith("-") else None
        at += 1
        if action is None:
            (own if takes_words and not rest and not word.startswith("-") else rest).append(word)
            continue
        own.append(word)
        if "=" in word or action.nargs == 0:
            continue
        most = 1 if action.nargs in (None, "?") else action.nargs if isinstance(action.nargs, int) else len(argv)
        values = list(itertools.takewhile(lambda value: not value.startswith("--"), argv[at : at + most]))
        own.extend(values)
        at += len(values)
    return own, rest


class _Exit(Exception):
    """The command line has been answered."""

    def __init__(self, code: ExitCode) -> None:
        super().__init__(code)
        self.code = code


class _Parser(argparse.ArgumentParser):
    """An argparse parser that ends with our exit codes; ``more_help`` is text to add below its help."""

    more_help: Callable[[], str] | None = None

    def format_help(self) -> str:
        text = super().format_help()
        return f"{text}\n{self.more_help()}" if self.more_help else text

    def error(self, message: str) -> NoReturn:
        _complain(f"{self.prog}: {message}", f"`{self.prog} --help` shows what it takes")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        if message:
            sys.stderr.write(message)
        raise _Exit(ExitCode.OK if status == 0 else ExitCode.USAGE)


def _dispatch(argv: list[str]) -> int:
    commands = available()
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview(commands))
        return ExitCode.OK if argv else ExitCode.USAGE
    name, *rest = argv
    if name in ("-V", "--version"):
        print(f"{PROGRAM} {__version__}")
        return ExitCode.OK
    if name.startswith("-"):
        _complain(f"{PROGRAM}: {name} is no command", f"SGLang's flags go to `{PROGRAM} launch {name} ...`")
    if name not in commands:
        near = nearest(name, commands)
        _complain(f"{PROGRAM}: {name} is no command", f"did you mean {near}?" if near else _known(commands))
    return run_command(name, rest, f"{PROGRAM} {name}")


def run_command(name: str, argv: Sequence[str], program: str) -> int:
    """Import one subcommand, parse its arguments and run it."""
    command = importlib.import_module(f"guarded_serve.commands.{name}")
    takes_flags = name in TAKE_SGLANG_FLAGS
    parser = _Parser(
        prog=program,
        description=command.SUMMARY,
        allow_abbrev=False,
        conflict_handler="resolve",
        epilog="Every other flag is SGLang's, taken as `python -m sglang.launch_server` takes it."
        if takes_flags
        else None,
    )
    if name == "launch":
        parser.more_help = _sglang_help
    add_guard_options(parser, profile_only=not takes_flags)
    command.add_arguments(parser)
    own, rest = split(argv, parser)
    if rest and not takes_flags:
        near = nearest(rest[0].partition("=")[0], parser._option_string_actions)
        _complain(
            f"{program}: it does not take {rest[0]}", f"did you mean {near}?" if near else f"see `{program} --help`"
        )
    return int(command.run(parser.parse_args(own), rest))


def _sglang_help() -> str:
    from guarded_serve.profile.flags import help_text  # noqa: PLC0415 - only for --help
    from guarded_serve.profile.sglang_parser import sglang_parser  # noqa: PLC0415

    return help_text(sglang_parser())


def _overview(commands: dict[str, str]) -> str:
    width = max((len(name) for name in commands), default=0)
    lines = [
        f"usage: {PROGRAM} COMMAND [options] [SGLang's flags]",
        "",
        "SGLang's server with guardrails: it starts only when the deployment can be right.",
        "",
        "commands:",
        *(f"  {name:<{width}}  {summary}" for name, summary in commands.items()),
        "",
        f"`{PROGRAM} COMMAND --help` shows a command's options; --version the version.",
    ]
    return "\n".join(lines)


def _known(commands: dict[str, str]) -> str:
    return f"there are {', '.join(commands)}"


def _summary(path: Path) -> str:
    """The module's SUMMARY, from its source."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == "SUMMARY" for target in targets):
            return str(ast.literal_eval(node.value))
    return ""


def _complain(message: str, remedy: str) -> NoReturn:
    sys.stderr.write(f"{message}\n  {remedy}\n")
    raise _Exit(ExitCode.USAGE)


def _end_by(number: signal.Signals) -> int:
    """End as the signal would have ended us, so that a shell or CI sees an interruption and not a verdict."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return ExitCode.INTERNAL


def _fault(error: Exception) -> int:
    """One line for a fault of ours; the whole traceback where somebody asks for it."""
    if os.environ.get(DEBUG_VARIABLE) == "1":
        traceback.print_exc()
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(last.filename).name}:{last.lineno}"
    sys.stderr.write(
        f"{PROGRAM} {__version__}: a fault of ours: {type(error).__name__}: {error} ({place})\n"
        f"  please report it, with the traceback that {DEBUG_VARIABLE}=1 shows\n"
    )
    return ExitCode.INTERNAL


if __name__ == "__main__":
    run()
