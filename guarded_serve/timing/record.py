"""One cycle as a JSON line. docs/timing.md describes every field; this module is the schema's one home.

Imported by the engine: standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

FILE_NAME = re.compile(r"cycles-(?P<rank>\d+)-(?P<sequence>\d+)\.jsonl\Z")

LARGEST = 10**12  # of any number in a record; above it a line is no record, and sums of it would be none
MOST_ACCEPTED = 4096  # tokens a row and cycle


def file_name(rank: int, sequence: int) -> str:
    """Name of a rank's n-th file; the highest number is the one being written."""
    return f"cycles-{rank}-{sequence:06d}.jsonl"


class Cycle(NamedTuple):
    """One decode cycle of one rank. Times in milliseconds; None where a stage did not run or could not be timed.

    A plain decode step (no drafter) is a cycle with ``plain``: steps 0, one token a row, all its time in ``verify_ms``.
    """

    t: float  # Unix seconds at the cycle's start, on the host
    rank: int
    forward: int  # SGLang's counter of forward passes
    bs: int  # rows, the dropped ones included
    steps: int  # speculative steps in force
    draft_tokens: int  # tokens that verify looks at, a row
    draft_ms: float | None
    verify_ms: float | None
    extend_ms: float | None
    gpu_ms: float | None  # from the cycle's first mark to its last
    period_ms: float | None  # to the next cycle's start; None over a prefill, a pause or idleness
    accept: list[int]  # a number a row: accepted tokens, the bonus included
    source: str  # "cuda-event" or "cpu-clock"
    dropped: Sequence[int] = ()  # rows that SGLang threw away: the request had finished or was retracted
    cut: int = 0  # accepted tokens of kept rows that a stop or a grammar cut off
    plain: bool = False

    def to_line(self) -> str:
        """The JSON line, with its newline. Formatted by hand: four times as fast as `json.dumps`."""
        line = (
            f'{{"t":{self.t:.6f},"rank":{self.rank},"forward":{self.forward},"bs":{self.bs},"steps":{self.steps},'
            f'"draft_tokens":{self.draft_tokens},"draft_ms":{_number(self.draft_ms)},'
            f'"verify_ms":{_number(self.verify_ms)},"extend_ms":{_number(self.extend_ms)},'
            f'"gpu_ms":{_number(self.gpu_ms)},"period_ms":{_number(self.period_ms)},'
            f'"accept":[{",".join(map(str, self.accept))}],"source":"{self.source}"'
        )
        if self.dropped:
            line += f',"dropped":[{",".join(map(str, self.dropped))}]'
        if self.cut:
            line += f',"cut":{self.cut}'
        if self.plain:
            line += ',"plain":true'
        return line + "}\n"

    @classmethod
    def from_line(cls, line: str | bytes) -> Cycle:
        """Raises ValueError when it is no cycle record."""
        value = read_line(line)
        return cls(**{name: value[name] for name in cls._fields if name in value})

    def kept(self) -> list[int]:
        """The accepted counts of the rows that SGLang counted."""
        if not self.dropped:
            return self.accept
        dropped = set(self.dropped)
        return [count for row, count in enumerate(self.accept) if row not in dropped]


def read_line(line: str | bytes) -> dict[str, Any]:
    """A line's values, each of them looked at: what comes after may add and index without a care.

    Raises ValueError when it is no cycle record, whatever else it is.
    """
    try:
        value: dict[str, Any] = json.loads(line)
        whole = [value[name] for name in ("rank", "forward", "bs", "steps", "draft_tokens")]
        times = [value[name] for name in ("draft_ms", "verify_ms", "extend_ms", "gpu_ms", "period_ms")]
        accept, dropped = value["accept"], value.get("dropped", ())
        good = (
            all(type(number) is int and 0 <= number <= LARGEST for number in (*whole, value.get("cut", 0)))
            and all(number is None or _is_number(number) for number in times)
            and _is_number(value["t"])
            and len(accept) == value["bs"]
            and all(type(count) is int and 0 <= count <= MOST_ACCEPTED for count in accept)
            and all(type(row) is int for row in dropped)
            and type(value["source"]) is str
            and type(value.get("plain", False)) is bool
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no cycle record: {type(error).__name__}: {error}") from None
    if not good:
        raise ValueError("no cycle record: a field is not what it should be")
    return value


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -LARGEST <= value <= LARGEST  # no NaN, no Infinity, no 1e999


def _number(value: float | None) -> str:
    return "null" if value is None else f"{value:.4f}"
