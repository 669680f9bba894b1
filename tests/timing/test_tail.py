"""Following a log that grows, rotates and is restarted."""

from __future__ import annotations

from pathlib import Path

from guarded_serve.timing.record import Cycle, file_name
from guarded_serve.timing.tail import Tail

LINE = Cycle(1000.0, 0, 1, 1, 3, 4, 2.0, 20.0, 2.0, 25.0, 30.0, [2], "cuda-event").to_line()


def _cycles(tail: Tail) -> dict[int, int]:
    return {rank: totals.speculative[1].cycles for rank, totals in tail.read().items() if totals.speculative}


def test_growth_rotation_and_half_lines(tmp_path: Path) -> None:
    first, tail = tmp_path / file_name(0, 1), Tail(tmp_path)
    assert _cycles(tail) == {}
    first.write_text(LINE * 2)
    assert _cycles(tail) == {0: 2}
    with first.open("a") as stream:
        stream.write(LINE + LINE[:20])
        stream.flush()
        assert _cycles(tail) == {0: 3}
        stream.write(LINE[20:] + LINE)
    (tmp_path / file_name(0, 2)).write_text(LINE)
    (tmp_path / file_name(5, 1)).write_text(LINE * 7)
    assert _cycles(tail) == {0: 6, 5: 7}, "the old file's end is read before the new one"
    first.unlink()
    assert _cycles(tail) == {0: 6, 5: 7}


def test_a_long_log_is_not_read_from_its_beginning(tmp_path: Path) -> None:
    (tmp_path / file_name(0, 1)).write_text(LINE * 20_000)
    seen = _cycles(Tail(tmp_path))[0]
    assert 0 < seen <= (1 << 20) // len(LINE)
