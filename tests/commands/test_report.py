"""``guarded-serve report``, as its command module runs it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from guarded_serve.commands import report
from guarded_serve.commands._cycle_source import baseline
from guarded_serve.timing.record import Cycle, file_name

CYCLE = Cycle(1000.0, 0, 1, 1, 3, 4, 2.0, 20.0, 2.0, 25.0, 30.0, [2], "cuda-event")


def _run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    return report.run(parser.parse_args(arguments), [])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Ten cycles of the founding case: 30 ms, accept length 2.0."""
    path = tmp_path / file_name(0, 1)
    path.write_text("".join(CYCLE._replace(t=1000 + i * 0.03, forward=i).to_line() for i in range(10)))
    return path


def test_json_has_shares_and_break_even(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(str(log), "--baseline", "1=82", "--format", "json") == 0
    (entry,) = json.loads(capsys.readouterr().out)["batch_sizes"]
    assert entry["break_even"] == pytest.approx(2.46)
    assert entry["accept_length"] == 2.0
    assert entry["tok_s"] == pytest.approx(66.667, abs=1e-3)
    assert entry["gain"] == pytest.approx(-0.187, abs=1e-3)
    assert entry["margin"] == pytest.approx(-0.46)
    assert entry["verify_share"] == pytest.approx(20 / 30, abs=1e-6)
    assert entry["draft_share"] == entry["extend_share"] == pytest.approx(2 / 30, abs=1e-6)
    assert entry["other_share"] == pytest.approx(6 / 30, abs=1e-6)
    assert entry["verify_ms"]["p50"] == pytest.approx(20.0, rel=0.003)
    assert entry["accept_by_position"] == [1.0]


def test_text_names_the_figures(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(str(log.parent), "--baseline", "1=82") == 0
    out = capsys.readouterr().out
    assert "batch size 1, steps 3: 10 cycles" in out
    assert "break-even at 2.460" in out
    assert "gain -18.7%" in out


def test_without_a_baseline_there_is_no_break_even(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(str(log), "--format", "json") == 0
    (entry,) = json.loads(capsys.readouterr().out)["batch_sizes"]
    assert entry["break_even"] is None
    assert entry["gain"] is None


def test_plain_cycles_in_the_log_are_the_baseline(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plain step of 12.195 ms is 82 tok/s."""
    with log.open("a") as stream:
        plain = CYCLE._replace(steps=0, draft_tokens=1, draft_ms=None, extend_ms=None, accept=[1], plain=True)
        stream.write(plain._replace(verify_ms=12.0, gpu_ms=12.0, period_ms=1000 / 82).to_line())
    assert _run(str(log), "--format", "json") == 0
    speculative, plain_entry = json.loads(capsys.readouterr().out)["batch_sizes"]
    assert speculative["break_even"] == pytest.approx(2.46, abs=1e-4)
    assert speculative["baseline_from"] == "plain cycles in this log"
    assert plain_entry["plain"] is True
    assert plain_entry["break_even"] is None


def test_dropped_rows_are_not_counted(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with log.open("a") as stream:
        stream.write(CYCLE._replace(accept=[4], dropped=[0]).to_line())
    assert _run(str(log), "--format", "json") == 0
    (entry,) = json.loads(capsys.readouterr().out)["batch_sizes"]
    assert (entry["rows"], entry["dropped_rows"], entry["accept_length"]) == (10, 1, 2.0)


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [(None, 66, "does not exist"), ("", 66, "no cycle record"), ("hello\n", 66, "1 lines are something else")],
)
def test_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, code: int, message: str
) -> None:
    path = tmp_path / "log.jsonl"
    if content is not None:
        path.write_text(content)
    assert _run(str(path)) == code
    err = capsys.readouterr().err
    assert message in err
    assert "log.jsonl" in err


def test_a_folder_without_cycles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(str(tmp_path)) == 66
    assert "holds no cycle file" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["82", "1:82", "0=82", "1=0", "1=nan", "one=82", "1=-3"])
def test_a_wrong_baseline_says_what_is_right(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not BS=TOK_S"):
        baseline(text)


def test_a_name_that_is_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("x" * 300) == 66
    assert "cannot be read: File name too long" in capsys.readouterr().err
