"""The command line: finds the subcommand, parses its flags, calls it, and turns what comes back into an exit code.

A subcommand is a module of `guarded_serve.commands` with ``SUMMARY``, ``add_arguments(parser)`` and
``run(options, sglang_flags) -> int``; one with actions is a package with ``SUMMARY`` and ``ACTIONS``, a module of that
kind for each. Only the one that is asked for is imported. Our own flags are matched whole wherever they stand; for
commands that describe a deployment, everything else goes on to SGLang's parser untouched.
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
from types import ModuleType
from typing import NoReturn

from guarded_serve import __version__
from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile.guard_options import add_guard_options
from guarded_serve.profile.wording import meant, nearest

PROGRAM = "guarded-serve"
COMMANDS = ("launch", "check", "smoke", "report", "top", "inspect", "holders", "profile")
"""In the order of `--help`; one that has no module is not there."""

TAKE_SGLANG_FLAGS = ("launch", "check", "smoke", "holders", "profile.new", "profile.show")
"""Commands about a deployment: they take all guard options, and SGLang's flags after their own."""

TAKE_NO_PROFILE = ("inspect", "profile.schema")
"""A flag that would change nothing is refused, not swallowed."""

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
    return {name: _summary(path) for name in COMMANDS if (path := _file(name)).is_file()}


def _file(name: str) -> Path:
    package = _FOLDER / name / "__init__.py"
    return package if package.is_file() else _FOLDER / f"{name}.py"


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
        unknown = message.partition("unrecognized arguments: ")[2].split()
        hint = meant(unknown, self._option_string_actions)
        _complain(f"{self.prog}: {message}", hint or f"`{self.prog} --help` shows what it takes")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = nearest(str(value), map(str, action.choices or ()))
            if near is None:
                raise
            _complain(f"{self.prog}: {error}", f"did you mean {near}?")

    def _get_value(self, action: argparse.Action, arg_string: str) -> object:
        if not arg_string and action.nargs != "?":  # `--profile=$UNSET` is no wish for a launch without one
            raise argparse.ArgumentError(action, f"expected {action.metavar or 'a value'}, found nothing")
        return super()._get_value(action, arg_string)

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
        serve = f"`{PROGRAM} launch --profile {name}` serves it" if name.lower().endswith(".toml") else None
        _complain(f"{PROGRAM}: {name} is no command", serve or _one_of(name, commands))
    return run_command(name, rest, f"{PROGRAM} {name}")


def run_command(name: str, argv: Sequence[str], program: str) -> int:
    """Import one subcommand, parse its arguments and run it."""
    command = importlib.import_module(f"guarded_serve.commands.{name}")
    if hasattr(command, "ACTIONS"):
        return _run_action(command, argv, program)
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
    if name not in TAKE_NO_PROFILE:
        add_guard_options(parser, profile_only=not takes_flags)
    command.add_arguments(parser)
    parser.set_defaults(own_flags=tuple(parser._option_string_actions))
    own, rest = split(argv, parser)
    words = itertools.takewhile(lambda word: word != "--", rest)
    # SGLang has no flag of this kind, whichever version is installed, or none.
    wrong = [word for word in words if word.startswith("--guard-")] if takes_flags else rest[:1]
    if wrong:
        hint = meant(wrong, parser._option_string_actions)
        _complain(f"{program}: it does not take {' '.join(wrong)}", hint or f"`{program} --help` shows what it takes")
    return int(command.run(parser.parse_args(own), rest))


def _run_action(command: ModuleType, argv: Sequence[str], program: str) -> int:
    """The first word says which of the command's actions; each has flags and a help of its own."""
    folder, name = Path(str(command.__file__)).parent, command.__name__.rpartition(".")[2]
    actions = {action: _summary(folder / f"{action}.py") for action in command.ACTIONS}
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_action_overview(program, command.SUMMARY, actions))
        return ExitCode.OK if argv else ExitCode.USAGE
    if argv[0].startswith("-"):
        _complain(f"{program}: expected an action before {argv[0]}", _known(actions))
    if argv[0] not in actions:
        _complain(f"{program}: {argv[0]} is no action", _one_of(argv[0], actions))
    return run_command(f"{name}.{argv[0]}", argv[1:], f"{program} {argv[0]}")


def _sglang_help() -> str:
    from guarded_serve.profile.flags import help_text  # noqa: PLC0415 - only for --help
    from guarded_serve.profile.sglang_parser import sglang_parser  # noqa: PLC0415

    return help_text(sglang_parser())


def _overview(commands: dict[str, str]) -> str:
    lines = [
        f"usage: {PROGRAM} COMMAND [options] [SGLang's flags]",
        "",
        "SGLang's server with guardrails: it starts only when the deployment can be right.",
        "",
        "commands:",
        *_table(commands),
        "",
        f"`{PROGRAM} COMMAND --help` shows a command's options; --version the version.",
    ]
    return "\n".join(lines)


def _action_overview(program: str, summary: str, actions: dict[str, str]) -> str:
    lines = [
        f"usage: {program} ACTION [options]",
        "",
        summary,
        "",
        "actions:",
        *_table(actions),
        "",
        f"`{program} ACTION --help` shows an action's options.",
    ]
    return "\n".join(lines)


def _table(summaries: dict[str, str]) -> list[str]:
    width = max(map(len, summaries), default=0)
    return [f"  {name:<{width}}  {summary}" for name, summary in summaries.items()]


def _one_of(name: str, known: dict[str, str]) -> str:
    near = nearest(name, known)
    return f"did you mean {near}?" if near else _known(known)


def _known(names: dict[str, str]) -> str:
    return f"there are {', '.join(names)}"


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
