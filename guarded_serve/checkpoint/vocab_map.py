"""The draft vocabulary's map, d2t: what its numbers mean and what is wrong with them.

Every engine and trainer seen reads d2t as an offset: target id = i + d2t[i] (SGLang, `llama_eagle3.py: load_weights`).
t2d is a mask over the target's vocabulary with one true a draft token; nonzero(t2d) must equal i + d2t[i].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import compress, count, pairwise
from operator import add


class Meaning(str, Enum):
    """What a vector of D numbers looks like."""

    OFFSETS = "offsets"  # as it should be
    IDENTITY = "identity"  # all zero, D = V: right
    ALL_ZERO = "all zero"  # all zero, D < V: a buffer that nobody filled, or a head trained on ids 0..D-1
    ARANGE = "arange"  # 0, 1, 2, ...: the absolute identity
    ABSOLUTE = "absolute ids"  # the target ids themselves
    NEITHER = "neither"


@dataclass(frozen=True)
class MapStatistics:
    """``ids`` are i + d2t[i]; a count of 0 is good. ``differing`` counts ids that t2d does not agree with."""

    meaning: Meaning
    ids: Sequence[int]
    out_of_range: int
    duplicates: int
    descents: int  # places where the next id is not larger
    first_bad: int | None  # first draft index out of range, else of the first descent
    t2d_trues: int | None = None
    differing: int | None = None

    @property
    def is_right(self) -> bool:
        """Whether SGLang would map every draft token to a token of its own, in order."""
        return self.meaning in (Meaning.OFFSETS, Meaning.IDENTITY) and not self.differing


def judge_map(d2t: Sequence[int], target_vocabulary: int, t2d: Sequence[int] | None = None) -> MapStatistics:
    """Statistics of a map of D entries into ``target_vocabulary`` ids; ``t2d`` is the mask, one number an id."""
    ids = list(map(add, d2t, count()))
    out_of_range = sum(1 for token in ids if not 0 <= token < target_vocabulary)
    descents = sum(1 for low, high in pairwise(ids) if high <= low)
    first_bad = next((i for i, token in enumerate(ids) if not 0 <= token < target_vocabulary), None)
    if first_bad is None and descents:
        first_bad = next(i + 1 for i, (low, high) in enumerate(pairwise(ids)) if high <= low)
    trues: list[int] | None = None
    if t2d is not None:
        trues = list(compress(range(len(t2d)), t2d))
    return MapStatistics(
        meaning=_meaning(d2t, ids, target_vocabulary, trues, bool(out_of_range or descents)),
        ids=ids,
        out_of_range=out_of_range,
        duplicates=len(ids) - len(set(ids)),
        descents=descents,
        first_bad=first_bad,
        t2d_trues=None if trues is None else len(trues),
        differing=None if trues is None else _differing(ids, trues),
    )


def _differing(ids: Sequence[int], trues: Sequence[int]) -> int:
    return sum(1 for ours, theirs in zip(ids, trues, strict=False) if ours != theirs) + abs(len(ids) - len(trues))


def _meaning(
    d2t: Sequence[int], ids: Sequence[int], vocabulary: int, trues: Sequence[int] | None, broken: bool
) -> Meaning:
    length = len(d2t)
    if not any(d2t):
        return Meaning.IDENTITY if length == vocabulary else Meaning.ALL_ZERO
    if trues is not None and not broken and list(ids) == list(trues):
        return Meaning.OFFSETS  # the mask settles it
    if all(value == i for i, value in enumerate(d2t)):
        return Meaning.ARANGE
    if trues is not None and list(d2t) == list(trues):
        return Meaning.ABSOLUTE
    if all(0 <= value < vocabulary for value in d2t) and len(set(d2t)) == length:
        # Offsets of increasing ids never fall and stand still wherever two neighbouring ids are both kept. D distinct
        # in-range values are offsets only if no two neighbouring ids were kept at all, which no token count produces.
        return Meaning.ABSOLUTE if length >= 8 or broken else Meaning.OFFSETS
    return Meaning.NEITHER if broken else Meaning.OFFSETS
