"""Files to a summary: streaming, in parts, and through what crashes and strangers leave in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guarded_serve.timing import reader
from guarded_serve.timing.record import Cycle, file_name
from guarded_serve.timing.summary import Summary

BASE = Cycle(1000.0, 0, 1, 2, 3, 4, 1.0, 6.0, 0.5, 7.6, 8.0, [3, 4], "cpu-clock")


def _lines(count: int) -> list[str]:
    return [
        BASE._replace(
            t=1000 + i / 10, forward=i, verify_ms=6 + (i % 7) / 10, gpu_ms=7 + i / 100, accept=[1 + i % 4, 1]
        ).to_line()
        for i in range(count)
    ]


def _summary(path: Path) -> Summary:
    return reader.summarise([path])


def test_a_cut_last_line_is_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / file_name(0, 1)
    lines = _lines(3)
    path.write_text("".join(lines)[:-10])
    summary = _summary(path)
    assert (summary.records, summary.cut_lines, summary.bad_lines) == (2, 1, 0)
    assert [cycle.forward for cycle in reader.cycles(path)] == [0, 1]


def test_a_broken_line_hides_no_other(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    wrong = json.loads(BASE.to_line())
    del wrong["verify_ms"]
    lines = _lines(4)
    path.write_text(
        "".join([lines[0], "not json\n", lines[1], json.dumps(wrong) + "\n", '{"t":1},{"t":2}\n', "17\n", *lines[2:]])
    )
    summary = _summary(path)
    assert (summary.records, summary.bad_lines) == (4, 4)


def test_a_record_of_wrong_types_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    wrong = {**json.loads(BASE.to_line()), "extend_ms": "soon"}
    path.write_text(BASE.to_line() + json.dumps(wrong) + "\n")
    summary = _summary(path)
    assert (summary.records, summary.bad_lines) == (1, 1)
    assert summary.batches[(2, False)].totals.cycles == 1


@pytest.mark.parametrize("size", [1, 97, 500, 4096])
def test_parts_of_any_size_are_the_whole(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line is read exactly once, wherever the parts' edges fall."""
    path = tmp_path / file_name(0, 1)
    path.write_text("".join(_lines(60)))
    whole = _summary(path)
    monkeypatch.setattr(reader, "BLOCK", 64)
    length = path.stat().st_size
    merged = Summary()
    for start in range(0, length, size):
        merged.merge(reader._summarise_part(reader._Part(path, start, start + size)))
    assert merged.records == whole.records == 60
    assert merged.bad_lines == 0
    ours, theirs = merged.batches[(2, False)].totals, whole.batches[(2, False)].totals
    assert ours.accept_counts == theirs.accept_counts
    assert ours.verify_ms == pytest.approx(theirs.verify_ms)
    assert (merged.first_t, merged.last_t) == (whole.first_t, whole.last_t)
    assert sorted(merged.slowest) == sorted(whole.slowest)


def test_several_processes_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / file_name(0, 1)
    path.write_text("".join(_lines(500)))
    whole = _summary(path)
    monkeypatch.setattr(reader, "PART", 20_000)
    assert path.stat().st_size > 2 * 20_000
    spread = _summary(path)
    assert spread.records == whole.records
    assert spread.batches[(2, False)].totals.accept_counts == whole.batches[(2, False)].totals.accept_counts


def test_files_of_a_folder_in_order(tmp_path: Path) -> None:
    for name in (file_name(1, 1), file_name(0, 10), file_name(0, 9), "other.jsonl"):
        (tmp_path / name).write_text(BASE.to_line())
    assert [path.name for path in reader.find_files([tmp_path])] == [file_name(0, 9), file_name(0, 10), file_name(1, 1)]


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(reader.NoCycles, match="holds no cycle file"):
        reader.find_files([tmp_path])
    with pytest.raises(FileNotFoundError):
        reader.find_files([tmp_path / "missing"])
