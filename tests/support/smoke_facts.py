"""Made-up measurements for tests of the smoke test's judges: acceptance and times as wished."""

from __future__ import annotations

import random
from collections.abc import Sequence

from guarded_serve.smoke.facts import Cell, EngineAccount, Floors, Run, Sample

FLOORS = Floors(accept_length=1.6, first_position=0.2, gain=1.05, regression=0.05)
TOKENS = 64


def sample(
    prompt: str, *, first: float = 0.6, given: float = 0.5, ms: float = 5.0, kind: str = "code", text: str = "t"
) -> Sample:
    """An answer whose drafts are right with probability ``first``, then ``given`` for each later one of three."""
    verifications = 1000
    second, third = first * given, first * given * given
    histogram = [round(verifications * share) for share in (1 - first, first - second, second - third, third)]
    tokens = sum(histogram) + sum(index * count for index, count in enumerate(histogram))
    return Sample(
        prompt, kind, tokens, tokens - 1, (tokens - 1) * ms / 1e3, 0.1, sum(histogram), tuple(histogram), text
    )


def plain(prompt: str, *, ms: float = 8.0, kind: str = "code", text: str = "t") -> Sample:
    """An answer without drafter."""
    return Sample(prompt, kind, TOKENS, TOKENS - 1, (TOKENS - 1) * ms / 1e3, 0.1, 0, (), text)


def run(
    label: str,
    *,
    first: float | None = 0.6,
    given: float = 0.5,
    ms: float = 5.0,
    noise: float = 0.01,
    unrest: float = 0.01,
    prompts: int = 16,
    repeats: int = 3,
    sizes: Sequence[int] = (1, 4),
    seed: int = 0,
    text: str = "t",
    period_ms: float | None = 10.0,
) -> Run:
    """A run; ``first`` None is a baseline. ``noise``: of each answer; ``unrest``: of each repeat as a whole."""
    dice = random.Random(seed)
    cells = []
    for size in sizes:
        rows = []
        for _ in range(repeats):
            shift = dice.gauss(0, unrest)
            row = []
            for number in range(prompts):
                name = f"p{number}"
                own = ms * (1 + dice.gauss(0, noise) + shift)
                spread = 0.8 + 0.4 * number / max(1, prompts - 1)
                row.append(
                    plain(name, ms=own, text=text)
                    if first is None
                    else sample(name, first=min(1.0, first * spread), given=given, ms=own, text=text)
                )
            rows.append(tuple(row))
        cells.append(Cell(size, tuple(rows), EngineAccount(cycles=100, period_ms=period_ms)))
    return Run(label, tuple(cells))
