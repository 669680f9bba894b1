"""The life of a supervised server: gates, start, readiness, watch, stop, restart. One loop; signals are only queued.

preflight > starting > probing > serving > draining > stopped
any of them may end in refused (a gate said no) or failed (it died, hung or never became ready).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding, Severity
from guarded_serve.profile.deployment import Deployment, Setting
from guarded_serve.supervisor import cgroup, crash, death, gpu_release, ready
from guarded_serve.supervisor.child import become_subreaper
from guarded_serve.supervisor.economy import WINDOW_S as ECONOMY_S
from guarded_serve.supervisor.economy import Economy
from guarded_serve.supervisor.environment import environment_note
from guarded_serve.supervisor.fold import WINDOW_S, Folder
from guarded_serve.supervisor.launch import Launch, Told
from guarded_serve.supervisor.lines import Format, Lines
from guarded_serve.supervisor.loop import Loop, Timer
from guarded_serve.supervisor.notify import Notify
from guarded_serve.supervisor.output import Output
from guarded_serve.supervisor.preflight import Gate
from guarded_serve.supervisor.probing import Probe, Probed
from guarded_serve.supervisor.reaper import Reaper
from guarded_serve.supervisor.recording import Recording
from guarded_serve.supervisor.redact import Redactor
from guarded_serve.supervisor.reload import Reload, what_changes
from guarded_serve.supervisor.restarts import Restarts
from guarded_serve.supervisor.startup import StartClock
from guarded_serve.supervisor.states import ENDS, State, may_follow
from guarded_serve.supervisor.watch import Watch

SERVER_COMMAND = (sys.executable, "-m", "sglang.launch_server")
_STARTUP_STOP_S = 10.0  # a server that does not serve yet has nothing to drain
_KILL_S = 10.0  # SIGKILL to everything gone; longer means a process that the kernel cannot end
_BUSY_RETRY_S = 2.0
_DUMP_S = 20.0
_TAIL_SHOWN = 20
_NOTHING_LEFT = "nothing of the server is left"
_STALL_S = 5.0  # without a reader, before lines are left out; far below supervise.hang_s


@dataclass(frozen=True)
class Options:
    """How to supervise, beside what the profile says."""

    log_format: Format | None = None  # None: for a person on a terminal, else plain
    command: Sequence[str] = SERVER_COMMAND
    probe: Probe | None = None  # gate 3; None: none
    reload: Reload | None = None  # reads the profile again; None: SIGHUP changes nothing


Preflight = Callable[[Deployment], Gate]


def supervise(deployment: Deployment, preflight: Preflight, options: Options | None = None) -> ExitCode:
    """Run the server until it ends or is asked to; returns what to exit with. Main thread only."""
    options = options or Options()
    with Loop() as loop:
        output = Output(loop)
        try:
            return Supervisor(loop, deployment, preflight, options, output).run()
        finally:
            output.finish()


class Supervisor:
    """The state machine."""

    def __init__(
        self, loop: Loop, deployment: Deployment, preflight: Preflight, options: Options, output: Output
    ) -> None:
        self._loop = loop
        self._deployment = deployment
        self._limits = deployment.profile.supervise
        self._preflight = preflight
        self._options = options
        self._output = output
        self._redactor = Redactor.of(deployment)
        self._lines = Lines(output, options.log_format or Format.suited_to(1), self._redactor)
        self._notify = Notify()
        self._folder = Folder()
        self._restarts = Restarts(self._limits.restarts, self._limits.restart_window_s)
        self._economy = Economy(deployment.profile, lambda: self._state.value if self._state else "")
        self._launch: Launch | None = None
        self._watch: Watch | None = None
        self._clock: StartClock | None = None
        self._recording = Recording()
        self._in_force: set[str] = set()  # settings that the engine reported
        self._lives = 0  # starts so far, refused ones included
        self._state: State | None = None
        self._code: ExitCode = ExitCode.OK
        self._timers: dict[str, Timer] = {}
        self._asked = 0  # stop signals so far
        self._busy_until: float | None = None
        self._instead: Deployment | None = None  # what a failed probe made us serve
        self._kills_before: int | None = None
        self._gpus = 0  # that the server was given
        self._unread: int | None = None  # lines left out since a reader stalled; None: somebody reads
        self._lost_told = 0  # bytes of output
        self._hang_up_stops = any(os.isatty(descriptor) for descriptor in (0, 1, 2))
        output.on_room = self._on_room

    def run(self) -> ExitCode:
        """Until the end."""
        become_subreaper()
        Reaper(self._loop)
        wanted = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        ignored = {number for number in (signal.SIGHUP, signal.SIGINT) if signal.getsignal(number) is signal.SIG_IGN}
        self._loop.on_signals(sorted(wanted - ignored), self._on_signal)  # nohup and `&` mean what they say
        try:
            self._serve_metrics()
            self._begin()
            self._loop.run()
        finally:
            self._economy.close()
            if self._launch is not None:
                self._launch.close()
        return self._code

    def _serve_metrics(self) -> None:
        wanted = self._deployment.profile.metrics
        if wanted.port:
            try:
                self._economy.serve_metrics(wanted.host, wanted.port)
            except OSError as error:
                where = f"{wanted.host} port {wanted.port} (metrics.host, metrics.port)"
                self._lines.warning(f"no metrics are served on {where}: {error.strerror or error}")

    # States and timers

    def _enter(self, state: State, message: str = "", *, level: str = "info", **fields: Any) -> None:
        if not may_follow(self._state, state):
            raise RuntimeError(f"{self._state} cannot become {state}")
        self._state = state
        getattr(self._lines, level)(message, state=state.value, **fields)
        self._notify.send(STATUS=self._redactor.text(f"{state.value}{': ' + message if message else ''}"))

    def _later(self, name: str, seconds: float, callback: Callable[[], None]) -> None:
        self._cancel(name)
        self._timers[name] = self._loop.call_later(seconds, callback)

    def _cancel(self, *names: str) -> None:
        for name in names:
            timer = self._timers.pop(name, None)
            if timer is not None:
                timer.cancel()

    # Preflight and start

    def _begin(self) -> None:
        self._enter(State.PREFLIGHT)
        if self._clock is None:
            self._clock = StartClock(self._loop, self._notify)
        deadline = self._limits.start_deadline_s
        self._later("start", deadline, lambda: self._on_start_deadline(deadline))
        for note in self._deployment.notes:
            self._lines.info(note)
        self._busy_until = None
        self._lives += 1
        self._recording, self._in_force = Recording(), set()
        self._check()

    def _check(self) -> None:
        deployment, life = self._deployment, self._lives
        self._loop.in_thread(lambda: self._preflight(deployment), lambda gate: self._on_preflight(life, gate))

    def _on_preflight(self, life: int, gate: object) -> None:
        if self._state is not State.PREFLIGHT or life != self._lives:
            return  # stopped or given up meanwhile
        if not isinstance(gate, Gate):
            self._end(State.FAILED, ExitCode.INTERNAL, f"the checks themselves failed: {gate!r}")
        elif gate.code is ExitCode.BUSY and self._may_wait(gate):
            self._later("busy", _BUSY_RETRY_S, self._check)
        else:
            self._lines.report(gate.report)
            if gate.code is ExitCode.OK:
                for note in gate.notes:
                    self._lines.info(note)
                self._start(gate)
            else:
                self._end(State.REFUSED, gate.code, "the checks before the start refused it; nothing was started")

    def _may_wait(self, gate: Gate) -> bool:
        """Memory, ports and shared memory of a server that just ended take a while to come free."""
        now, wait_s = time.monotonic(), self._deployment.profile.gpus.wait_s
        if self._busy_until is None:
            self._busy_until = now + wait_s
            errors = (found for found in gate.report.findings if found.severity is Severity.ERROR)
            busy = [found.message for found in errors if found.exit_code is ExitCode.BUSY]
            if wait_s > 0:
                self._lines.warning(f"waiting for at most {wait_s:g} s (gpus.wait_s): {'; '.join(busy)}")
                self._notify.send(STATUS=f"preflight: waiting for {'; '.join(busy)}")
        return now + _BUSY_RETRY_S <= self._busy_until

    def _start(self, gate: Gate) -> None:
        pins = {
            name: Setting(value, "the guard: the GPUs that were checked") for name, value in gate.environment.items()
        }
        deployment = replace(self._deployment, environment={**self._deployment.environment, **pins})
        self._lines.info(environment_note(os.environ, deployment))
        self._kills_before = cgroup.out_of_memory_kills()
        self._gpus = gate.gpus
        try:
            self._launch = Launch(
                self._loop,
                deployment,
                self._options.command,
                Told(
                    lines=self._on_lines,
                    stage=self._on_stage,
                    answered=self._on_answered,
                    refused=self._on_refused,
                    lost=self._on_lost,
                    gone=self._on_gone,
                    beat=self._on_beat,
                    totals=self._economy.totals,
                    fault=self._on_fault,
                    hello=self._economy.hello,
                    loaded=lambda event: self._on_loaded(gate, event),
                    settings=self._on_settings,
                ),
            )
        except OSError as error:
            self._end(State.FAILED, ExitCode.INTERNAL, f"the server could not be started: {error}")
            return
        self._enter(State.STARTING, pid=self._launch.child.sentinel_pid)
        if self._clock is not None:
            self._clock.started(self._launch)

    def _on_start_deadline(self, deadline: float) -> None:
        what = "the checks did not end" if self._state is State.PREFLIGHT else "not ready"
        message = f"{what} within {deadline:g} s (supervise.start_deadline_s)"
        self._end(State.FAILED, ExitCode.SERVER, message, kind="start-deadline", stacks=True)

    def _on_stage(self, stage: str) -> None:
        if self._launch is not None and self._state is State.STARTING:
            seconds = time.monotonic() - self._launch.started_at
            self._lines.info(stage, progress=f"{seconds:.0f}s")
            self._notify.send(STATUS=f"starting: {stage}, {seconds:.0f} s")

    def _on_answered(self) -> None:
        if self._state is not State.STARTING:
            return
        self._enter(State.PROBING)
        probe, launch = self._options.probe, self._launch
        assert launch is not None
        if probe is None or self._instead is not None or not launch.address.answers:
            self._serve()
            return
        deployment, address = launch.deployment, launch.address
        self._loop.in_thread(lambda: probe(deployment, address), lambda result: self._on_probed(launch, result))

    def _on_probed(self, launch: Launch, result: object) -> None:
        if self._state is not State.PROBING or self._launch is not launch:
            return  # stopped or dead meanwhile
        if not isinstance(result, Probed):
            self._end(State.FAILED, ExitCode.INTERNAL, f"the probe itself failed: {result!r}")
            return
        for finding in result.findings:
            self._lines.finding(finding)
        self._lines.info(result.summary)
        if result.server_failure is not None:
            remedy = "the crash folder holds where each process was; the server's own log may say more"
            self._end(*(State.FAILED, ExitCode.SERVER, result.server_failure), kind="probe", remedy=remedy, stacks=True)
            return
        errors = [finding for finding in result.findings if finding.severity is Severity.ERROR]
        if not errors:
            self._serve()
            return
        self._instead = result.instead
        then = "; starting without the drafter" if self._instead is not None else ""
        self._end(State.REFUSED, errors[0].exit_code, f"{errors[0].check}: {errors[0].message}{then}")

    def _serve(self) -> None:
        launch = self._launch
        assert launch is not None
        self._end_start()
        seconds = time.monotonic() - launch.started_at
        self._enter(State.SERVING, url=launch.address.url, pid=launch.child.server_pid, after=f"{seconds:.1f}s")
        self._notify.send(READY=1)
        if self._lines.style is Format.HUMAN:
            for line in _how_to_try(launch, str(self._deployment.get("served_model_name") or "default")):
                self._lines.info(line)
        self._watch = Watch(self._loop, launch, self._limits, self._notify, self._on_hung)
        self._later("status", ECONOMY_S, self._show_status)

    def _end_start(self) -> None:
        self._cancel("start", "busy")
        if self._clock is not None:
            self._clock.stop()
            self._clock = None

    # What the server says

    def _on_lines(self, block: bytes) -> None:
        if self._watch is not None:
            self._watch.lines(block)
        if self._clock is not None:
            self._clock.moved()
        lines = self._redactor.block(block)[:-1].split(b"\n")
        if self._unread is not None:
            self._unread += len(lines)
            return
        kept = self._folder.keep(lines)
        if "fold" not in self._timers:  # a window begins with its first line
            self._later("fold", WINDOW_S, self._show_folded)
        self._lines.server(kept)
        if self._output.full and self._launch is not None:
            self._launch.child.pause_output()
            if "stall" not in self._timers:
                self._later("stall", _STALL_S, self._on_stalled)

    def _show_folded(self) -> None:
        self._cancel("fold")
        for count, line in self._folder.close_window():
            text = line.decode(errors="replace")
            self._lines.warning(f"left out {count} more lines like: {text[:200]}", folded=count)

    def _on_stalled(self) -> None:
        """Nobody reads: the server must not end up waiting for its log, so its lines are counted instead."""
        self._cancel("stall")
        self._unread = 0
        if self._launch is not None:
            self._launch.child.resume_output()

    def _on_room(self) -> None:
        self._cancel("stall")
        if self._unread is not None:
            unread, self._unread = self._unread, None
            self._lines.warning(f"left out {unread} lines of the server: nobody read them", unread=unread)
        if self._launch is not None:
            self._launch.child.resume_output()

    def _on_beat(self, event: Mapping[str, Any]) -> None:
        self._economy.beat(event)
        if news := self._recording.beat(event):
            self._lines.warning(news)
        if self._watch is not None:
            self._watch.beat(event)

    def _on_settings(self, event: Mapping[str, Any]) -> None:
        own = ("event", "t", "pid", "rank")
        said = ", ".join(f"{name} {value}" for name, value in event.items() if name not in own and value is not None)
        if said not in self._in_force:  # as a rule, all ranks say the same
            self._in_force.add(said)
            self._lines.info(f"in force in the engine: {said}")

    def _on_fault(self, event: Mapping[str, Any]) -> None:
        self._lines.warning(f"inside the engine, which goes on: {event.get('message')}", faults=event.get("faults"))

    def _show_status(self) -> None:
        if self._state in (State.SERVING, State.DRAINING):
            if self._output.lost > self._lost_told:
                lost, self._lost_told = self._output.lost - self._lost_told, self._output.lost
                self._lines.warning(f"{lost} bytes of this log could not be written")
            for news in self._recording.since():
                self._lines.warning(news)
            text, verdict = self._economy.take()
            if text:
                self._lines.info(text)
                if self._state is State.SERVING:
                    self._notify.send(STATUS=f"serving: {text}")
            if verdict is not None and verdict.raised:
                self._lines.warning(verdict.sentence, alarm="break-even")
            elif verdict is not None:
                self._lines.info(verdict.sentence, alarm="break-even")
            self._later("status", ECONOMY_S, self._show_status)

    # Refusal, death, hang

    def _on_refused(self, refusal: Mapping[str, Any]) -> None:
        if self._state not in (State.STARTING, State.PROBING):
            return
        said = {name: str(text) for name, text in refusal.items() if text is not None}
        finding = Finding(
            said.get("check", "engine.refused"),
            Severity.ERROR,
            said.get("message", "refused inside the engine"),
            expected=said.get("expected"),
            found=said.get("found"),
            remedy=said.get("remedy"),
        )
        self._lines.finding(finding)
        self._end(State.REFUSED, ExitCode.REFUSED, f"{finding.check}: {finding.message}")

    def _on_loaded(self, gate: Gate, event: Mapping[str, Any]) -> None:
        """Gate 2 against gate 1: the engine's own account of the drafter, and what preflight read of it."""
        if gate.foretold is None or self._state not in (State.STARTING, State.PROBING):
            return
        from guarded_serve.checks.load import contradictions  # noqa: PLC0415 - with the checks, only where they ran

        for finding in contradictions(gate.foretold, event):
            self._lines.finding(finding)
            self._end(State.REFUSED, ExitCode.REFUSED, f"{finding.check}: {finding.message}")
            return

    def _on_lost(self, status: int | None, which: str | None) -> None:
        launch = self._launch
        assert launch is not None
        if self._state in ENDS:
            return  # it dies while its stacks are looked at: the end is said and under way
        if self._state is State.DRAINING:
            self._kill()
            return
        kills = cgroup.out_of_memory_kills()
        tail = [line.decode(errors="replace") for line in launch.tail]
        counted = kills - self._kills_before if kills is not None and self._kills_before is not None else 0
        why = death.classify(status, tail, out_of_memory_kills=counted, lost_process=which)
        message = f"the server ended: {why.message}"
        self._end(State.FAILED, ExitCode.SERVER, message, kind=why.kind, remedy=why.remedy)

    def _on_hung(self, reason: str) -> None:
        remedy = "the crash folder holds where each process was; SGLang's own log and `dmesg` may say more"
        self._end(State.FAILED, ExitCode.SERVER, f"the server hangs: {reason}", kind="hang", remedy=remedy, stacks=True)

    # Stop

    def _on_signal(self, number: signal.Signals) -> None:
        if number is signal.SIGHUP and not self._hang_up_stops:
            self._on_reload()
            return
        if "restart" in self._timers:
            self._cancel("restart")
            self._finish(State.STOPPED, ExitCode.OK, f"{number.name} while a restart was waited for")
            return
        self._asked += 1
        if self._state in ENDS:
            return  # the end is on its way; no restart will follow it
        if self._launch is None and self._state is State.DRAINING:
            self._finish(
                State.STOPPED, ExitCode.OK, f"{number.name} again: {_NOTHING_LEFT}, its GPUs were not waited for"
            )
        elif self._launch is None:
            self._cancel("busy")
            self._finish(State.STOPPED, ExitCode.OK, f"{number.name} before the start")
        elif self._asked > 1:
            self._lines.warning(f"{number.name} again: not waiting any longer")
            self._kill()
        else:
            self._drain(self._launch, number.name)

    def _drain(self, launch: Launch, cause: str) -> None:
        served = self._state is State.SERVING
        limit = self._limits.drain_s if served else min(self._limits.drain_s, _STARTUP_STOP_S)
        self._end_start()
        if self._watch is not None:
            self._watch.stop()
        waits = f"running requests may end, for at most {limit:g} s; again to hurry"
        self._notify.send(STOPPING=1)
        self._enter(State.DRAINING, f"{cause}: {waits}" if served else f"{cause} before it served: ending it")
        self._notify.extend(limit + _KILL_S + 5)
        launch.draining = True
        if launch.child.server_pid is None:
            self._kill()  # its process is about to be made: there is nothing to ask yet
            return
        launch.child.terminate()
        self._later("drain", limit, self._on_drain_deadline)

    def _on_drain_deadline(self) -> None:
        self._lines.warning("it did not end in time: killing it")
        self._kill()

    # The end of a launch

    def _end(
        self,
        state: State,
        code: ExitCode,
        message: str,
        *,
        kind: str | None = None,
        remedy: str | None = None,
        stacks: bool = False,
    ) -> None:
        """Refused or failed: say so at once, keep what helps afterwards, then end whatever runs."""
        self._end_start()
        if self._watch is not None:
            self._watch.stop()
        launch = self._launch
        if kind is not None and launch is not None:
            self._show_tail(launch)
        self._code = code
        self._notify.alive()
        self._enter(state, message, level="error", cause=kind, remedy=remedy, exit=int(code))
        if launch is None:
            self._after()
            return
        if kind is not None:
            facts = {"message": message, "remedy": remedy, "launch": launch.launch_id, "exit": int(code)}
            where = crash.write(crash.base(self._deployment), kind, facts, launch.tail, self._redactor)
            if where is None:
                self._lines.warning("no crash folder could be written")
            else:
                self._lines.info(f"what is known is in {where}", crash=str(where))
                if stacks:
                    processes = {pid: name.rpartition(" ")[0] for name, pid in launch.watched().items()}
                    self._notify.extend(_DUMP_S + _KILL_S)
                    self._loop.in_thread(
                        lambda: crash.dump_stacks(where, processes, _DUMP_S),
                        lambda _: self._kill() if self._launch is launch else None,  # it may be gone by then
                    )
                    return
        self._kill()

    def _show_tail(self, launch: Launch) -> None:
        shown = list(launch.tail)[-_TAIL_SHOWN:]
        if shown:
            self._lines.error(f"the server's last {len(shown)} lines:")
            for line in shown:
                self._lines.error("| " + line.decode(errors="replace"))

    def _kill(self) -> None:
        """Everything of the server ends now; `_on_gone` follows."""
        assert self._launch is not None
        self._cancel("drain")
        if self._launch.child.gone:
            self._on_gone([])
            return
        self._launch.kill()
        self._later("kill", _KILL_S, self._on_unkillable)

    def _on_gone(self, removed: list[str]) -> None:
        if self._launch is None:
            return  # told twice: the sentinel's own death is the loss and the end in one
        self._cancel("kill", "drain", "status")
        self._show_folded()
        if removed:
            self._lines.info("removed from shared memory: " + ", ".join(removed))
        address, deployment = self._launch.address, self._launch.deployment
        self._close_launch()
        if ready.listens(address):
            self._lines.warning(f"another process answers on {address.url}")
        if self._state is State.DRAINING and self._gpus and self._asked < 2:  # asked twice: in a hurry
            self._lines.info("no process of the server is left; its GPUs are waited for")
            self._notify.extend(2 * gpu_release.WAIT_S + 5)
            self._loop.in_thread(lambda: gpu_release.still_held(deployment), self._on_gpus)
        elif self._state is State.DRAINING:
            unseen = ", its GPUs were not waited for" if self._gpus else ""
            self._finish(State.STOPPED, ExitCode.OK, _NOTHING_LEFT + unseen)
        elif self._state in ENDS:
            self._after()

    def _on_gpus(self, held: object) -> None:
        if self._state is not State.DRAINING:
            return  # hurried
        if held == ():
            freed = "its GPU is" if self._gpus == 1 else f"its {self._gpus} GPUs are"
            self._finish(State.STOPPED, ExitCode.OK, f"{_NOTHING_LEFT}, {freed} empty")
            return
        for said in held if isinstance(held, tuple) else (f"whether the GPUs are empty could not be asked: {held!r}",):
            self._lines.warning(said)
        self._finish(State.STOPPED, ExitCode.OK, "no process of the server is left; its GPUs are not known to be empty")

    def _on_unkillable(self) -> None:
        assert self._launch is not None
        left = self._launch.child.processes()
        self._lines.error(
            f"{len(left)} processes survive SIGKILL: {', '.join(map(str, left))}",
            remedy="the kernel cannot end them (a driver call that never returns); the machine may need a restart",
        )
        if self._state is State.DRAINING:
            self._finish(State.STOPPED, ExitCode.OK, "processes are left")
        else:
            self._loop.stop()  # a restart beside them would only fail

    def _close_launch(self) -> None:
        if self._launch is not None:
            self._launch.close()
        self._launch, self._watch = None, None

    def _after(self) -> None:
        """After a refusal or failure: another try, or the end."""
        delay = None
        if self._state is State.REFUSED and self._instead is not None and self._deployment is not self._instead:
            if not self._asked:
                self._deployment = self._instead
                self._later("restart", 0, self._restart)
                return
            self._code = ExitCode.OK  # asked to stop before the second try
        if self._state is State.FAILED and self._code is ExitCode.SERVER and not self._asked:
            delay = self._restarts.next_delay_s(time.monotonic())
        if delay is None:
            self._loop.stop()
            return
        self._lines.warning(f"{self._restarts.describe()}, in {delay:g} s")
        self._clock = StartClock(self._loop, self._notify)
        self._later("restart", delay, self._restart)

    def _restart(self) -> None:
        self._cancel("restart")
        self._begin()

    def _finish(self, state: State, code: ExitCode, message: str) -> None:
        self._code = code
        self._enter(state, message, exit=int(code))
        self._loop.stop()

    # Reload

    def _on_reload(self) -> None:
        read = self._options.reload
        if read is None:
            self._lines.warning("SIGHUP: there is no profile to read again")
            return
        if self._state is State.SERVING:  # before, READY=1 would be a lie
            self._notify.reloading()
        self._lines.info("SIGHUP: reading the profile again")
        self._loop.in_thread(read, self._on_reloaded)

    def _on_reloaded(self, result: object) -> None:
        if isinstance(result, Deployment):
            change = what_changes(self._deployment, result)
            for text in change.live:
                self._lines.info(f"in force now: {text}")
            for text in change.later:
                self._lines.warning(f"needs a restart: {text}")
            if not change.live and not change.later:
                self._lines.info("nothing changed")
            self._limits = change.limits
            self._restarts.allowed, self._restarts.window_s = self._limits.restarts, self._limits.restart_window_s
            self._economy.reload(result.profile)
            if self._watch is not None:
                self._watch.limits(self._limits)
            self._deployment = change.deployment
        else:
            self._lines.error(f"the profile was not taken: {result}", remedy="`guarded-serve check` says what is wrong")
        if self._state is State.SERVING:
            self._notify.send(READY=1, STATUS=self._state.value)


def _how_to_try(launch: Launch, model: str) -> tuple[str, ...]:
    address = launch.address
    key = ' -H "Authorization: Bearer $API_KEY"' if address.api_key else ""
    insecure = " -k" if address.tls else ""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Say hello."}}], "max_tokens": 32}}'
    return (
        "try it:",
        f"  curl{insecure} {address.url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'",
        "Ctrl-C stops it",
    )
