"""What the hooks of one cycle cost the scheduler's thread, and what a record costs the telemetry thread. Microseconds.

    python -m benchmarks.clock_cost

The same calls as inside SGLang, round functions that do nothing; on a GPU seven event records come on top (about 1.5 us
each). For scale: a cycle of an 8B target on an H200 takes 6,750 us, the toy's on two CPU cores about 11,000.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from guarded_serve.engine.clock import CycleClock
from guarded_serve.engine.hooks import clock_hooks
from guarded_serve.engine.targets import SCHEDULER, WORKERS
from guarded_serve.engine.timers import CpuTimer
from guarded_serve.timing.record import Cycle
from guarded_serve.timing.totals import Totals

CYCLES = 20_000


class Request:
    """As far as the hooks look."""

    is_retracted = False
    finished_len = None
    grammar = None
    output_ids = (1,)

    def finished(self) -> bool:
        return False


def per_cycle(batch_size: int) -> tuple[float, list[Cycle]]:
    """Microseconds of all hooks of a cycle, and the records."""
    records: list[Cycle] = []
    clock = CycleClock(CpuTimer(), records.append, rank=0, plain=False, wall=time.time)
    targets = WORKERS["EAGLEWorkerV2"]
    hooks = clock_hooks(clock, targets)
    worker = SimpleNamespace(speculative_num_steps=3, speculative_num_draft_tokens=4)
    result = SimpleNamespace(speculative_num_draft_tokens=4)
    mode = SimpleNamespace(is_decode=lambda: True, is_extend=lambda: False)
    batch = SimpleNamespace(forward_mode=mode, forward_iter=0, reqs=[Request() for _ in range(batch_size)])
    correct = [2] * batch_size

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def work(*_: Any, **__: Any) -> Any:
        for role in ("draft", "verify", "extend"):
            hooks[getattr(targets, role)](nothing, worker)
        return result

    def process(*_: Any, **__: Any) -> None:
        hooks[targets.counts or ""](nothing, worker, correct, batch_size=batch_size)

    def run(cycle: Callable[..., Any], results: Callable[..., Any]) -> float:
        started = time.process_time()
        for number in range(CYCLES):
            batch.forward_iter = number
            cycle(batch)
            results(batch)
        return (time.process_time() - started) / CYCLES * 1e6

    cost = run(
        lambda batch: hooks[targets.cycle](work, worker, batch),
        lambda batch: hooks[SCHEDULER["results"]](process, worker, batch, result),
    )
    return cost, records


def main() -> None:
    """Print both."""
    for batch_size in (1, 8, 32):
        cost, records = per_cycle(batch_size)
        totals = Totals()
        started = time.process_time()
        for record in records:
            totals.add(record)
            record.to_line()
        telemetry = (time.process_time() - started) / len(records) * 1e6
        print(f"batch size {batch_size:>2}: hooks {cost:5.1f} us a cycle, totals and line {telemetry:5.1f} us a record")


if __name__ == "__main__":
    main()
