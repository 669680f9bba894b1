"""A sample of the drafter's rows beside the target's, read straight from the shards: evidence without running anything.

Two questions: does the drafter's own embedding equal the target's, which SGLang puts in its place; and, where the head
was started from the target's head (many trainers do), does each draft row look like the target row that the map names?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from guarded_serve.checkpoint.files import Unreadable
from guarded_serve.checkpoint.safetensors import Tensor
from guarded_serve.checkpoint.values import FLOATS, cosine, read_row
from guarded_serve.checkpoint.weights import Weights

ROWS = 48
COLUMNS = 512
"""Rows and columns of the sample: some 25,000 numbers a matrix, 20 ms in all."""

_EMBEDDINGS = (  # speculative/pp_draft_embedding.py: EMBED_KEY_CANDIDATES
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "model.word_embeddings.weight",
    "tok_embeddings.weight",
    "embed_tokens.weight",
    "embed.weight",
)
_HEADS = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight", "output.weight")
SAMPLED = frozenset((*_EMBEDDINGS, *_HEADS))
"""The only tensors of a target that are looked into."""


@dataclass(frozen=True)
class EmbeddingSample:
    """Rows compared and rows that differ (cosine below 0.99), with the lowest cosine seen."""

    rows: int
    differing: int
    lowest: float


@dataclass(frozen=True)
class HeadSample:
    """Mean cosine of draft head rows with target head rows, by how the map is read; nan-free, -1 to 1."""

    rows: int
    mapped: float  # at i + d2t[i], as SGLang reads the map
    shuffled: float  # at other tokens' ids: what chance gives
    absolute: float | None  # at d2t[i]
    identity: float | None  # at i


def target_embedding(weights: Weights, vocabulary: int | None) -> Tensor | None:
    """The target's embedding as a float matrix, or None."""
    return _matrix(weights.tensors, _EMBEDDINGS, vocabulary)


def target_head(weights: Weights, vocabulary: int | None, *, tied: bool) -> Tensor | None:
    """The target's head; its embedding where the two are tied."""
    found = _matrix(weights.tensors, _HEADS, vocabulary)
    return target_embedding(weights, vocabulary) if found is None and tied else found


def _matrix(tensors: Mapping[str, Tensor], names: Sequence[str], vocabulary: int | None) -> Tensor | None:
    for name in names:
        tensor = tensors.get(name)
        if tensor is not None and len(tensor.shape) == 2 and tensor.dtype in FLOATS:
            return tensor if vocabulary is None or tensor.shape[0] >= vocabulary // 2 else None
    return None


def sample_embedding(drafter: Tensor, target: Tensor) -> EmbeddingSample | None:
    """Compare rows at ids spread over the vocabulary; None where they cannot be compared."""
    if len(drafter.shape) != 2 or drafter.dtype not in FLOATS or drafter.shape[1] != target.shape[1]:
        return None
    ids = _spread(min(drafter.shape[0], target.shape[0]))
    try:
        likeness = [cosine(read_row(drafter, i, COLUMNS), read_row(target, i, COLUMNS)) for i in ids]
    except (Unreadable, ValueError):
        return None
    return EmbeddingSample(len(ids), sum(value < 0.99 for value in likeness), min(likeness, default=1.0))


def sample_head(drafter: Tensor, target: Tensor, ids: Sequence[int]) -> HeadSample | None:
    """Compare draft rows with target rows; ``ids`` is i + d2t[i] for every draft token."""
    if len(drafter.shape) != 2 or drafter.dtype not in FLOATS or drafter.shape[1] != target.shape[1]:
        return None
    chosen = [i for i in _spread(min(len(ids), drafter.shape[0])) if 0 <= ids[i] < target.shape[0]]
    if len(chosen) < 8:
        return None
    mapped = [ids[i] for i in chosen]
    shuffled = mapped[len(mapped) // 2 :] + mapped[: len(mapped) // 2]
    absolute = [ids[i] - i for i in chosen]
    try:
        rows = [read_row(drafter, i, COLUMNS) for i in chosen]
        cache = {
            token: read_row(target, token, COLUMNS)
            for token in {*mapped, *absolute, *chosen}
            if 0 <= token < target.shape[0]
        }
    except (Unreadable, ValueError):
        return None

    def mean(tokens: Sequence[int]) -> float | None:
        if any(token not in cache for token in tokens):
            return None
        return sum(cosine(row, cache[token]) for row, token in zip(rows, tokens, strict=True)) / len(rows)

    return HeadSample(
        len(chosen),
        mean(mapped) or 0.0,
        mean(shuffled) or 0.0,
        mean(absolute) if absolute != mapped and len(set(absolute)) > len(absolute) // 2 else None,
        mean(chosen) if chosen != mapped else None,
    )


def _spread(count: int) -> list[int]:
    """Up to `ROWS` indices below ``count``, the same at every run."""
    return sorted(Random(0).sample(range(count), min(ROWS, count)))
