"""One launch of the server: run folder, process tree, engine events, readiness, and the watch over its processes.

It knows nothing of restarts, states or exit codes: it tells its owner what happened.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from guarded_serve import engine_link
from guarded_serve.engine_link import EngineSettings
from guarded_serve.profile.deployment import Deployment
from guarded_serve.supervisor import ready
from guarded_serve.supervisor.child import Callbacks, Child
from guarded_serve.supervisor.environment import server_environment
from guarded_serve.supervisor.loop import Loop, Timer
from guarded_serve.supervisor.progress import CANNOT_BIND, FIRED_UP, stage_of
from guarded_serve.supervisor.run_folder import RunFolder
from guarded_serve.supervisor.secrets import out_of_sight

TAIL = 200  # lines kept for the crash report
_RETRY_S = 1.0
_PORT_SETTLED_S = 10.0  # the port answers for so long: try a generation even if the log's marker never came
_ATTEMPT_S = 60.0
_LAST_WORDS_S = 1.0  # between the loss of a process and its telling, see `_on_process_ended`
_HELLO_S = 10.0  # the plugin's greeting comes long before the first generation; so much grace and no more


@dataclass
class Told:
    """What the owner is told."""

    lines: Callable[[bytes], None]
    stage: Callable[[str], None]  # a step of the start-up began
    answered: Callable[[], None]  # hello and a real generation: it can serve
    refused: Callable[[Mapping[str, Any]], None]  # by a gate in the engine, or a hook is missing
    lost: Callable[[int | None, str | None], None]  # the server's status, None while it runs; which process ended first
    gone: Callable[[list[str]], None]
    beat: Callable[[Mapping[str, Any]], None]
    totals: Callable[[Mapping[str, Any]], None]
    hello: Callable[[Mapping[str, Any]], None]
    fault: Callable[[Mapping[str, Any]], None]  # an error of ours inside the engine, which went on
    loaded: Callable[[Mapping[str, Any]], None] = lambda event: None  # what a scheduler made of the drafter
    settings: Callable[[Mapping[str, Any]], None] = lambda event: None  # what is in force in a scheduler


@dataclass
class _Watched:
    role: str
    descriptor: int


@dataclass
class Launch:
    """Starts at once; end it with `kill` and, after `Told.gone`, `close`."""

    loop: Loop
    deployment: Deployment
    command: Sequence[str]
    told: Told
    tail: deque[bytes] = field(default_factory=lambda: deque(maxlen=TAIL))
    ending: bool = False  # no loss is worth telling any more
    draining: bool = False  # it was asked to end: its schedulers go first, then its main process

    def __post_init__(self) -> None:
        self.launch_id = uuid.uuid4().hex
        self.address = ready.Address.of(self.deployment)
        self.started_at = time.monotonic()
        self._hellos: dict[int, Mapping[str, Any]] = {}
        self._watched: dict[int, _Watched] = {}
        self._loaded = False  # a scheduler told of its drafter
        self._load_fault: str | None = None  # why the plugin could not judge a load
        self._lost = False
        self._first_lost: str | None = None  # the process of the server that ended first
        self._fired_up = False
        self._said = ""  # of a first generation that did not come back
        self._port_open_since: float | None = None
        self._trying = False
        self._answered_at: float | None = None
        self._timer: Timer | None = None
        self.run_folder = RunFolder()
        timing = self.deployment.profile.timing
        settings = EngineSettings(
            launch_id=self.launch_id,
            socket=str(self.run_folder.socket_path),
            control=str(self.run_folder.control_path),
            cycles_directory=str(timing.directory) if timing.directory else None,
            ranks=timing.ranks,
            rotate_mib=timing.rotate_mib,
            keep=timing.keep,
        )
        try:
            self.child = Child(
                self.loop,
                [*self.command, *out_of_sight(self.deployment, self.run_folder.path)],
                server_environment(os.environ, self.deployment, settings),
                self.run_folder.path,
                Callbacks(lines=self._on_lines, server_ended=self._on_server_ended, all_gone=self._on_gone),
            )
        except BaseException:
            self.run_folder.close()  # it may hold the API key
            raise
        self.loop.add_reader(self.run_folder.fileno(), self._on_events)
        self._again(_RETRY_S)

    @property
    def has_scheduler(self) -> bool:
        """Whether the plugin has a process to report from: an encoder alone has none."""
        return not self.deployment.get("encoder_only")

    def watched(self) -> dict[str, int]:
        """The server's own processes by role and number, its main process first."""
        main = {f"main {self.child.server_pid}": self.child.server_pid} if self.child.server_pid else {}
        return main | {f"{watched.role} {pid}": pid for pid, watched in self._watched.items()}

    def kill(self) -> None:
        """End every process now."""
        self.ending = True
        self._stop_trying()
        self.child.kill()

    def close(self) -> None:
        """Free everything; whatever still runs is killed."""
        self.ending = True
        self._stop_trying()
        for watched in self._watched.values():
            self.loop.remove(watched.descriptor)
            os.close(watched.descriptor)
        self._watched.clear()
        self.loop.remove(self.run_folder.fileno())
        self.child.close()
        self.run_folder.close()

    def watch_processes(self) -> None:
        """Watch every process that calls itself ``sglang::...``, whether it greeted or not."""
        for pid in self.child.processes():
            title = _title(pid)
            if title.startswith("sglang::"):
                self._watch(pid, title.removeprefix("sglang::"))

    # What happens to it

    def _on_lines(self, block: bytes) -> None:
        lines = block[:-1].split(b"\n")
        self.tail.extend(lines)
        if self._answered_at is None:
            for line in lines:
                if FIRED_UP in line:
                    self._fired_up = True
                    self._again(0)
                elif stage := stage_of(line):
                    self.told.stage(stage)
        self.told.lines(block)
        if self._answered_at is None and CANNOT_BIND in block:
            self._lose(None)

    def _on_events(self) -> None:
        for event in self.run_folder.receive():
            kind = event["event"]
            if kind == engine_link.HELLO:
                self._on_hello(event)
            elif kind == engine_link.REFUSED and not self.ending:
                self.told.refused(event)
            elif kind == engine_link.DRAFTER_LOADED and not self.ending:
                self._loaded = True
                self._warn_of_unwatched(event)
                self.told.loaded(event)
            elif kind == engine_link.SETTINGS:
                self.told.settings(event)
            elif kind == engine_link.BEAT:
                self.told.beat(event)
            elif kind == engine_link.TOTALS:
                self.told.totals(event)
            elif kind == engine_link.FAULT:
                if event.get("about") == engine_link.LOAD:
                    self._load_fault = str(event.get("message"))
                self.told.fault(event)

    def _warn_of_unwatched(self, event: Mapping[str, Any]) -> None:
        load_format = self.deployment.get("speculative_draft_load_format") or self.deployment.get("load_format")
        for drafter in event.get("drafters") or ():
            if drafter.get("loaded") is False and load_format != "dummy":
                message = f"the load of {drafter.get('class')} passed `load_weights` by"
                self.told.fault({"message": f"{message}; whether every parameter was written is not known"})

    def _on_hello(self, event: Mapping[str, Any]) -> None:
        pid = event.get("pid")
        if not isinstance(pid, int) or self.ending or event.get("launch_id", self.launch_id) != self.launch_id:
            return
        self._hellos[pid] = event
        self.told.hello(event)
        if pid != self.child.server_pid and pid in self.child.processes():
            self._watch(pid, str(event.get("role") or "process"))
        self.child.note_shared_memory()

    def _watch(self, pid: int, role: str) -> None:
        if pid in self._watched or pid == self.child.server_pid:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._on_process_ended(pid, role)
            return
        except OSError:
            return  # a kernel without pidfd_open: the server's own end is still seen
        self._watched[pid] = _Watched(role, descriptor)
        self.loop.add_reader(descriptor, lambda: self._on_process_ended(pid, role))

    def _on_process_ended(self, pid: int, role: str) -> None:
        watched = self._watched.get(pid)
        if watched is not None:
            self.loop.remove(watched.descriptor)
        if self._first_lost is None and not self.ending and not self.draining:
            self._first_lost = f"{role} {pid}"
            # Its parent may be about to end too, in order or not, and to say why.
            self.loop.call_later(_LAST_WORDS_S, lambda: None if self.draining else self._lose(None))

    def _on_server_ended(self, status: int) -> None:
        self._lose(status)

    def _lose(self, status: int | None) -> None:
        if not self._lost and not self.ending:
            self._lost = True
            self._stop_trying()
            self.child.drain_output()
            self.told.lost(status, self._first_lost)

    def _on_gone(self, removed: list[str]) -> None:
        self.ending = True
        self.told.gone(removed)

    # Readiness

    def _again(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._try)

    def _stop_trying(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _try(self) -> None:
        if self.ending or self._trying:
            return
        if self._answered_at is not None:
            self._check_hello()
            return
        if not self._fired_up and not self._port_settled():
            self._again(_RETRY_S)
            return
        address = self.address
        if not address.answers:  # a log line or a port that stays open is all that such a server shows
            self._on_attempt(ready.Answer(True, "takes no generation by itself"))
            return
        self._trying = True
        self.loop.in_thread(lambda: ready.generate(address, _ATTEMPT_S), self._on_attempt)

    def _port_settled(self) -> bool:
        if not ready.listens(self.address):
            self._port_open_since = None
            return False
        if self._port_open_since is None:
            self._port_open_since = time.monotonic()
        return time.monotonic() - self._port_open_since >= _PORT_SETTLED_S

    def _on_attempt(self, answer: object) -> None:
        self._trying = False
        if self.ending or self._lost:
            return
        if isinstance(answer, ready.Answer) and answer.ok:
            self._answered_at = time.monotonic()
            self._check_hello()
            return
        said = f"first generation: {answer.detail if isinstance(answer, ready.Answer) else answer}"
        if said != self._said:
            self._said = said
            self.told.stage(said)
        self._again(_RETRY_S)

    def _check_hello(self) -> None:
        refusal = self._engine_refusal() if self.has_scheduler else None
        if refusal is _NO_HELLO and time.monotonic() - (self._answered_at or 0) < _HELLO_S:
            self._again(0.1)
            return
        if refusal is not None:
            self.told.refused(refusal)
            return
        self.child.note_shared_memory()
        self.watch_processes()
        self.told.answered()

    def _engine_refusal(self) -> Mapping[str, str | None] | None:
        """Why the engine may not serve, by what its schedulers reported; None where it may."""
        schedulers = [event for event in self._hellos.values() if event.get("role") == "scheduler"]
        if not schedulers:
            return _NO_HELLO
        missing = {
            str(target): str(reason)
            for event in schedulers
            for target, reason in (event.get("hooks") or {}).items()
            if reason != "applied"
        }
        unjudged = [target for target in engine_link.LOAD_HOOKS if target in missing]
        if _has_own_drafter(self.deployment):
            if unjudged:
                message = f"the load of the drafter is not judged: {unjudged[0]}: {missing[unjudged[0]]}"
                return {"check": "engine.load", "message": message, "remedy": _LOAD_REMEDY}
            if not self._loaded and any(_hosts_drafter(event) for event in schedulers):
                return {**_NOT_LOADED, "found": self._load_fault}
        if missing:
            target, reason = next(iter(missing.items()))
            message = f"{len(missing)} of the guard's hooks did not take hold in SGLang: {target}: {reason}"
            untimed = missing.keys() - {engine_link.INITIALIZE}  # which is the load gate's alone
            if self.deployment.profile.timing.directory is not None and untimed:
                return {"check": "engine.hooks", "message": message, "remedy": _HOOKS_REMEDY}
            self.told.fault({"message": f"{message}; no cycle is timed"})
        return None


def _has_own_drafter(deployment: Deployment) -> bool:
    """Whether SGLang loads a second model to draft with, from files of its own: then its load is told and judged."""
    algorithm = str(deployment.get("speculative_algorithm")).upper()  # as SGLang takes it
    return algorithm in _DRAFTING and bool(deployment.get("speculative_draft_model_path"))


_DRAFTING = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "DFLASH", "DSPARK", "FROZEN_KV_MTP")


def _hosts_drafter(hello: Mapping[str, Any]) -> bool:
    """SGLang builds the drafter on the last pipeline stage alone, which may be another node's."""
    place = hello.get("place") or {}
    return bool(place.get("pp_rank", 0) == place.get("pp_size", 1) - 1)


_NO_HELLO = {
    "check": "engine.hello",
    "message": "the server answers, but the guard's plugin never reported from its scheduler",
    "remedy": "install guarded_serve in SGLang's own Python environment; its log says which plugins it loaded",
}


_LOAD_REMEDY = "use an SGLang that guarded_serve knows (0.5.16 to 0.5.23)"

_NOT_LOADED = {
    "check": "engine.load",
    "message": "the server answers, but no scheduler told what it made of the drafter's files",
    "expected": "an account of the load, which is held against what the checks read of the files",
    "remedy": _LOAD_REMEDY,
}

_HOOKS_REMEDY = "use an SGLang that guarded_serve knows (0.5.16 to 0.5.23), or take timing.directory out of the profile"


def _title(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            return file.read(200).split(b"\0", 1)[0].decode(errors="replace")
    except OSError:
        return ""
