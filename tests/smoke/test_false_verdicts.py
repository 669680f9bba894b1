"""How often the verdict is wrong, from recorded noise: 20 runs of a two-core machine, resampled 10,000 times.

`benchmarks/smoke_noise.py` recorded them: the demo pair on SGLang's CPU engine while other programs ran. Each trial
draws a baseline run, a run of the unchanged drafter, and its record, and draws the prompts anew for all three.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from guarded_serve.exit_codes import ExitCode
from guarded_serve.smoke.facts import Cell, Floors, Run, Sample
from guarded_serve.smoke.verdict import Case, Recorded, by_prompt, judge

RECORDED = Path(__file__).with_name("recorded")
REPEATS = 3
TRIALS = 10_000


@dataclass(frozen=True)
class Recording:
    """Microseconds a token by pass and prompt; counts by prompt."""

    counts: list[tuple[int, int, tuple[int, ...]]]
    us_per_token: list[list[int]]

    @classmethod
    def read(cls, name: str) -> Recording:
        value = json.loads((RECORDED / f"{name}.json").read_text())
        return cls(
            [(tokens, tries, tuple(histogram)) for tokens, tries, histogram in value["counts"]], value["us_per_token"]
        )

    @property
    def runs(self) -> int:
        return len(self.us_per_token) // REPEATS

    def run(self, number: int, prompts: Sequence[int], worse: float = 1.0) -> Run:
        """One of the recorded runs, over these prompts; ``worse`` 0.9 emits a tenth fewer tokens a cycle."""
        passes = self.us_per_token[number * REPEATS : (number + 1) * REPEATS]
        return Run("drafter", (Cell(1, tuple(tuple(self._samples(row, prompts, worse)) for row in passes)),))

    def _samples(self, row: list[int], prompts: Sequence[int], worse: float) -> list[Sample]:
        samples = []
        for place, prompt in enumerate(prompts):
            tokens, tries, histogram = self.counts[prompt]
            seconds = row[prompt] / 1e6 / worse * (tokens - 1)
            tokens, tries, histogram = 100 * tokens, round(100 * tries / worse), tuple(100 * n for n in histogram)
            samples.append(Sample(f"p{place}", "code", tokens, tokens - 1, seconds * 100, 0.1, tries, histogram, "t"))
        return samples


def trial(dice: random.Random, base: Recording, drafter: Recording, floors: Floors, worse: float = 1.0) -> ExitCode:
    prompts = [dice.randrange(len(base.counts)) for _ in base.counts]
    then = drafter.run(dice.randrange(drafter.runs), prompts)
    assert then.smallest is not None
    recorded = Recorded("v1", by_prompt(then.smallest.samples))
    now = drafter.run(dice.randrange(drafter.runs), prompts, worse)
    return judge(Case(now, floors, base.run(dice.randrange(base.runs), prompts), recorded)).code


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not RECORDED.is_dir(), reason="no recorded runs: benchmarks/smoke_noise.py makes them")
def test_false_verdicts() -> None:
    base, drafter = Recording.read("baseline"), Recording.read("drafter")
    assert min(base.runs, drafter.runs) >= 20
    floors = Floors(accept_length=1.0, first_position=0.2, gain=1.0, regression=0.05)
    dice = random.Random(8)
    same = [trial(dice, base, drafter, floors) for _ in range(TRIALS)]
    worse = [trial(dice, base, drafter, floors, 0.9) for _ in range(TRIALS)]
    refused, passed = same.count(ExitCode.REFUSED) / TRIALS, worse.count(ExitCode.OK) / TRIALS
    unclear = same.count(ExitCode.BUSY) / TRIALS
    print(f"unchanged: refused {refused:.2%}, unclear {unclear:.1%}; 10 % worse: passed {passed:.2%}")
    assert refused < 0.01
    assert passed < 0.01
