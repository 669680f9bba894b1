"""SGLang's side of the cycle clock, made by hand: batches, requests, CUDA events that finish when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from guarded_serve.engine.clock import CycleClock
from guarded_serve.engine.hooks import Hook, clock_hooks
from guarded_serve.engine.targets import SCHEDULER, WORKERS, WorkerTargets
from guarded_serve.engine.timers import EventTimer, Timer
from guarded_serve.timing.record import Cycle


@dataclass
class Mode:
    """`ForwardMode`, as far as the hooks look."""

    name: str

    def is_decode(self) -> bool:
        return self.name == "decode"

    def is_extend(self) -> bool:
        return self.name == "extend"


@dataclass
class Request:
    """`Req`, as far as the hooks look."""

    output_ids: list[int] = field(default_factory=list)
    is_retracted: bool = False
    finished_len: int | None = None
    grammar: object | None = None
    over: bool = False

    def finished(self) -> bool:
        return self.over


@dataclass
class Batch:
    """`ScheduleBatch`, as far as the hooks look."""

    forward_mode: Mode
    forward_iter: int
    reqs: list[Request]


class Device:
    """A GPU that runs events in order, up to where the test lets it; recording costs nothing."""

    def __init__(self) -> None:
        self.now = 0.0  # what the next recorded event will read when it is done
        self.recorded = 0
        self.done = 0  # events with a number below are done
        self.made = 0

    def event(self) -> DeviceEvent:
        self.made += 1
        return DeviceEvent(self)

    def finish(self) -> None:
        """Everything recorded so far has passed."""
        self.done = self.recorded


class DeviceEvent:
    """`torch.cuda.Event`: asking is allowed, waiting is not."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._number = -1
        self.at = 0.0

    def record(self, stream: object) -> None:
        assert stream == "current"
        self._number = self._device.recorded
        self._device.recorded += 1
        self.at = self._device.now

    def query(self) -> bool:
        return 0 <= self._number < self._device.done

    def elapsed_time(self, other: DeviceEvent) -> float:
        assert self.query(), "read an event that is not done"
        assert other.query(), "read an event that is not done"
        return other.at - self.at

    def synchronize(self) -> None:
        raise AssertionError("the clock waited for the device")


class Engine:
    """A scheduler and a worker whose functions are wrapped as SGLang's are, driven step by step."""

    def __init__(self, worker: str = "EAGLEWorkerV2", *, timer: Timer | None = None, plain: bool = False) -> None:
        self.device = Device()
        self.records: list[Cycle] = []
        timer = timer or EventTimer(self.device.event, lambda: "current")
        self.clock = CycleClock(timer, self.records.append, rank=0, plain=plain, wall=lambda: 1000.0)
        self.targets: WorkerTargets = WORKERS[worker]
        self.hooks = clock_hooks(self.clock, self.targets)
        self.worker = SimpleNamespace(speculative_num_steps=3, speculative_num_draft_tokens=4, forward_ct=0)
        self.forward = 0

    def stage(self, role: str, milliseconds: float) -> None:
        """One stage of the worker, as long as said on the device."""
        target = getattr(self.targets, role)
        self.call(self.hooks[target], lambda *_: self._work(milliseconds))

    def call(self, hook: Hook, original: Callable[..., Any], *arguments: Any) -> Any:
        return hook(original, self.worker, *arguments)

    def _work(self, milliseconds: float) -> None:
        self.device.now += milliseconds

    def launch(
        self, reqs: list[Request], draft: float = 1.0, verify: float = 6.0, extend: float = 0.5, mode: str = "decode"
    ) -> Batch:
        """A forward pass; 0.1 ms pass on the device after it."""
        self.forward += 1
        batch = Batch(Mode(mode), self.forward, list(reqs))

        def work(*_: Any) -> Any:
            if mode == "decode":
                for role, milliseconds in (("draft", draft), ("verify", verify), ("extend", extend)):
                    if getattr(self.targets, role) is not None and milliseconds:
                        self.stage(role, milliseconds)
            else:
                self._work(20.0)
            return SimpleNamespace(speculative_num_draft_tokens=4)

        self.call(self.hooks[self.targets.cycle], work, batch)
        self._work(0.1)
        return batch

    def process(self, batch: Batch, accept: list[int], after: Callable[[], None] | None = None) -> None:
        """SGLang processes a result: it waits for that batch's work, so the device has done at least that."""

        def original(*_: Any) -> None:
            if batch.forward_mode.is_decode() and self.targets.counts is not None:
                drafts = [count - 1 for count in accept]
                self.call(self.hooks[self.targets.counts], lambda *_: None, drafts)
            for req, count in zip(batch.reqs, accept, strict=True):
                if not (req.is_retracted or req.over):
                    req.output_ids.extend([7] * count)
            if after is not None:
                after()

        self.call(self.hooks[SCHEDULER["results"]], original, batch, SimpleNamespace())

    def idle(self) -> None:
        self.call(self.hooks[SCHEDULER["idle"]], lambda *_: None)

    def pause(self) -> None:
        self.call(self.hooks[SCHEDULER["pause"]], lambda *_: None)
