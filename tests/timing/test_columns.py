"""Blocks of lines give what the same lines give one by one, whatever is among them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guarded_serve.timing.columns import absorb
from guarded_serve.timing.reader import cycles, summarise
from guarded_serve.timing.record import Cycle, file_name, read_line
from guarded_serve.timing.summary import Summary
from guarded_serve.timing.tail import Tail

MS = st.one_of(st.none(), st.floats(min_value=0, max_value=5000).map(lambda value: round(value, 4)))


@st.composite
def _cycles(draw: st.DrawFn) -> Cycle:
    bs = draw(st.integers(1, 3))
    plain = draw(st.booleans())
    return Cycle(
        draw(st.floats(min_value=1.7e9, max_value=1.7e9 + 40).map(lambda t: round(t, 6))),
        draw(st.integers(0, 1)),
        draw(st.integers(1, 99)),
        bs,
        draw(st.integers(2, 3)),
        4,
        draw(MS),
        draw(MS),
        draw(MS),
        draw(MS.filter(lambda value: value is not None)),
        draw(MS),
        draw(st.lists(st.integers(1, 4), min_size=bs, max_size=bs)),
        "cuda-event",
        draw(st.lists(st.integers(0, bs - 1), unique=True, max_size=bs)),
        draw(st.integers(0, 2)),
        plain,
    )


PAIR = Cycle(1.7e9, 0, 1, 2, 3, 4, 1.0, 1.0, 1.0, 1.0, 1.0, [1, 1], "cuda-event").to_line().strip()
STRANGE_LINES = [
    "nonsense",
    "{}",
    "[1]",
    Cycle(1.0, 0, 1, 2, 3, 4, 1.0, 1.0, 1.0, 1.0, 1.0, [1], "cuda-event").to_line().strip(),
    Cycle(1.7e9, 0, 1, 1, 3, 4, 1.0, 1.0, 1.0, 1.0, 1.0, [1], "cuda-event")
    .to_line()
    .strip()
    .replace("1.0000", "1.0.0"),
    Cycle(1.7e9, 0, 1, 2, 3, 4, 1.0, 1.0, 1.0, 1.0, 1.0, [1, 1], "cuda-event").to_line().strip().replace("1,1]", "1,]"),
    *(
        PAIR.replace(what, other, 1)
        for what, other in (
            ('"t":1700000000.000000', '"t":Infinity'),
            ('"t":1700000000.000000', '"t":NaN'),
            ('"t":1700000000.000000', '"t":1e999'),
            ('"t":1700000000.000000', '"t":"now"'),
            ('"gpu_ms":1.0000', '"gpu_ms":1e999'),
            ('"gpu_ms":1.0000', '"gpu_ms":-Infinity'),
            ('"gpu_ms":1.0000', '"gpu_ms":' + "9" * 400),
            ('"gpu_ms":1.0000', '"gpu_ms":' + "9" * 400 + ".0"),
            ('"draft_ms":1.0000', '"draft_ms":true'),
            ('"steps":3', '"steps":' + "9" * 400),
            ('"steps":3', '"steps":[3]'),
            ('"forward":1', '"forward":' + "9" * 5000),
            ('"forward":1,', ""),
            ('"rank":0', '"rank":"0"'),
            ('"rank":0', '"rank":null'),
            ('"accept":[1,1]', '"accept":[1,999999999]'),
            ('"accept":[1,1]', '"accept":[1,1.5]'),
            ('"accept":[1,1]', '"accept":"11"'),
            ('"source":"cuda-event"', '"source":{}'),
            ('"source":"cuda-event"', '"source":"cuda-event","dropped":[[]]'),
            ('"source":"cuda-event"', '"source":"cuda-event","plain":[]'),
        )
    ),
    "[" * 100_000,
]
STRANGE = st.sampled_from(STRANGE_LINES)


@pytest.mark.parametrize("number", range(len(STRANGE_LINES)))
def test_what_is_no_record_is_counted_as_bad_and_changes_nothing(number: int, tmp_path: Path) -> None:
    """In a report, in the live view, and one by one."""
    good = PAIR + "\n"
    path = tmp_path / file_name(0, 1)
    path.write_text(good + STRANGE_LINES[number] + "\n" + good)
    summary, alone = summarise([path]), Summary()
    alone.add(read_line(PAIR))
    alone.add(read_line(PAIR))
    alone.bad_lines = 1
    assert _comparable(summary) == _comparable(alone)
    assert Tail(tmp_path).read()[0].speculative[2].cycles == 2
    assert len(list(cycles(path))) == 2


def _comparable(summary: Summary) -> dict[str, Any]:
    value = asdict(summary)
    value["slowest"] = sorted(entry[0] for entry in value["slowest"])
    return value


@given(st.lists(st.one_of(_cycles().map(lambda cycle: cycle.to_line().strip()), STRANGE), max_size=60))
def test_the_same_as_one_by_one(lines: list[str]) -> None:
    block, single = Summary(), Summary()
    absorb(block, "".join(line + "\n" for line in lines).encode())
    for line in lines:
        try:
            record = read_line(line)
        except ValueError:
            single.bad_lines += 1
        else:
            single.add(record)
    _assert_close(_comparable(block), _comparable(single))


def _assert_close(one: Any, other: Any) -> None:
    """Equal, floats up to the order in which they were added."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _assert_close(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            _assert_close(mine, theirs)
    elif isinstance(one, float):
        assert one == pytest.approx(other)
    else:
        assert one == other


def test_the_engines_own_lines_take_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the line format and the expression drift apart, a report takes four times as long; this notices."""
    from guarded_serve.timing import columns  # noqa: PLC0415

    monkeypatch.setattr(columns, "_single", lambda *_: pytest.fail("the long way"))
    summary = Summary()
    line = Cycle(1.7e9, 0, 1, 2, 3, 4, None, 6.0, 0.5, 7.6, None, [3, 4], "cpu-clock").to_line()
    columns.absorb(summary, line.encode())
    assert summary.records == 1
