"""The life of a supervised server: gates, start, readiness, watch, stop. One loop; signals are only queued.

preflight > starting > probing > serving > draining > stopped
any of them may end in refused (a gate said no) or failed (it died, hung or never became ready).
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding, Severity
from guarded_serve.profile.deployment import Deployment
from guarded_serve.supervisor import death
from guarded_serve.supervisor.child import become_subreaper
from guarded_serve.supervisor.launch import Launch, Told
from guarded_serve.supervisor.lines import Format, Lines
from guarded_serve.supervisor.loop import Loop, Timer
from guarded_serve.supervisor.notify import Notify
from guarded_serve.supervisor.output import Output
from guarded_serve.supervisor.preflight import Gate
from guarded_serve.supervisor.redact import Redactor
from guarded_serve.supervisor.states import State, may_follow
from guarded_serve.supervisor.status_line import StatusLine

SERVER_COMMAND = (sys.executable, "-m", "sglang.launch_server")
_STARTUP_STOP_S = 10.0  # a server that does not serve yet has nothing to drain
_KILL_S = 10.0  # SIGKILL to everything gone; longer means a process that the kernel cannot end
_STATUS_LINE_S = 10.0
_TAIL_SHOWN = 20


@dataclass(frozen=True)
class Options:
    """How to supervise, beside what the profile says."""

    log_format: Format | None = None  # None: for a person on a terminal, else plain
    command: Sequence[str] = SERVER_COMMAND
    on_state: Callable[[State], None] | None = None  # the metric of the state
    extra_secrets: tuple[str, ...] = field(default=())


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
    """The state machine. Public for tests; use `supervise`."""

    def __init__(
        self, loop: Loop, deployment: Deployment, preflight: Preflight, options: Options, output: Output
    ) -> None:
        self._loop = loop
        self._deployment = deployment
        self._preflight = preflight
        self._options = options
        self._output = output
        self._redactor = Redactor.of(deployment, options.extra_secrets)
        self._lines = Lines(output, options.log_format or Format.suited_to(1), self._redactor)
        self._notify = Notify()
        self._launch: Launch | None = None
        self._state: State | None = None
        self._code: ExitCode = ExitCode.OK  # what the run ends with, once `_finish` is on its way
        self._ending: State | None = None  # the end that is waited for
        self._ending_message = ""
        self._timers: dict[str, Timer] = {}
        self._stop_signals = 0
        self._status_line = StatusLine(deployment.profile.break_even.baseline_tok_s)
        output.on_room = self._on_room

    def run(self) -> ExitCode:
        """Until the end."""
        become_subreaper()
        self._loop.on_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), self._on_signal)
        try:
            self._begin()
            self._loop.run()
        finally:
            if self._launch is not None:
                self._launch.close()
        return self._code

    # States

    def _enter(self, state: State, message: str = "", *, level: str = "info", **fields: Any) -> None:
        if not may_follow(self._state, state):
            raise RuntimeError(f"{self._state} cannot become {state}")
        self._state = state
        getattr(self._lines, level)(message, state=state.value, **fields)
        self._notify.send(STATUS=f"{state.value}{': ' + message if message else ''}")
        if self._options.on_state is not None:
            self._options.on_state(state)

    def _later(self, name: str, seconds: float, callback: Callable[[], None]) -> None:
        self._cancel(name)
        self._timers[name] = self._loop.call_later(seconds, callback)

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    # Preflight and start

    def _begin(self) -> None:
        self._enter(State.PREFLIGHT)
        for note in self._deployment.notes:
            self._lines.info(note)
        deployment = self._deployment
        self._loop.in_thread(lambda: self._preflight(deployment), self._on_preflight)

    def _on_preflight(self, gate: object) -> None:
        if self._state is not State.PREFLIGHT:
            return  # stopped meanwhile
        if not isinstance(gate, Gate):
            self._end(State.FAILED, ExitCode.INTERNAL, f"the checks themselves failed: {gate!r}")
            return
        self._lines.report(gate.report)
        if gate.code is not ExitCode.OK:
            self._end(State.REFUSED, gate.code, "the checks before the start refused it; nothing was started")
            return
        try:
            self._launch = Launch(
                self._loop,
                self._deployment,
                self._options.command,
                Told(
                    lines=self._on_lines,
                    stage=self._on_stage,
                    answered=self._on_answered,
                    refused=self._on_refused,
                    lost=self._on_lost,
                    gone=self._on_gone,
                    beat=self._on_beat,
                ),
            )
        except OSError as error:
            self._end(State.FAILED, ExitCode.INTERNAL, f"the server could not be started: {error}")
            return
        self._enter(State.STARTING, pid=self._launch.child.sentinel_pid)
        deadline = self._deployment.profile.supervise.start_deadline_s
        self._later("start", deadline, lambda: self._on_start_deadline(deadline))

    def _on_start_deadline(self, deadline: float) -> None:
        self._show_tail()
        self._end(State.FAILED, ExitCode.SERVER, f"not ready within {deadline:g} s (supervise.start_deadline_s)")

    def _on_lines(self, block: bytes) -> None:
        self._lines.server(self._redactor.block(block).splitlines())
        if self._output.full and self._launch is not None:
            self._launch.child.pause_output()

    def _on_room(self) -> None:
        if self._launch is not None:
            self._launch.child.resume_output()

    def _on_stage(self, stage: str) -> None:
        launch = self._launch
        if launch is not None and self._state is State.STARTING:
            self._lines.info(stage, progress=f"{time.monotonic() - launch.started_at:.0f}s")
            self._notify.send(STATUS=f"starting: {stage}")

    def _on_answered(self) -> None:
        if self._state is not State.STARTING:
            return
        self._enter(State.PROBING)
        self._serve()

    def _serve(self) -> None:
        launch = self._launch
        assert launch is not None
        self._cancel("start")
        seconds = time.monotonic() - launch.started_at
        self._enter(State.SERVING, url=launch.address.url, pid=launch.child.server_pid, after=f"{seconds:.1f}s")
        self._notify.send(READY=1)
        if self._lines.style is Format.HUMAN:
            for line in _how_to_try(launch, str(self._deployment.get("served_model_name") or "default")):
                self._lines.info(line)
        self._later("status", _STATUS_LINE_S, self._show_status)

    # While it serves

    def _on_beat(self, event: Mapping[str, Any]) -> None:
        self._status_line.add(event)

    def _show_status(self) -> None:
        if self._state in (State.SERVING, State.DRAINING):
            text = self._status_line.take()
            if text:
                self._lines.info(text)
            self._later("status", _STATUS_LINE_S, self._show_status)

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

    def _on_lost(self, status: int | None, which: str | None) -> None:
        launch = self._launch
        assert launch is not None
        if self._stop_signals:
            self._kill()
            return
        tail = [line.decode(errors="replace") for line in launch.tail]
        why = death.classify(status, tail, lost_process=which)
        self._show_tail()
        self._end(State.FAILED, ExitCode.SERVER, f"the server ended: {why.message}", cause=why.kind, remedy=why.remedy)

    def _show_tail(self) -> None:
        if self._launch is not None and self._launch.tail:
            shown = list(self._launch.tail)[-_TAIL_SHOWN:]
            self._lines.error(f"the server's last {len(shown)} lines:")
            for line in shown:
                self._lines.error("| " + line.decode(errors="replace"))

    # Stop and end

    def _on_signal(self, number: signal.Signals) -> None:
        if self._state in (State.STOPPED, State.REFUSED, State.FAILED) or self._ending is not None:
            return
        self._stop_signals += 1
        launch = self._launch
        if launch is None:
            self._end(State.STOPPED, ExitCode.OK, f"{number.name} before the start")
            return
        if self._stop_signals > 1:
            self._lines.warning(f"{number.name} again: not waiting any longer")
            self._kill()
            return
        served = self._state is State.SERVING
        limit = self._deployment.profile.supervise.drain_s
        limit = limit if served else min(limit, _STARTUP_STOP_S)
        self._cancel("start")
        self._enter(
            State.DRAINING,
            f"{number.name}: running requests may end, for at most {limit:g} s; again to hurry"
            if served
            else f"{number.name} before it served: ending it",
        )
        self._notify.send(STOPPING=1)
        launch.child.note_shared_memory()
        launch.child.terminate()
        self._later("drain", limit, self._on_drain_deadline)

    def _on_drain_deadline(self) -> None:
        self._lines.warning("it did not end in time: killing it")
        self._kill()

    def _kill(self) -> None:
        """Everything of the server ends now; `_on_gone` follows."""
        assert self._launch is not None
        self._cancel("drain")
        self._launch.kill()
        self._later("kill", _KILL_S, self._on_unkillable)

    def _end(self, state: State, code: ExitCode, message: str, **fields: Any) -> None:
        """Go to an end; what runs is killed first, and the state is entered when it is gone."""
        if self._ending is not None:
            return
        self._cancel("start")
        self._code = code
        if self._launch is None or self._launch.child.gone:
            self._enter(state, message, level="info" if code is ExitCode.OK else "error", exit=int(code), **fields)
            self._loop.stop()
            return
        self._enter(state, message, level="error", exit=int(code), **fields)
        self._ending = state
        self._kill()

    def _on_gone(self, removed: list[str]) -> None:
        self._cancel("kill")
        self._cancel("drain")
        if removed:
            self._lines.info("removed from shared memory: " + ", ".join(removed))
        if self._state is State.DRAINING:
            self._enter(State.STOPPED, "nothing of the server is left", exit=0)
        self._loop.stop()

    def _on_unkillable(self) -> None:
        assert self._launch is not None
        left = self._launch.child.processes()
        self._lines.error(
            f"{len(left)} processes survive SIGKILL: {', '.join(map(str, left))}",
            remedy="the kernel cannot end them (a driver call that never returns); the machine may need a restart",
        )
        if self._state is State.DRAINING:
            self._enter(State.STOPPED, "processes are left", exit=0)
        self._loop.stop()


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
