"""The command line: dispatch, own flags matched whole, and an exit code on every path."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from guarded_serve import __version__, cli
from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile import resolve
from guarded_serve.profile.guard_options import GUARD_OPTIONS, GuardOptions, add_guard_options
from guarded_serve.profile.sglang_parser import snapshot


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of commands of our own in place of the real ones; their names are those of real commands."""
    folder = tmp_path / "commands"
    folder.mkdir()
    monkeypatch.setattr(cli, "_FOLDER", folder)
    package = importlib.import_module("guarded_serve.commands")
    monkeypatch.setattr(package, "__path__", [str(folder)])
    kept = _take_out(package)
    yield folder  # type: ignore[misc]
    _take_out(package)
    for name, (module, attribute) in kept.items():
        sys.modules[f"{package.__name__}.{name}"] = module
        setattr(package, name, attribute)


def _take_out(package: ModuleType) -> dict[str, tuple[ModuleType, object]]:
    """Forget every command that was imported, as a module and as the package's attribute."""
    found = {name: sys.modules.pop(f"{package.__name__}.{name}", None) for name in cli.COMMANDS}
    return {name: (module, vars(package).pop(name)) for name, module in found.items() if module is not None}


def test_only_commands_that_exist_are_listed(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(commands, "check", "return 0")
    assert cli.main(["--help"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "the check of the test" in out
    assert "smoke" not in out


def test_help_imports_no_command(commands: Path) -> None:
    (commands / "check.py").write_text('raise RuntimeError("imported")\nSUMMARY: str = "x"\n')
    assert cli.available() == {"check": "x"}
    assert cli.main(["--help"]) == ExitCode.OK


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == ExitCode.OK
    assert capsys.readouterr().out.strip() == f"guarded-serve {__version__}"


def test_usage_errors(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(commands, "check", "return 0")
    command(commands, "report", "return 0", 'parser.add_argument("--html")')
    for argv, hint in {
        (): "commands:",
        ("chekc",): "did you mean check?",
        ("zebra",): "there are check, report",
        ("--tp-size", "8"): "guarded-serve launch --tp-size",
        ("report", "--htlm", "x"): "did you mean --html for --htlm?",
        ("report", "--html"): "expected one argument",
        ("check", "--guard-log-format", "xml"): "invalid choice",
    }.items():
        assert cli.main(list(argv)) == ExitCode.USAGE, argv
        captured = capsys.readouterr()
        assert hint in captured.out + captured.err
        assert "Traceback" not in captured.err


P = "x.toml"  # is not there: a command line that is wrong is told before anything is read


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["check", "--profile", P, "--guard-cylces", "x"], "did you mean --guard-cycles for --guard-cylces?"),
        (["launch", "--guard-stict", "--guard-ingore=a.b"], "--guard-strict for --guard-stict? did you mean --guard-i"),
        (["smoke", "--guard-zzz"], "`guarded-serve smoke --help` shows what it takes"),
        (["profile", "nwe", "--model-path", "m"], "did you mean new?"),
        (["profile", "shwo"], "did you mean show?"),
        (["profile", "zebra"], "there are new, show, schema"),
        (["profile", "--profile", P], "expected an action before --profile"),
        (["profile"], "actions:"),
        (["profile", "schema", "--formt"], "it does not take --formt"),
        (["profile", "schema", "--profile", P], "it does not take --profile"),
        (["profile", "new", "--ouput", P, "--guard-ouput"], "it does not take --guard-ouput"),
        (["repotr"], "did you mean report?"),
        (["tpo"], "did you mean top?"),
        ([P], f"`guarded-serve launch --profile {P}` serves it"),
        (["inspect", "a", P], f"unrecognized arguments: {P}"),
        (["inspect", "a", "--profile", P], "it does not take --profile"),
        (["check", "--format", "jsno"], "did you mean json?"),
        (["check", "--only", "gpus"], "did you mean gpu?"),
        (["launch", "--guard-log-format", "xml"], "choose from"),
    ],
)
def test_what_was_meant(argv: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert hint in captured.out + captured.err


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["profiles/demo-cpu.toml"], "a profile has a flag before it: --profile profiles/demo-cpu.toml"),
        (["--model-path", "m", "word"], "`guarded-serve launch --help` lists the flags"),
    ],
)
@pytest.mark.parametrize(
    "command", [["check", "--only", "profile"], ["launch", "--guard-dry-run"], ["smoke"], ["holders"]]
)
def test_a_word_that_no_flag_takes(
    command: list[str],
    argv: list[str],
    hint: str,
    installed: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No SGLang takes one, so this is an error where none is installed as well."""
    monkeypatch.setattr(resolve, "sglang_parser", lambda: replace(snapshot(), installed=installed))
    assert cli.main([*command, *argv]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert hint in captured.out + captured.err


def test_a_flag_of_ours_may_be_meant_by_one_that_sglang_does_not_know(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "sglang_parser", lambda: replace(snapshot(), installed=True))
    for argv, hint in (
        (["check", "--only", "profile", "--formta", "json"], "did you mean --format for --formta?"),
        (["smoke", "--draftre", "d"], "did you mean --drafter for --draftre?"),
        (["launch", "--guard-dry-run", "--gaurd-cycles", "d"], "did you mean --guard-cycles for --gaurd-cycles?"),
        (["launch", "--guard-dry-run", "--prot", "1"], "did you mean --port for --prot?"),
    ):
        assert cli.main([*argv, "--model-path", "m"]) == ExitCode.USAGE, argv
        captured = capsys.readouterr()
        assert hint in captured.out + captured.err


@pytest.mark.parametrize(
    "argv",
    [
        ["check", "--profile="],
        ["launch", "--profile", ""],
        ["report", "--profile="],
        ["launch", "--guard-cycles=", "--model-path", "m"],
        ["check", "--guard-ignore=", "--model-path", "m"],
        ["smoke", "--drafter=", "--model-path", "m"],
        ["inspect", ""],
        ["profile", "new", "--output=", "--model-path", "m"],
    ],
)
def test_an_empty_value_is_none(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`--profile=$UNSET` must not launch without the profile."""
    assert cli.main(argv) == ExitCode.USAGE
    assert ", found nothing" in capsys.readouterr().err


def test_each_action_has_its_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for action in ("new", "show", "schema"):
        assert cli.main(["profile", action, "--help"]) == ExitCode.OK
        shown[action] = capsys.readouterr().out
        assert f"usage: guarded-serve profile {action} " in shown[action]
    has = {
        flag: [action for action in shown if flag in shown[action]]
        for flag in ("--name", "--all", "--output", "--profile")
    }
    assert has == {
        "--name": ["new"],
        "--all": ["show"],
        "--output": ["new", "show", "schema"],
        "--profile": ["new", "show"],
    }
    assert cli.main(["profile", "--help"]) == ExitCode.OK
    overview = capsys.readouterr().out
    assert all(f"\n  {action}" in overview for action in shown)


def test_the_package_runs_as_the_console_script_does() -> None:
    for argv, code in ((["--version"], 0), (["chekc"], 64)):
        done = subprocess.run(
            [sys.executable, "-m", "guarded_serve", *argv], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == code
        assert (done.stdout + done.stderr).startswith("guarded-serve")


def test_own_flags_are_taken_whole_and_the_rest_goes_on(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(
        commands,
        "check",
        "print(options.only, options.profile, options.guard_cycles, options.guard_ignore, sglang_flags)\nreturn 65",
        'parser.add_argument("--only")',
    )
    argv = (
        "check --tp-size 8 --profile a.toml --lora-paths x y --guard-cycles=d --on z --only gpu --prof q "
        "--guard-ignore a.b --guard-ignore c.d --model-path -- --profile"
    )
    assert cli.main(argv.split()) == ExitCode.REFUSED
    assert capsys.readouterr().out.strip() == (
        "gpu a.toml d ['a.b', 'c.d'] "
        "['--tp-size', '8', '--lora-paths', 'x', 'y', '--on', 'z', '--prof', 'q', '--model-path', '--', '--profile']"
    )


def test_words_belong_to_the_command_until_sglang_s_flags_begin() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--baseline", action="append")
    parser.add_argument("--many", nargs="*")
    own, rest = cli.split(["a", "--baseline", "1=2", "b", "--many", "x", "y", "--tp-size", "8", "c"], parser)
    assert own == ["a", "--baseline", "1=2", "b", "--many", "x", "y"]
    assert rest == ["--tp-size", "8", "c"]


def test_a_fault_of_ours_is_one_line_and_70(
    commands: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command(commands, "check", "raise ValueError('boom')")
    assert cli.main(["check"]) == ExitCode.INTERNAL
    error = capsys.readouterr().err
    assert "ValueError: boom (check.py:7)" in error
    assert "please report" in error
    assert "Traceback" not in error
    monkeypatch.setenv("GUARDED_SERVE_DEBUG", "1")
    assert cli.main(["check"]) == ExitCode.INTERNAL
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_an_interrupt_and_not_a_verdict() -> None:
    script = (
        "import sys; from guarded_serve import cli\n"
        "def stop(argv): raise KeyboardInterrupt\n"
        "cli._dispatch = stop; sys.exit(cli.main([]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_closed_pipe_is_no_fault() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    script = "import sys; from guarded_serve import cli; sys.exit(cli.main(['--help']))"
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_every_real_command_has_what_the_dispatcher_needs() -> None:
    names = [name for name in cli.available() if name != "profile"]
    assert cli.available()["profile"] == importlib.import_module("guarded_serve.commands.profile").SUMMARY
    for name in (*names, *(f"profile.{action}" for action in ("new", "show", "schema"))):
        module = importlib.import_module(f"guarded_serve.commands.{name}")
        assert module.SUMMARY
        assert name.startswith("profile.") or cli.available()[name] == module.SUMMARY
        parser = argparse.ArgumentParser(conflict_handler="resolve")
        module.add_arguments(parser)
        assert callable(module.run)


def test_no_guard_flag_is_one_of_sglang_s_or_a_prefix_of_one() -> None:
    for option in GUARD_OPTIONS:
        for action in snapshot().actions:
            assert not any(theirs.startswith(option.flag) for theirs in action.options)


def test_guard_options_from_a_parser_with_all_and_with_few() -> None:
    full = argparse.ArgumentParser(allow_abbrev=False)
    add_guard_options(full)
    argv = "--profile p --guard-dry-run --guard-cycles c --guard-ignore a --guard-cpu-kernels --guard-strict"
    options = GuardOptions.from_namespace(full.parse_args([*argv.split(), "--guard-log-format", "json"]))
    assert options == GuardOptions(Path("p"), True, Path("c"), ("a",), True, True, "json")
    few = argparse.ArgumentParser()
    add_guard_options(few, profile_only=True)
    assert GuardOptions.from_namespace(few.parse_args([])) == GuardOptions()


def test_the_real_commands_are_back_afterwards() -> None:
    """A stand-in left behind would be what every later test imports."""
    from guarded_serve.commands import report  # noqa: PLC0415

    assert Path(report.__file__).parent == Path(cli.__file__).with_name("commands")


def command(folder: Path, name: str, body: str, arguments: str = "pass") -> None:
    (folder / f"{name}.py").write_text(
        f'SUMMARY = "the {name} of the test"\n\ndef add_arguments(parser):\n    {arguments}\n\n'
        f"def run(options, sglang_flags):\n{textwrap.indent(body, '    ')}\n"
    )
