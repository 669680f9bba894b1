"""The break-even watch knows what the last smoke test recorded."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.profile.model import Profile
from guarded_serve.supervisor.economy import Economy
from guarded_serve.timing.alarm import Reason
from guarded_serve.timing.record import Cycle
from guarded_serve.timing.reference import KIND, VERSION
from guarded_serve.timing.totals import Totals

RECORD: dict[str, Any] = {
    "kind": KIND,
    "version": VERSION,
    "batch_sizes": {"1": {"accept_length": 2.6, "period_ms": 30.0, "baseline_tok_s": 82.0}},
}


def _profile(record: Path | None, **break_even: Any) -> Profile:
    content: dict[str, Any] = {"server": {"model_path": "/m"}, "break_even": {"patience_s": 20, **break_even}}
    if record is not None:
        content["smoke"] = {"record": str(record)}
    return Profile.model_validate(content)


def _lose(economy: Economy) -> list[Any]:
    """Cycles of 30 ms at accept length 2.0, for half a minute; what the watch says in each window."""
    totals, said = Totals(), []
    cycle = Cycle(0.0, 0, 1, 1, 3, 4, 2.0, 20.0, 2.0, 25.0, 30.0, [2], "cuda-event")
    for window in range(4):
        for _ in range(300):
            totals.add(cycle)
        economy.totals({"rank": 0, "t": 1000.0 + 10 * window, "left": 0, "totals": totals.to_mapping()})
        said.append(economy.take()[1])
    return [verdict for verdict in said if verdict is not None]


def test_reason_and_baseline_come_from_the_record(tmp_path: Path) -> None:
    record = tmp_path / "smoke.json"
    record.write_text(json.dumps(RECORD))
    (verdict,) = _lose(Economy(_profile(record), lambda: "serving"))
    assert verdict.reason is Reason.ACCEPT_LENGTH
    assert verdict.break_even == pytest.approx(2.46)


def test_the_profiles_own_baseline_goes_first(tmp_path: Path) -> None:
    record = tmp_path / "smoke.json"
    record.write_text(json.dumps(RECORD))
    assert _lose(Economy(_profile(record, baseline_tok_s={1: 50.0}), lambda: "serving")) == []


@pytest.mark.parametrize("content", [None, "no json", '{"kind": "other", "version": 1}'])
def test_without_a_usable_record_the_reason_is_unknown(tmp_path: Path, content: str | None) -> None:
    record = tmp_path / "smoke.json"
    if content is not None:
        record.write_text(content)
    (verdict,) = _lose(Economy(_profile(record, baseline_tok_s={1: 82.0}), lambda: "serving"))
    assert verdict.reason is Reason.UNKNOWN


def test_what_eight_ranks_told_stays_small() -> None:
    """The launcher as a whole may take 60 MB; forty batch sizes come up, one of them runs at a time."""
    economy, sizes = Economy(_profile(None), lambda: "serving"), range(1, 41)
    cycle = Cycle(0.0, 0, 1, 1, 3, 4, 2.0, 20.0, 2.0, 25.0, 30.0, [2], "cuda-event")
    totals = Totals()
    for bs in sizes:
        totals.add(cycle._replace(bs=bs, accept=[2] * bs))
    for rank in range(8):
        economy.totals(json.loads(json.dumps({"rank": rank, "t": 0.0, "left": 0, "totals": totals.to_mapping()})))
    tracemalloc.start()
    try:
        for second in range(1, 700):
            text = json.dumps({"t": 1.0 * second, "left": 0, "totals": totals.part([(False, sizes[second // 5 % 40])])})
            for rank in range(8):
                economy.totals({"rank": rank, **json.loads(text)})
        assert tracemalloc.get_traced_memory()[0] < 3e6
    finally:
        tracemalloc.stop()


def test_an_alarm_outlives_a_reload(tmp_path: Path) -> None:
    profile = _profile(None, baseline_tok_s={1: 82.0})
    economy = Economy(profile, lambda: "serving")
    (verdict,) = _lose(economy)
    assert verdict.raised
    economy.reload(profile)
    assert economy._alarm.raised
