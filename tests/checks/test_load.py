"""What the engine loaded against what preflight foretold."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest

from guarded_serve.checks.load import Foretold, contradictions, foretell, map_fingerprint

IDS = [0, 2, 3, 9]
SHA = hashlib.sha256(struct.pack("<4q", *IDS)).hexdigest()
FORETOLD = Foretold((2, 4, 6), 4, SHA)
LOADED: dict[str, Any] = {"captured_layers": [2, 4, 6], "map": {"length": 4, "sha256": SHA}}


def test_the_fingerprint_is_the_engines() -> None:
    torch = pytest.importorskip("torch")
    from guarded_serve.engine.load_gate import map_facts  # noqa: PLC0415

    facts = map_facts(torch.tensor(IDS))
    assert facts is not None
    assert map_fingerprint(IDS) == SHA == facts["sha256"]


def test_offsets_beyond_int64_wrap_around_as_in_the_engine() -> None:
    torch = pytest.importorskip("torch")
    from guarded_serve.engine.load_gate import map_facts  # noqa: PLC0415

    offsets = [2**63 - 1, 2**63 - 1, -(2**63)]
    facts = map_facts(torch.tensor(offsets) + torch.arange(3))
    assert facts is not None
    assert map_fingerprint(offset + i for i, offset in enumerate(offsets)) == facts["sha256"]


def test_as_foretold() -> None:
    assert list(contradictions(FORETOLD, LOADED)) == []


@pytest.mark.parametrize(
    ("changes", "check", "found"),
    [
        ({"captured_layers": [1, 3, 5]}, "load.captured_layers", "1, 3, 5"),
        ({"map": None}, "load.map_used", "none"),
        ({"map": {"length": 4, "sha256": "0" * 64}}, "load.map_used", "4 entries, sha256 000000000000"),
    ],
)
def test_a_contradiction_is_an_error(changes: dict[str, Any], check: str, found: str) -> None:
    (finding,) = contradictions(FORETOLD, {**LOADED, **changes})
    assert (finding.check, finding.severity.value, finding.found) == (check, "error", found)
    assert finding.remedy


def test_what_preflight_could_not_say_contradicts_nothing() -> None:
    assert foretell(None) == Foretold()
    assert list(contradictions(Foretold(), {"captured_layers": [1], "map": None})) == []
    assert list(contradictions(FORETOLD, {"captured_layers": None, "map": {"length": 4, "dtype": "float32"}})) == []
