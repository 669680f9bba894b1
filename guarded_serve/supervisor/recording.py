"""What the engine says of its own records, in lines for the log: the cycle log's disk, records dropped and lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Recording:
    """Fed with beats; says what changed and nothing twice."""

    _problems: dict[object, str] = field(default_factory=dict)
    _counts: dict[object, tuple[int, int]] = field(default_factory=dict)  # dropped and lost, by rank
    _told: tuple[int, int] = (0, 0)

    def beat(self, event: Mapping[str, Any]) -> str:
        """What to warn of at once; empty as a rule."""
        rank, problem = event.get("rank"), str(event.get("problem") or "")
        self._counts[rank] = (_count(event.get("dropped")), _count(event.get("lost")))
        before = self._problems.get(rank, "")
        self._problems[rank] = problem
        if problem == before:
            return ""
        return f"the cycle log of rank {rank}: {problem or 'is written again'}"

    def since(self) -> Iterator[str]:
        """What was dropped and lost since the last time."""
        dropped, lost = (sum(pair[index] for pair in self._counts.values()) for index in (0, 1))
        more_dropped, more_lost = dropped - self._told[0], lost - self._told[1]
        self._told = (dropped, lost)
        if more_dropped > 0:
            yield f"{more_dropped} more cycles are not in the records: the disk or the engine's writer did not keep up"
        if more_lost > 0:
            yield f"{more_lost} more cycles could not be timed"


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
