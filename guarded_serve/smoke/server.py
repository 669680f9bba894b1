"""One server for one measurement, through the launcher's own machinery: started, waited for, measured, ended.

The sentinel sees to it that nothing of the server outlives this process, however it ends. Everything is bounded: the
start by ``supervise.start_deadline_s``, a request by its timeout, the end by SIGKILL.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from guarded_serve.facts.ports import free_port
from guarded_serve.findings import Finding
from guarded_serve.profile.deployment import Deployment
from guarded_serve.profile.variant import with_settings
from guarded_serve.smoke.client import ServerError
from guarded_serve.smoke.facts import EngineAccount, Run
from guarded_serve.smoke.measure import Hooks, Plan, Stopped, measure
from guarded_serve.supervisor import death
from guarded_serve.supervisor.child import become_subreaper
from guarded_serve.supervisor.launch import Launch, Told
from guarded_serve.supervisor.loop import Loop, Timer
from guarded_serve.supervisor.redact import Redactor
from guarded_serve.timing.report import batch_tok_s
from guarded_serve.timing.totals import BatchTotals, Totals

HOST = "127.0.0.1"
_KILL_S = 15.0
_BEAT_S = 2.5  # the engine tells its totals once a second
_TAIL_SHOWN = 12


class Interrupted(Exception):
    """A signal asked us to stop; nothing of the server is left."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


@dataclass(frozen=True)
class Outlook:
    """How the measurement is seen from outside."""

    say: Callable[[str], None]
    early: Callable[[Any], str | None] = lambda _: None
    log: Path | None = None  # the server's own output
    contradictions: Callable[[Mapping[str, Any]], Iterable[Finding]] = lambda _: ()  # of a load with preflight


def local(deployment: Deployment) -> Deployment:
    """The same deployment for us alone: a free port of this machine, and no cycle log."""
    profile = deployment.profile
    quiet = profile.model_copy(update={"timing": profile.timing.model_copy(update={"directory": None})})
    settings = {"host": HOST, "port": free_port(HOST)}
    return replace(with_settings(deployment, settings, origin="the smoke test"), profile=quiet)


def run_server(label: str, deployment: Deployment, plan: Plan, command: tuple[str, ...], outlook: Outlook) -> Run:
    """Serve, measure, end. A server that fails is a `Run` that says so. Raises Interrupted. Main thread only."""
    with Loop() as loop:
        return _Serving(loop, label, deployment, plan, command, outlook).run()


class _Serving:
    def __init__(
        self, loop: Loop, label: str, deployment: Deployment, plan: Plan, command: tuple[str, ...], outlook: Outlook
    ) -> None:
        self._loop = loop
        self._label = label
        self._deployment = deployment
        self._plan = plan
        self._command = command
        self._outlook = outlook
        self._redactor = Redactor.of(deployment)
        self._log: IO[bytes] | None = None
        self._launch: Launch | None = None
        self._run: Run | None = None
        self._signal: signal.Signals | None = None
        self._stop = threading.Event()
        self._timer: Timer | None = None
        self._start_s = 0.0
        self._totals: dict[int, Totals] = {}  # by rank, as far as it has told
        self._newest: tuple[float, int, Totals] | None = None
        self._before: Totals = Totals()

    def run(self) -> Run:
        become_subreaper()
        self._loop.on_signals([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], self._on_signal)
        self._log = self._outlook.log.open("wb") if self._outlook.log is not None else None
        try:
            self._start()
            self._loop.run()
        finally:
            self._stop.set()
            if self._launch is not None:
                self._launch.close()
            if self._log is not None:
                self._log.close()
        if self._signal is not None:
            raise Interrupted(self._signal)
        assert self._run is not None
        return replace(self._run, start_s=self._start_s or None)

    def _start(self) -> None:
        told = Told(
            lines=self._on_lines,
            stage=lambda stage: self._outlook.say(f"{self._label}: {stage}"),
            answered=self._on_answered,
            refused=self._on_refused,
            lost=self._on_lost,
            gone=lambda _: self._loop.stop(),
            hello=lambda _: None,
            loaded=self._on_loaded,
            beat=lambda _: None,
            totals=self._on_totals,
            fault=lambda event: self._outlook.say(f"{self._label}: inside the engine: {event.get('message')}"),
        )
        try:
            self._launch = Launch(self._loop, self._deployment, self._command, told)
        except OSError as error:
            self._run = Run(self._label, failure=f"the server could not be started: {error}")
            self._loop.call_later(0, self._loop.stop)
            return
        deadline = self._deployment.profile.supervise.start_deadline_s
        self._timer = self._loop.call_later(
            deadline, lambda: self._fail(f"not ready within {deadline:g} s (supervise.start_deadline_s)")
        )

    def _on_lines(self, block: bytes) -> None:
        if self._log is not None:
            try:
                self._log.write(self._redactor.block(block))
            except OSError:
                self._log = None  # a full disk loses the log, not the measurement

    def _on_answered(self) -> None:
        assert self._launch is not None
        if self._timer is not None:
            self._timer.cancel()
        self._start_s = time.monotonic() - self._launch.started_at
        address = self._launch.address
        hooks = Hooks(
            reset=self._reset,
            account=self._account,
            early=self._outlook.early,
            say=self._outlook.say,
            stop=self._stop,
        )
        self._loop.in_thread(lambda: measure(self._label, address, self._plan, hooks), self._on_measured)

    def _on_measured(self, result: object) -> None:
        if self._run is not None or self._signal is not None:
            return  # it failed or was stopped meanwhile, and the measurement only noticed
        if isinstance(result, Run):
            self._run = result
            self._end()
        elif isinstance(result, ServerError):
            # The server may be dying, and its own last words say more than a broken connection does.
            self._timer = self._loop.call_later(3.0, lambda: self._fail(f"the server stopped answering: {result}"))
        elif isinstance(result, Stopped):
            self._fail("stopped")
        else:
            assert isinstance(result, BaseException)
            self._end()
            raise result

    def _on_refused(self, refusal: Mapping[str, Any]) -> None:
        if self._run is None:
            said = {name: str(text) for name, text in refusal.items() if text is not None}
            message = f"{said.get('check', 'engine.refused')}: {said.get('message', 'refused inside the engine')}"
            self._run = Run(self._label, failure=message, failure_remedy=said.get("remedy"), refused=said)
            self._end()

    def _on_loaded(self, event: Mapping[str, Any]) -> None:
        for finding in self._outlook.contradictions(event):
            self._on_refused({name: getattr(finding, name) for name in ("check", "message", "remedy")})
            return

    def _on_lost(self, status: int | None, which: str | None) -> None:
        assert self._launch is not None
        tail = [self._redactor.text(line.decode(errors="replace")) for line in self._launch.tail]
        why = death.classify(status, tail, lost_process=which)
        self._fail(f"the server ended: {why.message}", why.remedy)

    def _fail(self, message: str, remedy: str | None = None) -> None:
        if self._run is None:
            if self._launch is not None:
                for line in list(self._launch.tail)[-_TAIL_SHOWN:]:
                    self._outlook.say("| " + self._redactor.text(line.decode(errors="replace")))
            self._run = Run(self._label, failure=message, failure_remedy=remedy)
        self._end()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._signal is None:
            self._signal = number
            self._end()

    def _end(self) -> None:
        """Kill what is left; `gone` stops the loop. A process that survives SIGKILL is not waited for."""
        self._stop.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._launch is None or self._launch.child.gone:
            self._loop.stop()
            return
        self._launch.kill()
        self._loop.call_later(_KILL_S, self._loop.stop)

    # The engine's own clock

    def _on_totals(self, event: Mapping[str, Any]) -> None:
        try:
            rank, left = int(event["rank"]), int(event["left"])
            totals = self._totals[rank] = self._totals.get(rank, Totals()).updated(event["totals"])
        except (KeyError, TypeError, ValueError):
            return
        if left == 0 and (self._newest is None or rank <= self._newest[1]):
            self._newest = (time.monotonic(), rank, totals)

    def _settled(self) -> Totals:
        """Totals that hold everything up to now, or the newest there are. Called from the measuring thread."""
        asked = time.monotonic()
        while (self._newest is None or self._newest[0] < asked + 0.1) and time.monotonic() < asked + _BEAT_S:
            time.sleep(0.05)
        return self._told()

    def _told(self) -> Totals:
        return self._newest[2] if self._newest is not None else Totals()

    def _reset(self) -> None:
        """From here on, as far as the engine has told: within a second."""
        self._before = self._told()

    def _account(self, batch_size: int) -> EngineAccount:
        now = self._settled()
        for table, before in ((now.speculative, self._before.speculative), (now.plain, self._before.plain)):
            if batch_size in table:
                return account(table[batch_size].minus(before.get(batch_size)))
        return EngineAccount()


def account(totals: BatchTotals) -> EngineAccount:
    """Means over the cycles of one batch size."""
    cycles = totals.cycles
    if not cycles:
        return EngineAccount()
    return EngineAccount(
        cycles=cycles,
        accept_length=totals.accepted / totals.rows if totals.rows else None,
        period_ms=totals.period_ms / totals.period_cycles if totals.period_cycles else None,
        draft_ms=totals.draft_ms / cycles,
        verify_ms=totals.verify_ms / cycles,
        extend_ms=totals.extend_ms / cycles,
        tok_s=batch_tok_s(totals),
    )
