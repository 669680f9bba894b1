"""An error names file or flag, what was expected, what was found and the mend, whichever command it meets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guarded_serve import cli
from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile import resolve
from guarded_serve.profile.load import load_profile
from guarded_serve.profile.sglang_parser import snapshot

NOBODY = 65534


@pytest.fixture(autouse=True)
def as_if_sglang_were_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "sglang_parser", lambda: replace(snapshot(), installed=True))


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = cli.main(list(argv))
    captured = capsys.readouterr()
    return code, re.sub(r" +", " ", captured.out + captured.err)


CHECK = ("check", "--only", "profile")
GOOD = '[server]\nmodel_path = "m"\n'


@pytest.mark.parametrize("command", [CHECK, ("launch", "--guard-dry-run"), ("profile", "show"), ("smoke",)])
@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (("--port", "abc"), ("--port", "expected: an integer", "found: 'abc'", "remedy: give --port an integer")),
        (("--load-format", "auot"), ("--load-format", 'one of "auto"', "found: 'auot'", "remedy: did you mean auto?")),
        (("--tp-size",), ("--tp-size", "expected: an integer", "found: no value", "remedy: give --tp-size")),
        (("--frobnicate",), ("--frobnicate", "expected: flags of SGLang", "found: --frobnicate", "remedy: `guarded-")),
    ],
)
def test_a_wrong_flag(
    command: tuple[str, ...],
    flags: tuple[str, ...],
    parts: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, text = said(capsys, *command, "--model-path", "m", *flags)
    assert code == ExitCode.USAGE
    assert "command line" in text
    assert [part for part in parts if part not in text] == []


def test_a_check_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, *CHECK, "--model-path", "m", "--guard-ignore", "gpu.ecc2")
    assert code == ExitCode.USAGE
    for part in ("--guard-ignore", "expected: the name of a check", "found: gpu.ecc2", "remedy: did you mean gpu.ecc?"):
        assert part in text


@pytest.mark.parametrize(
    ("content", "code", "parts"),
    [
        (GOOD + '[timing]\nkeep = "x"\n', 78, ("x.toml:4", "timing.keep", "an integer", '"x"', "the default is 40")),
        (b'[server]\nmodel_path = "\xff"\n', 78, ("x.toml:2", "expected: UTF-8", "the byte 0xff", "save it as UTF-8")),
        (None, 66, ("x.toml", "expected: a TOML file", "found: nothing of that", "remedy: `guarded-serve profile new")),
        ("folder", 78, ("x.toml", "expected: a TOML file", "found: a folder", "name a file in it, such as")),
    ],
)
@pytest.mark.parametrize("command", [CHECK, ("launch", "--guard-dry-run"), ("smoke",), ("report",), ("top",)])
def test_a_wrong_profile(
    command: tuple[str, ...],
    content: str | bytes | None,
    code: int,
    parts: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "x.toml"
    if content == "folder":
        path.mkdir()
        (path / "inside.toml").touch()
    elif content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    found, text = said(capsys, *command, "--profile", str(path))
    assert found == (64 if command == ("smoke",) else code)  # smoke has no drafter to test either, and 64 stands first
    assert [part for part in (*parts, "expected:", "found:", "remedy:") if part not in text] == []


@pytest.mark.parametrize(
    ("argv", "code", "parts"),
    [
        (("report", "nothere"), 66, ("nothere does not exist", "a folder that holds cycles-", "timing.directory")),
        (("report", "cycels"), 66, ("did you mean cycles?",)),
        (("report", "cycles"), 66, ("cycles holds no cycle file", "found: none")),
        (("report", "x.toml"), 66, ("2 lines are something else", "has a flag before it: --profile x.toml")),
        (("report",), 64, ("no cycle log is named", "found: neither")),
        (("report", "--profile", "x.toml"), 64, ("found: a profile without timing.directory",)),
        (("top", "nothere"), 66, ("nothere does not exist", "timing.directory")),
        (("top", "x.toml"), 64, ("is not one folder", "has a flag before it: --profile x.toml")),
        (("smoke",), 64, ("there is no drafter to test", "no model is given", "found: no profile", "--profile FILE")),
        (
            ("smoke", "--profile", "drafter.toml", "--report", "/proc/report"),
            77,
            ("--report: this user can make nothing in /proc", "found: No such file or directory"),
        ),
        (("smoke", "--profile", "drafter.toml", "--record", "x.toml/r.json"), 77, ("--record: this user can make no",)),
        (("smoke", "--profile", "drafter.toml", "--prompts", "no.jsonl"), 66, ("no prompts file no.jsonl", "builtin")),
        (("smoke", "--profile", "x.toml"), 64, ("found: the profile x.toml, without one",)),
    ],
)
def test_nothing_to_work_on(
    argv: tuple[str, ...],
    code: int,
    parts: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cycles").mkdir()
    Path("x.toml").write_text(GOOD)
    drafter = 'speculative_algorithm = "EAGLE3"\nspeculative_draft_model_path = "d"\n'
    Path("drafter.toml").write_text(GOOD + drafter)
    found, text = said(capsys, *argv)
    assert found == code
    assert [part for part in (*parts, "expected:", "found:", "remedy:") if part not in text] == []


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("closed", ["file", "folder"])
def test_another_users_profile(tmp_path: Path, closed: str) -> None:
    """The loader's answer where the kernel really says no; root itself is never told no."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own folders are closed to others as a whole
    try:
        path = folder / "x.toml"
        path.write_text(GOOD)
        path.chmod(0o600 if closed == "file" else 0o644)
        folder.chmod(0o700 if closed == "folder" else 0o755)
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            (finding,) = load_profile(path).findings
            told = finding.expected and finding.found == "Permission denied" and f"user {NOBODY}" in str(finding.remedy)
            os._exit(finding.exit_code if told else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == ExitCode.PERMISSION
        assert load_profile(path).findings == ()
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("command", [CHECK, ("launch", "--guard-dry-run"), ("report",), ("profile", "show")])
def test_a_profile_that_may_not_be_read_is_77(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.toml"
    path.write_text(GOOD)

    def refused(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refused)
    code, text = said(capsys, *command, "--profile", str(path))
    assert code == ExitCode.PERMISSION
    assert "may not be read" in text
    assert "remedy: let user" in text


def test_a_config_file_that_may_not_be_read_is_77(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("tp-size: 2\n")

    read = Path.read_text

    def refused(self: Path, *args: Any, **options: Any) -> str:
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return read(self, *args, **options)

    asked = ["--model-path", "m", "--config", str(path)]
    assert resolve.resolve(None, asked, environ={}).exit_code() is ExitCode.OK
    monkeypatch.setattr(Path, "read_text", refused)
    assert resolve.resolve(None, asked, environ={}).exit_code() is ExitCode.PERMISSION


def test_the_console_script_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "guarded_serve", "report", "nothere"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (ExitCode.MISSING, False)
    assert done.stderr.startswith("guarded-serve report: nothere does not exist\n    expected: ")


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("modl-path: m", "did you mean --model-path for --modl-path?"),
        ("guard-cycles: d", "`guarded-serve launch --help` lists the flags"),
        ("profil: x.toml", "`guarded-serve launch --help` lists the flags"),
    ],
)
def test_a_config_file_takes_none_of_the_guards_own_flags(
    tmp_path: Path, line: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"{line}\n")
    code, text = said(capsys, *CHECK, "--model-path", "m", "--config", str(path))
    assert code == ExitCode.USAGE
    assert f"remedy: {remedy}" in text
    assert "guarded-serve, each" not in text


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("--profle", "x.toml"), "did you mean --profile for --profle?"),
        (
            ("--profle=x", "y.toml"),
            "did you mean --profile for --profle? a profile has a flag before it: --profile y.toml",
        ),
        (("x.toml",), "a profile has a flag before it: --profile x.toml"),
    ],
)
def test_what_follows_an_unknown_flag_is_its_value(
    words: tuple[str, ...], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text = said(capsys, *CHECK, "--model-path", "m", *words)
    assert f"remedy: {remedy}\n" in text


@pytest.mark.parametrize("command", [("launch", "--guard-dry-run"), ("profile", "show")])
@pytest.mark.parametrize("key", [("--api-key", "sk-12345678"), ("--api-key=sk-12345678",)])
def test_no_secret_is_shown_of_a_refused_command_line(
    command: tuple[str, ...], key: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, *command, "--model-path", "m", *key, "--ssl-keyfile", "/etc/key.pem", "--frobnicate")
    assert code == ExitCode.USAGE
    assert "sk-12345678" not in text
    assert "--ssl-keyfile /etc/key.pem" in text
