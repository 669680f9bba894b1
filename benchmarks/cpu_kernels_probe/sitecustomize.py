"""Times SGLang's decode cycles and the CPU operators inside them; put on PYTHONPATH by benchmarks/cpu_kernels.py.

Python imports a module of this name by itself at start-up, in every process of the engine. It waits for the two modules
to be imported, wraps their functions, and writes one JSON line a decode cycle to the file in CPU_KERNELS_PROBE.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar

WORKER = "sglang.srt.speculative.eagle_worker_v2"
OPERATORS = "sgl_kernel._operators"
STAGES = {
    "draft": ("EagleDraftWorker", "draft"),
    "verify": ("EAGLEWorkerV2", "verify"),
    "extend": ("EagleDraftWorker", "_draft_extend_for_decode"),
}
spent = {"kernels": 0.0, "calls": 0.0, **dict.fromkeys(STAGES, 0.0)}


def timed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Add the wall-clock seconds of each call to `spent[name]`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - start
            if name == "kernels":
                spent["calls"] += 1

    return call


def wrap_operators(module: ModuleType) -> None:
    """Every operator counts as "kernels"."""
    for name, function in module.FUNCTIONS.items():
        module.FUNCTIONS[name] = timed(function, "kernels")
    original = module.torch_ops
    module.torch_ops = lambda version: {n: timed(f, "kernels") for n, f in original(version).items()}


def wrap_worker(module: ModuleType) -> None:
    """The three stages, and the cycle round them."""
    for stage, (owner, method) in STAGES.items():
        setattr(getattr(module, owner), method, timed(getattr(getattr(module, owner), method), stage))
    cycle = module.EAGLEWorkerV2.forward_batch_generation
    output = open(os.environ["CPU_KERNELS_PROBE"], "a", buffering=1)  # noqa: PTH123, SIM115  (open until the process ends)

    @functools.wraps(cycle)
    def forward(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return cycle(self, batch, *args, **kwargs)
        spent.update(dict.fromkeys(spent, 0.0))
        requests = len(batch.reqs)
        start = time.perf_counter()
        result = cycle(self, batch, *args, **kwargs)
        output.write(json.dumps({"bs": requests, "cycle": time.perf_counter() - start, **spent}) + "\n")
        return result

    module.EAGLEWorkerV2.forward_batch_generation = forward


class Watcher(importlib.abc.MetaPathFinder):
    """Wraps the modules as they are imported."""

    wanted: ClassVar[dict[str, Callable[[ModuleType], None]]] = {WORKER: wrap_worker, OPERATORS: wrap_operators}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        wrap = self.wanted.pop(name, None)
        spec = importlib.util.find_spec(name) if wrap else None
        if spec is None or spec.loader is None or wrap is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            wrap(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "CPU_KERNELS_PROBE" in os.environ:
    sys.meta_path.insert(0, Watcher())
