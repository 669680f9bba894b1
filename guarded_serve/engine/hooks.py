"""The functions that SGLang calls in place of its own, and how they are put there and found again.

Each one calls the original exactly once, with what it was given, and returns what it returned; whatever goes wrong in
our part is counted and forgotten.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from guarded_serve.engine.clock import CycleClock
from guarded_serve.engine.targets import SCHEDULER, WorkerTargets
from guarded_serve.engine.timers import DRAFT_END, DRAFT_START, EXTEND_END, EXTEND_START, VERIFY_END, VERIFY_START

Hook = Callable[..., Any]
APPLIED = "applied"


def clock_hooks(clock: CycleClock, targets: WorkerTargets) -> dict[str, Hook]:
    """The hooks of one worker and of the scheduler, by the dotted name of what they wrap."""
    by_role: dict[str, Hook] = {
        "cycle": _cycle(clock),
        "draft": _stage(clock, DRAFT_START, DRAFT_END),
        "verify": _stage(clock, VERIFY_START, VERIFY_END),
        "extend": _stage(clock, EXTEND_START, EXTEND_END),
        "target": _target(clock),
        "counts": _counts(clock),
    }
    hooks = {target: by_role[role] for role, target in targets.stages().items()}
    hooks[SCHEDULER["results"]] = _results(clock)
    return {**hooks, **pulse_hooks(clock)}


def pulse_hooks(clock: CycleClock) -> dict[str, Hook]:
    """Those of any scheduler, timed or not: what tells work from idleness in its beats."""
    return {SCHEDULER["idle"]: _idle(clock), SCHEDULER["pause"]: _pause(clock)}


def install(hooks: dict[str, Hook]) -> dict[str, str]:
    """Register and apply the hooks through SGLang's registry; say for each `APPLIED` or why it did not take hold."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

    state: dict[str, str] = {}
    for target, hook in hooks.items():
        reason = missing(target)
        if reason is None:
            HookRegistry.register(target, hook, HookType.AROUND)
        else:
            state[target] = reason
    HookRegistry.apply_hooks()  # logs and swallows its own errors, so look at what it did
    for target, hook in hooks.items():
        if target not in state:
            state[target] = APPLIED if wraps(target, hook) else "SGLang's registry did not apply it; see the server log"
    return state


def missing(target: str) -> str | None:
    """Why this SGLang has no such function, or None when it has. ``target`` is module, class and method, dotted, or
    module and function."""
    module_name, class_name, name = _parts(target)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # an optional dependency of SGLang's may raise anything
        return f"{module_name} does not import: {type(error).__name__}: {error}"
    owner = module if class_name is None else getattr(module, class_name, None)
    if owner is None:
        return f"{module_name} has no class {class_name}"
    if name not in vars(owner):
        return f"{class_name or module_name} has no {name} of its own"
    return None


def wraps(target: str, hook: Hook) -> bool:
    """Whether the function that ``target`` names calls ``hook``."""
    module_name, class_name, name = _parts(target)
    owner = importlib.import_module(module_name)
    function = getattr(owner if class_name is None else getattr(owner, class_name), name)
    return any(layer is hook for layer in _layers(function))


def _parts(target: str) -> tuple[str, str | None, str]:
    module, name = target.rsplit(".", 1)
    outer, _, last = module.rpartition(".")
    return (outer, last, name) if last[:1].isupper() else (module, None, name)


def _layers(function: Any) -> Iterator[Any]:
    while function is not None:
        for cell in getattr(function, "__closure__", None) or ():
            yield cell.cell_contents
        function = getattr(function, "__wrapped__", None)


def _cycle(clock: CycleClock) -> Hook:
    def cycle(original: Hook, worker: Any, *args: Any, **kwargs: Any) -> Any:
        slot = None
        batch = args[0] if args else kwargs.get("batch")
        if batch is not None:
            try:
                slot = clock.begin(batch)
            except Exception as error:
                clock.fault(error)
        result = original(worker, *args, **kwargs)
        if slot is not None and slot is clock.current:
            try:
                clock.end(slot, worker, result)
            except Exception as error:
                clock.fault(error)
        return result

    return cycle


def _stage(clock: CycleClock, first: int, last: int) -> Hook:
    def stage(original: Hook, *args: Any, **kwargs: Any) -> Any:
        if clock.current is None:
            return original(*args, **kwargs)
        try:
            clock.mark(first)
        except Exception as error:
            clock.fault(error)
        result = original(*args, **kwargs)
        try:
            clock.mark(last)
        except Exception as error:
            clock.fault(error)
        return result

    return stage


def _target(clock: CycleClock) -> Hook:
    def target(original: Hook, *args: Any, **kwargs: Any) -> Any:
        if clock.current is not None:
            try:
                clock.mark_target()
            except Exception as error:
                clock.fault(error)
        return original(*args, **kwargs)

    return target


def _counts(clock: CycleClock) -> Hook:
    def counts(original: Hook, worker: Any, num_correct_drafts_per_req: list[int], *args: Any, **kwargs: Any) -> Any:
        try:
            clock.counts(num_correct_drafts_per_req)
        except Exception as error:
            clock.fault(error)
        return original(worker, num_correct_drafts_per_req, *args, **kwargs)

    return counts


def _results(clock: CycleClock) -> Hook:
    def results(original: Hook, scheduler: Any, batch: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        decode = emitted = False
        try:
            mode = batch.forward_mode
            decode = mode.is_decode()
            if decode:
                clock.settle_begin(batch, result)
            elif mode.is_extend():
                emitted = True
                before = sum(len(req.output_ids) for req in batch.reqs)
        except Exception as error:
            clock.fault(error)
        value = original(scheduler, batch, result, *args, **kwargs)
        try:
            if decode:
                clock.settle_end(batch)
            elif emitted:
                clock.prefill_tokens += sum(len(req.output_ids) for req in batch.reqs) - before
            clock.poll()
        except Exception as error:
            clock.fault(error)
        return value

    return results


def _idle(clock: CycleClock) -> Hook:
    def idle(original: Hook, *args: Any, **kwargs: Any) -> Any:
        try:
            clock.idle_forward = _forwards(args)
            clock.interrupt()
            clock.poll()
        except Exception as error:
            clock.fault(error)
        return original(*args, **kwargs)

    return idle


def _forwards(args: tuple[Any, ...]) -> int | None:
    """SGLang's count of forward passes, from the arguments of a scheduler's method."""
    return getattr(args[0], "forward_ct", None) if args else None


def _pause(clock: CycleClock) -> Hook:
    def pause(original: Hook, *args: Any, **kwargs: Any) -> Any:
        try:
            clock.idle_forward = _forwards(args)  # the loop turns on without work, and does not call itself idle
            clock.interrupt()
        except Exception as error:
            clock.fault(error)
        return original(*args, **kwargs)

    return pause
