"""Measures a running server: every prompt, several times, at each batch size.

At a batch size of N there are always N requests on their way: a request that ends is followed by the next prompt, from
pass to pass without a pause, until the last measured answer is there. So no answer sees a smaller batch, and each sees
as many prefills of others as under steady load, which every answer under way waits for. (In separate passes the first N
answers would see few: on one H200, 3 to 8 % less time a verification than the next N.)

A first pass is not timed: an engine is slower in its first seconds of load (on one H200 by a third in the first pass, a
drafter deployment alone), and the batch fills all at once. Its acceptance counts, and may decide already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from guarded_serve.smoke import client
from guarded_serve.smoke.client import PromptRefused, Ready, ServerError
from guarded_serve.smoke.facts import Cell, EngineAccount, Run, Sample
from guarded_serve.smoke.prompts import Prompt
from guarded_serve.smoke.stats import unrest
from guarded_serve.supervisor.ready import Address

SHORTEST = 8
"""Tokens that an answer must have; prompts with a shorter one are left out."""
RESTLESS = 0.015
"""A relative standard error above which more repeats are made: the machine is busy with something else."""


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    prompts: Sequence[Prompt]
    batch_sizes: Sequence[int]
    repeats: int
    new_tokens: int
    request_timeout_s: float = 120.0
    most: int | None = None

    @property
    def most_repeats(self) -> int:
        """On a noisy machine: twice as many, if nobody says otherwise."""
        return self.most or 2 * self.repeats


@dataclass(frozen=True)
class Hooks:
    """What the measurement asks its owner.

    ``account`` gives the engine's totals of a batch size since the last ``reset``, or since the engine's start;
    ``reset`` must not wait, since the load goes on; ``early`` may end the measurement after the first pass, with the
    reason; ``say`` shows progress; ``stop`` is set when nobody waits.
    """

    reset: Callable[[], None]
    account: Callable[[int], EngineAccount]
    early: Callable[[Sequence[Sample]], str | None]
    say: Callable[[str], None]
    stop: threading.Event


class Stopped(Exception):
    """Nobody waits for the result any more."""


def measure(label: str, address: Address, plan: Plan, hooks: Hooks) -> Run:
    """Raises ServerError when the server stops answering, Stopped when asked to stop."""
    prompts, left_out = _prepare(address, plan)
    cells: list[Cell] = []
    for batch_size in sorted(plan.batch_sizes):
        passes = _Passes(label, batch_size, plan, hooks, may_end_early=not cells)
        _Load(address, prompts, plan, hooks.stop, passes.ended).run(batch_size)
        cells.append(Cell(batch_size, passes.counted, hooks.account(batch_size)))
        if passes.reason:
            return Run(label, tuple(cells), stopped_early=passes.reason, left_out=left_out)
    return Run(label, tuple(cells), left_out=left_out)


def _prepare(address: Address, plan: Plan) -> tuple[list[Ready], tuple[str, ...]]:
    """Prompts as the server takes them; those that it refuses are left out, unless it refuses all."""
    taken, left_out = [], []
    for prompt in plan.prompts:
        try:
            ready = client.prepare(address, prompt, plan.request_timeout_s)
            tokens = client.generate(address, ready, SHORTEST, plan.request_timeout_s).tokens
            if tokens < SHORTEST:
                raise PromptRefused(f"its answer ends after {tokens} tokens, too few to measure")
            taken.append(ready)
        except PromptRefused as refusal:
            left_out.append(f"{prompt.name}: {refusal}")
    if not taken:
        raise ServerError(f"the server takes none of the {len(plan.prompts)} prompts; the first: {left_out[0]}")
    return taken, tuple(left_out)


def _restless(repeats: Sequence[Sequence[Sample]]) -> bool:
    return unrest([[sample.s_per_token for sample in repeat] for repeat in repeats]) > RESTLESS


class _Passes:
    """The passes over the prompts at one batch size, and whether they are enough."""

    def __init__(self, label: str, batch_size: int, plan: Plan, hooks: Hooks, *, may_end_early: bool) -> None:
        self._plan = plan
        self._hooks = hooks
        self._may_end_early = may_end_early
        self._name = f"{label}: batch size {batch_size}"
        self._first: tuple[Sample, ...] | None = None
        self._repeats: list[tuple[Sample, ...]] = []
        self.reason: str | None = None
        hooks.say(f"{self._name}, first pass")

    @property
    def counted(self) -> tuple[tuple[Sample, ...], ...]:
        """The first pass where it decided; otherwise the repeats."""
        return (self._first,) if self.reason and self._first else tuple(self._repeats)

    def ended(self, samples: tuple[Sample, ...]) -> bool:
        """Take a pass's samples, in the order of the prompts; True when another pass is wanted. Raises ServerError."""
        short = [sample.prompt for sample in samples if sample.decode_tokens < 1 or sample.decode_s <= 0]
        if short:
            raise ServerError(f"/generate streamed nothing for {', '.join(short[:3])}: no time can be measured")
        if self._first is None:
            self._first = samples
            self.reason = self._hooks.early(samples) if self._may_end_early else None
            if self.reason:
                return False
            self._hooks.reset()
        else:
            self._repeats.append(samples)
        count = len(self._repeats)
        if count >= self._plan.repeats and (count >= self._plan.most_repeats or not _restless(self._repeats)):
            return False
        self._hooks.say(f"{self._name}, repeat {count + 1}")
        return True


class _Load:
    """The prompts, round and round, a fixed number of them on their way, while ``ended`` wants another pass."""

    def __init__(
        self,
        address: Address,
        prompts: Sequence[Ready],
        plan: Plan,
        stop: threading.Event,
        ended: Callable[[tuple[Sample, ...]], bool],
    ) -> None:
        self._address = address
        self._prompts = prompts
        self._plan = plan
        self._stop = stop
        self._ended = ended
        self._lock = threading.Lock()
        self._asked = 0
        self._samples: dict[int, Sample] = {}  # of the passes that have not ended, by turn
        self._passes = 0
        self._closed = False

    def run(self, batch_size: int) -> None:
        """Raises what ``ended`` raises, ServerError, or Stopped."""
        with ThreadPoolExecutor(batch_size) as pool:
            for worker in [pool.submit(self._work) for _ in range(batch_size)]:
                try:
                    worker.result()
                except PromptRefused as refusal:
                    raise ServerError(f"the server took a prompt once and not again: {refusal}") from None
        if self._stop.is_set():
            raise Stopped

    def _work(self) -> None:
        try:
            while (turn := self._take()) is not None:
                prompt = self._prompts[turn % len(self._prompts)]
                self._give(
                    turn, client.generate(self._address, prompt, self._plan.new_tokens, self._plan.request_timeout_s)
                )
        except BaseException:
            self._closed = True
            raise

    def _take(self) -> int | None:
        with self._lock:
            if self._closed or self._stop.is_set():
                return None
            self._asked += 1
            return self._asked - 1

    def _give(self, turn: int, sample: Sample) -> None:
        with self._lock:
            self._samples[turn] = sample
            while not self._closed and (samples := self._whole_pass()):
                self._closed = not self._ended(samples)

    def _whole_pass(self) -> tuple[Sample, ...]:
        """The next pass's samples, once they are all there."""
        turns = range(self._passes * len(self._prompts), (self._passes + 1) * len(self._prompts))
        if not all(turn in self._samples for turn in turns):
            return ()
        self._passes += 1
        return tuple(self._samples.pop(turn) for turn in turns)
