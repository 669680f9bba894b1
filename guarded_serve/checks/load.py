"""Gate 2 against gate 1: what the engine really loaded, held against what preflight read and foretold.

Not one of the checks that `check` runs: the launcher asks it when the engine's `drafter-loaded` event comes, before
READY.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from guarded_serve.checkpoint.files import Unreadable
from guarded_serve.checkpoint.values import read_integers
from guarded_serve.facts.model import ModelFacts
from guarded_serve.findings import Finding, Severity


@dataclass(frozen=True)
class Foretold:
    """What preflight expects of the load; None where it cannot say."""

    captured: tuple[int, ...] | None = None  # as the target stores them, ascending
    map_length: int | None = None
    map_sha256: str | None = None  # of the target ids, little-endian int64


def foretell(model: ModelFacts | None) -> Foretold:
    """From the model's facts. Reads the map once more; an unreadable one, a finding before, says nothing here."""
    if model is None:
        return Foretold()
    known = model.capture is not None and model.version_note is None  # else the rule is a guess
    captured = tuple(sorted(model.capture.requested)) if known and model.capture is not None else None
    d2t = model.map.d2t
    if d2t is None or model.map.statistics is None:
        return Foretold(captured)
    try:
        offsets = read_integers(d2t)
    except (Unreadable, OSError, ValueError):
        return Foretold(captured)
    return Foretold(captured, len(offsets), map_fingerprint(offset + i for i, offset in enumerate(offsets)))


def map_fingerprint(target_ids: Iterable[int]) -> str:
    """sha256 over little-endian int64, as the engine works it out; a sum beyond them wraps around, as there."""
    values = array("q", ((token + 2**63) % 2**64 - 2**63 for token in target_ids))
    if sys.byteorder == "big":
        values.byteswap()
    return hashlib.sha256(values.tobytes()).hexdigest()


def contradictions(foretold: Foretold, loaded: Mapping[str, Any]) -> Iterator[Finding]:
    """Where the engine's `drafter-loaded` event says otherwise than preflight did: errors, in the launcher's words."""
    captured = loaded.get("captured_layers")
    if foretold.captured is not None and captured is not None and tuple(captured) != foretold.captured:
        yield _error(
            "load.captured_layers",
            "the target captures other layers for the drafter than preflight foretold",
            ", ".join(map(str, foretold.captured)),
            ", ".join(map(str, captured)),
            "this SGLang has a rule that is not known here: report it, with the target's class",
        )
    tokens = loaded.get("map")
    if foretold.map_sha256 is None:
        return
    if not isinstance(tokens, Mapping):
        yield _error(
            "load.map_used",
            "the drafter's file holds a map and the engine uses none",
            f"{foretold.map_length} entries",
            "none",
            "this SGLang's class for the drafter does not read d2t: see drafter.class",
        )
    elif tokens.get("sha256") not in (None, foretold.map_sha256):
        yield _error(
            "load.map_used",
            "the map that the engine uses is not the one in the drafter's file",
            f"{foretold.map_length} entries, sha256 {foretold.map_sha256[:12]}",
            f"{tokens.get('length')} entries, sha256 {str(tokens.get('sha256'))[:12]}",
            "look for --speculative-token-map and for a second file with a d2t in the drafter's folder",
        )


def _error(check: str, message: str, expected: str, found: str, remedy: str) -> Finding:
    return Finding(check, Severity.ERROR, message, expected=expected, found=found, remedy=remedy)
