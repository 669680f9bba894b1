"""What the last smoke test recorded, for the break-even watch: by batch size, accept length, cycle time and baseline.

The file is `smoke.record` of the profile; `guarded_serve.smoke.record` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from guarded_serve.timing.alarm import Reference

KIND, VERSION = "guarded-serve smoke record", 1


class BadRecord(Exception):
    """The file is no record; the text names it and says why."""


@dataclass(frozen=True)
class References:
    """By batch size. ``baseline_tok_s``: plain decoding, the whole batch."""

    references: Mapping[int, Reference] = field(default_factory=dict)
    baseline_tok_s: Mapping[int, float] = field(default_factory=dict)


def read_references(path: Path) -> References:
    """Raises BadRecord, FileNotFoundError or another OSError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["kind"] != KIND or value["version"] != VERSION:
            raise BadRecord(f"{path} is not a record of version {VERSION}")
        references, baselines = {}, {}
        for size, cell in value["batch_sizes"].items():
            if cell["accept_length"] and cell["period_ms"]:
                references[int(size)] = Reference(float(cell["accept_length"]), float(cell["period_ms"]))
            if cell["baseline_tok_s"]:
                baselines[int(size)] = float(cell["baseline_tok_s"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRecord(f"{path} is no record of a smoke test: {type(error).__name__}: {error}") from None
    return References(references, baselines)
