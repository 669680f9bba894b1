"""From the environment mark to a judged load and a running clock, in the scheduler's process.

Two hooks are registered while plugins load: round the function that builds models, for the load gate, and round the
scheduler's constructor. When that returns, the worker exists and the ranks are known: the load is judged, the right
hooks are put in place, the `hello` goes out and the clock runs from the first batch.
"""

from __future__ import annotations

import atexit
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from guarded_serve.engine.clock import CycleClock
from guarded_serve.engine.cycle_file import CycleFile
from guarded_serve.engine.events import Events
from guarded_serve.engine.hooks import APPLIED, Hook, clock_hooks, install, missing, pulse_hooks, wraps
from guarded_serve.engine.load_gate import LoadGate, Refusal, effective_settings, judge
from guarded_serve.engine.prometheus import EngineMetrics
from guarded_serve.engine.targets import PLAIN_WORKER, SCHEDULER, WORKERS, worker_name
from guarded_serve.engine.telemetry import Telemetry
from guarded_serve.engine.timers import CpuTimer, EventTimer, Timer
from guarded_serve.engine_link import (
    BUILD,
    DRAFTER_LOADED,
    FAULT,
    HELLO,
    INITIALIZE,
    LOAD,
    REFUSED,
    SETTINGS,
    EngineSettings,
)


def register(text: str) -> None:
    """``text`` is the value of the environment mark. Never raises: SGLang would only log it and serve on."""
    try:
        settings = EngineSettings.from_json(text)
    except (ValueError, TypeError):
        return  # no socket to say so; the launcher misses the hello
    events = Events(settings.socket)
    gate = LoadGate()
    reasons = {target: reason for target in (BUILD, INITIALIZE) if (reason := missing(target)) is not None}
    if BUILD in reasons:
        events.send(HELLO, role="scheduler", sglang=_sglang_version(), hooks=reasons)
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

    HookRegistry.register(BUILD, _build(settings, events, gate), HookType.AROUND)
    if INITIALIZE not in reasons:
        HookRegistry.register(INITIALIZE, gate.hook, HookType.AROUND)


class EngineRefused(Exception):
    """Gate 2 said no. The one exception of ours that SGLang is meant to see: it ends the engine before it serves."""


def _build(settings: EngineSettings, events: Events, gate: LoadGate) -> Hook:
    def build(original: Hook, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(scheduler, *args, **kwargs)
        except Exception:
            _judge(events, gate, scheduler)  # it may be the drafter that SGLang stumbled over: say so first
            raise
        refusals = _judge(events, gate, scheduler)
        if refusals:
            raise EngineRefused("; ".join(refusal.message for refusal in refusals))
        try:
            _start(settings, events, scheduler, gate)
        except Exception as error:
            events.send(FAULT, faults=1, message=f"the plugin did not start: {type(error).__name__}: {error}")
        return result

    return build


def _judge(events: Events, gate: LoadGate, scheduler: Any) -> list[Refusal]:
    """Tell what was loaded and what is in force; the refusals, told too. Never raises.

    A load counts as told only when it was judged: an error of ours leaves it out, and the launcher misses it.
    """
    refusals: list[Refusal] = []
    try:
        if gate.watches:
            facts = gate.facts(scheduler)
            refusals = judge(facts)
            events.send(DRAFTER_LOADED, **facts)
            for refusal in refusals:
                events.send(REFUSED, **asdict(refusal))
    except Exception as error:
        gate.errors.append(f"{type(error).__name__}: {error}")
    gate.watches.clear()
    for problem in gate.errors:
        events.send(FAULT, faults=1, message=f"the load could not be judged: {problem}", about=LOAD)
    try:
        events.send(SETTINGS, **effective_settings(scheduler))
    except Exception as error:
        message = f"the settings in force could not be read: {type(error).__name__}: {error}"
        events.send(FAULT, faults=1, message=message)
    return refusals


def _start(settings: EngineSettings, events: Events, scheduler: Any, gate: LoadGate) -> None:
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
    before = {BUILD: APPLIED, INITIALIZE: _applied(INITIALIZE, gate.hook)}
    timer = _timer(state["device"])
    wanted = settings.ranks == "all" or place["first"]
    targets = WORKERS[name] if name is not None and timer is not None and wanted else None
    if wanted and targets is None:
        reason = (
            f"no timer for device {state['device']}" if timer is None else f"no hooks are known for {state['worker']}"
        )
        before["clock"] = reason
    cycle_file = None
    if targets is not None and settings.cycles_directory is not None:
        directory = Path(settings.cycles_directory)
        cycle_file = CycleFile(directory, rank, rotate_bytes=settings.rotate_mib << 20, keep=settings.keep)
    # Every scheduler has beats, the one that is not timed too: the launcher must know that each of them is alive.
    telemetry = Telemetry(events, Path(settings.control), cycle_file)
    clock = CycleClock(timer or CpuTimer(), telemetry.take, rank=rank, plain=name == PLAIN_WORKER, wall=time.time)
    telemetry.clock = clock
    telemetry.scheduler = scheduler
    telemetry.clocked = targets is not None
    if telemetry.clocked and scheduler.server_args.enable_metrics:
        telemetry.metrics = EngineMetrics(rank)
    hooks = install(pulse_hooks(clock) if targets is None else clock_hooks(clock, targets))
    telemetry.knows_idle = hooks[SCHEDULER["idle"]] == APPLIED
    telemetry.start()
    atexit.register(telemetry.stop)
    source = {} if timer is None or targets is None else {"source": timer.source}
    events.send(HELLO, **state, clocked=telemetry.clocked, **source, hooks={**before, **hooks})


def _applied(target: str, hook: Hook) -> str:
    reason = missing(target)
    if reason is not None:
        return reason
    return APPLIED if wraps(target, hook) else "SGLang's registry did not apply it; see the server log"


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
        "pp_size": where.pp_size,
        "dp_rank": where.dp_rank,
        "first": where.attn_tp_rank == 0 and where.pp_rank == where.pp_size - 1,
    }


def _sglang_version() -> str:
    try:
        from importlib.metadata import version  # noqa: PLC0415

        return version("sglang")
    except Exception:
        return "unknown"
