"""A cycle as a JSON line, there and back."""

from __future__ import annotations

import json

import pytest

from guarded_serve.timing.record import FILE_NAME, Cycle, file_name

FULL = Cycle(1796172898.336575, 3, 298, 3, 3, 4, 0.56, 5.8, 0.38, 6.75, 6.9, [1, 4, 2], "cuda-event", [1], 2, False)


def test_round_trip() -> None:
    assert Cycle.from_line(FULL.to_line()) == FULL


def test_fields_of_the_contract() -> None:
    """The names and order that every reader relies on; optional fields only where they say something."""
    bare = FULL._replace(dropped=(), cut=0)
    assert list(json.loads(bare.to_line())) == [
        *("t", "rank", "forward", "bs", "steps", "draft_tokens"),
        *("draft_ms", "verify_ms", "extend_ms", "gpu_ms", "period_ms", "accept", "source"),
    ]
    assert json.loads(FULL.to_line())["dropped"] == [1]
    assert json.loads(bare._replace(plain=True).to_line())["plain"] is True


def test_what_did_not_run_is_null() -> None:
    line = FULL._replace(draft_ms=None, extend_ms=None, period_ms=None).to_line()
    assert json.loads(line)["draft_ms"] is None
    assert json.loads(line)["period_ms"] is None


def test_kept_leaves_dropped_rows_out() -> None:
    assert FULL.kept() == [1, 2]
    assert FULL._replace(dropped=()).kept() == [1, 4, 2]


def test_wrong_records_are_refused() -> None:
    value = json.loads(FULL.to_line())
    with pytest.raises(ValueError, match="not what it should be"):
        Cycle.from_line(json.dumps({**value, "accept": [1]}))
    with pytest.raises(ValueError, match="verify_ms"):
        Cycle.from_line(json.dumps({key: entry for key, entry in value.items() if key != "verify_ms"}))


def test_file_names_carry_rank_and_number() -> None:
    match = FILE_NAME.match(file_name(12, 7))
    assert match is not None
    assert (match["rank"], match["sequence"]) == ("12", "000007")
    assert FILE_NAME.match("cycles-0.jsonl") is None
