"""Measures a running server: every prompt, several times, at each batch size.

A first pass is not timed: an engine is slower in its first seconds of load (on one H200 by a third in the first pass, a
drafter deployment alone). Its acceptance counts, and may decide already.

At a batch size of N there are always N requests on their way: a request that ends is followed by the next prompt, and
after the last one by fillers that do not count, so that no measured answer sees a smaller batch. A filler is as long as
a measured answer, since shorter ones would bring more prefills, which every answer under way waits for.
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
    ``early`` may end the measurement after the first pass, with the reason; ``say`` shows progress; ``stop`` is set
    when nobody waits.
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
        hooks.say(f"{label}: batch size {batch_size}, first pass")
        first = _pass(address, prompts, batch_size, plan, hooks)
        reason = None if cells else hooks.early(first)
        if reason:
            cell = Cell(batch_size, (first,), hooks.account(batch_size))
            return Run(label, (cell,), stopped_early=reason, left_out=left_out)
        hooks.reset()
        repeats: list[tuple[Sample, ...]] = []
        while len(repeats) < plan.repeats or (len(repeats) < plan.most_repeats and _restless(repeats)):
            hooks.say(f"{label}: batch size {batch_size}, repeat {len(repeats) + 1}")
            repeats.append(_pass(address, prompts, batch_size, plan, hooks))
        cells.append(Cell(batch_size, tuple(repeats), hooks.account(batch_size)))
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


class _Pass:
    """One pass over the prompts with a fixed number of requests on their way."""

    def __init__(self, address: Address, prompts: Sequence[Ready], plan: Plan, stop: threading.Event) -> None:
        self._address = address
        self._prompts = prompts
        self._plan = plan
        self._stop = stop
        self._lock = threading.Lock()
        self._next = 0
        self._open = len(prompts)
        self.samples: dict[int, Sample] = {}

    def worker(self) -> None:
        """Take prompt after prompt, then fillers until the last measured answer is there."""
        while not self._stop.is_set():
            with self._lock:
                turn, filler = self._next, self._next >= len(self._prompts)
                if filler and not self._open:
                    return
                self._next += 1
            prompt = self._prompts[turn % len(self._prompts)]
            try:
                sample = client.generate(self._address, prompt, self._plan.new_tokens, self._plan.request_timeout_s)
            except BaseException:
                with self._lock:
                    self._open = 0
                    self._next = len(self._prompts)
                raise
            if not filler:
                with self._lock:
                    self.samples[turn] = sample
                    self._open -= 1


def _pass(address: Address, prompts: Sequence[Ready], batch_size: int, plan: Plan, hooks: Hooks) -> tuple[Sample, ...]:
    """The samples in the order of the prompts."""
    one = _Pass(address, prompts, plan, hooks.stop)
    with ThreadPoolExecutor(batch_size) as pool:
        for ended in [pool.submit(one.worker) for _ in range(batch_size)]:
            try:
                ended.result()
            except PromptRefused as refusal:
                raise ServerError(f"the server took a prompt once and not again: {refusal}") from None
    if hooks.stop.is_set():
        raise Stopped
    samples = tuple(one.samples[turn] for turn in range(len(prompts)))
    short = [sample.prompt for sample in samples if sample.decode_tokens < 1 or sample.decode_s <= 0]
    if short:
        raise ServerError(f"/generate streamed nothing for {', '.join(short[:3])}: no time can be measured")
    return samples
