"""From the environment mark to a running clock, in the scheduler's process.

One hook is registered while plugins load: round the scheduler's constructor. When it returns, the worker exists and the
ranks are known, so the right hooks are put in place, the `hello` goes out and the clock runs from the first batch.
"""

from __future__ import annotations

import atexit
import time
from pathlib import Path
from typing import Any

from guarded_serve.engine.clock import CycleClock
from guarded_serve.engine.cycle_file import CycleFile
from guarded_serve.engine.events import Events
from guarded_serve.engine.hooks import APPLIED, Hook, clock_hooks, install, missing
from guarded_serve.engine.prometheus import EngineMetrics
from guarded_serve.engine.targets import BUILD, PLAIN_WORKER, WORKERS, worker_name
from guarded_serve.engine.telemetry import Telemetry
from guarded_serve.engine.timers import CpuTimer, EventTimer, Timer
from guarded_serve.engine_link import FAULT, HELLO, EngineSettings


def register(text: str) -> None:
    """``text`` is the value of the environment mark. Never raises: SGLang would only log it and serve on."""
    try:
        settings = EngineSettings.from_json(text)
    except (ValueError, TypeError):
        return  # no socket to say so; the launcher misses the hello
    events = Events(settings.socket)
    reason = missing(BUILD)
    if reason is None:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

        HookRegistry.register(BUILD, _build(settings, events), HookType.AROUND)
    else:
        events.send(HELLO, role="scheduler", sglang=_sglang_version(), hooks={BUILD: reason})


def _build(settings: EngineSettings, events: Events) -> Hook:
    def build(original: Hook, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scheduler, *args, **kwargs)
        try:
            _start(settings, events, scheduler)
        except Exception as error:
            events.send(FAULT, faults=1, message=f"the plugin did not start: {type(error).__name__}: {error}")
        return result

    return build


def _start(settings: EngineSettings, events: Events, scheduler: Any) -> None:
    place = placement(scheduler)
    events.rank = rank = place["rank"]
    worker = scheduler.model_worker
    name = worker_name(worker)
    state: dict[str, Any] = {
        "role": "scheduler",
        "launch_id": settings.launch_id,
        "sglang": _sglang_version(),
        "algorithm": scheduler.server_args.speculative_algorithm,
        "worker": type(worker).__name__,
        "device": str(getattr(scheduler, "device", None) or scheduler.server_args.device),
        "place": place,
    }
    timer = _timer(state["device"])
    if settings.ranks == "first" and not place["first"]:
        events.send(HELLO, **state, clocked=False, hooks={BUILD: APPLIED})
        return
    if name is None or timer is None:
        reason = f"no hooks are known for {state['worker']}"
        if timer is None:
            reason = f"no timer for device {state['device']}"
        events.send(HELLO, **state, clocked=False, hooks={BUILD: APPLIED, "clock": reason})
        return
    cycle_file = None
    if settings.cycles_directory is not None:
        directory = Path(settings.cycles_directory)
        cycle_file = CycleFile(directory, rank, rotate_bytes=settings.rotate_mib << 20, keep=settings.keep)
    telemetry = Telemetry(events, Path(settings.control), cycle_file)
    clock = CycleClock(timer, telemetry.take, rank=rank, plain=name == PLAIN_WORKER, wall=time.time)
    telemetry.clock = clock
    telemetry.scheduler = scheduler
    if scheduler.server_args.enable_metrics:
        telemetry.metrics = EngineMetrics(rank)
    hooks = {BUILD: APPLIED, **install(clock_hooks(clock, WORKERS[name]))}
    telemetry.start()
    atexit.register(telemetry.stop)
    events.send(HELLO, **state, clocked=True, source=timer.source, hooks=hooks)


def _timer(device: str) -> Timer | None:
    kind = device.partition(":")[0]
    if kind == "cpu":
        return CpuTimer()
    return EventTimer.for_cuda() if kind == "cuda" else None


def placement(scheduler: Any) -> dict[str, Any]:
    """Where this scheduler stands: ranks, one number that is unique among them all, and whether it is the first of its
    data-parallel group (the ranks of one group see the same batches).

    SGLang up to 0.5.21 keeps the ranks in ``scheduler.ps``, later ones in the runtime context.
    """
    where = getattr(scheduler, "ps", None)
    if where is None:
        from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415

        where = get_parallel()
    dp_rank = where.dp_rank or 0
    attention_dp = bool(getattr(scheduler.server_args, "enable_dp_attention", False))
    replica = 0 if attention_dp else dp_rank  # with DP attention the groups share one set of TP ranks
    return {
        "rank": (replica * where.pp_size + where.pp_rank) * where.tp_size + where.tp_rank,
        "tp_rank": where.tp_rank,
        "pp_rank": where.pp_rank,
        "dp_rank": where.dp_rank,
        "first": where.attn_tp_rank == 0 and where.pp_rank == where.pp_size - 1,
    }


def _sglang_version() -> str:
    try:
        from importlib.metadata import version  # noqa: PLC0415

        return version("sglang")
    except Exception:
        return "unknown"
