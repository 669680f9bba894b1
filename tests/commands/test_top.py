"""``guarded-serve top`` on a log that a thread writes."""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path

import pytest

from guarded_serve.commands import top
from guarded_serve.timing.record import Cycle, file_name

CYCLE = Cycle(1000.0, 0, 1, 1, 3, 4, 2.0, 20.0, 2.0, 25.0, 30.0, [2], "cuda-event")


def _run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile")
    top.add_arguments(parser)
    return top.run(parser.parse_args(arguments), [])


def test_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    path = tmp_path / file_name(0, 1)
    path.write_text(CYCLE.to_line())

    def write() -> None:
        time.sleep(0.3)
        with path.open("a") as stream:
            stream.write(CYCLE.to_line() * 10)

    writer = threading.Thread(target=write)
    writer.start()
    assert _run(str(tmp_path), "--once", "--window", "1", "--baseline", "1=82") == 0
    writer.join()
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.strip().startswith("1 "))
    for figure in ("10.0", "30.00", "20.00", "2.46", "-18.7%", "66.7"):
        assert figure in row


def test_before_the_first_cycle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(str(tmp_path), "--once", "--window", "0.1") == 0
    assert "no cycle yet" in " ".join(capsys.readouterr().out.split())


def test_the_profile_says_where_and_what_the_baseline_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "profile.toml"
    profile.write_text(
        f'[server]\nmodel_path = "/m"\n[timing]\ndirectory = "{tmp_path}"\n'
        "[break_even]\nbaseline_tok_s = { 1 = 82.0 }\n"
    )
    assert _run("--profile", str(profile), "--once", "--window", "0.1") == 0
    assert str(tmp_path) in "".join(capsys.readouterr().out.split())  # a long one wraps


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["/nowhere/at/all"], 66, "does not exist"),
        ([], 64, "no cycle log is named"),
        (["/dev/null"], 64, "is not one folder"),
        (["x" * 300], 66, "File name too long"),
        (["/dev/null/x"], 66, "does not exist"),
        (["/tmp", "--window", "0"], 64, "above 0"),
        (["--profile", "/nowhere.toml"], 66, "/nowhere.toml"),
    ],
)
def test_wrong_use(arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(*arguments) == code
    assert message in capsys.readouterr().err


def test_a_folder_that_goes_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cycles"
    folder.mkdir()
    monkeypatch.setattr(time, "sleep", lambda _: folder.rmdir())
    assert _run(str(folder), "--once") == 66
    assert f"{folder} does not exist" in capsys.readouterr().err


def test_output_that_cannot_be_written_is_no_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("rich.console.Console.print", closed)
    with pytest.raises(BrokenPipeError):
        _run(str(tmp_path), "--once", "--window", "0.1")
