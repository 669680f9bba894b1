"""The smoke test: gate 1 for every contestant, each contestant in turn, a baseline without drafter, the verdicts.

A drafter that its acceptance refuses needs no baseline, which on a large model is a quarter of an hour saved.
One server at a time, each through the launcher's own machinery. Main thread only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guarded_serve.checks.interface import FAMILIES
from guarded_serve.checks.runner import exit_code, run_checks
from guarded_serve.exit_codes import ExitCode, most_telling
from guarded_serve.findings import Finding, Outcome, Report, Severity, Status
from guarded_serve.profile.deployment import Deployment, Setting
from guarded_serve.profile.variant import with_settings, without_drafter
from guarded_serve.smoke.clues import clues
from guarded_serve.smoke.facts import Clues, Floors, Run
from guarded_serve.smoke.identity import Identity, identify
from guarded_serve.smoke.measure import Plan
from guarded_serve.smoke.record import baseline_tok_s, read_record
from guarded_serve.smoke.server import Outlook, local, run_server
from guarded_serve.smoke.verdict import Case, Figures, Recorded, Verdict, early_end, judge
from guarded_serve.supervisor.run import SERVER_COMMAND
from guarded_serve.timing.reference import BadRecord

if TYPE_CHECKING:
    from guarded_serve.checks.load import Foretold
    from guarded_serve.facts.bag import Facts

BASELINE = "baseline"
_BUSY_RETRY_S = 2.0
_WITHOUT = "the server without any drafter"
SWEEP = ("1/1/2", "2/1/3", "3/1/4", "4/1/5", "6/1/7")


@dataclass(frozen=True)
class Contestant:
    """One drafter with one setting. The first one is the drafter under test; its verdict is the exit code."""

    label: str
    drafter: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # steps, topk, draft tokens of a sweep


@dataclass(frozen=True)
class Wishes:
    """What a run is asked to do, beside what the deployment says."""

    contestants: Sequence[Contestant]
    plan: Plan
    prompts_source: str
    configuration: tuple[Finding, ...] = ()
    record: Path | None = None  # to compare with
    logs: Path | None = None  # folder for the servers' output
    command: tuple[str, ...] = SERVER_COMMAND
    say: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class Judged:
    """One contestant at the end."""

    contestant: Contestant
    verdict: Verdict
    run: Run | None = None  # None: refused before the start
    identity: Identity | None = None


@dataclass(frozen=True)
class Result:
    """Everything that the reports show."""

    name: str
    judged: tuple[Judged, ...]
    baseline: Run | None
    floors: Floors
    plan: Plan
    baselines: Mapping[int, float] = field(default_factory=dict)  # tok/s by batch size, for the profile
    recommended: Judged | None = None  # of a sweep
    seconds: float = 0.0

    @property
    def code(self) -> ExitCode:
        """Of the drafter under test."""
        return self.judged[0].verdict.code

    @property
    def word(self) -> str:
        """pass, fail or inconclusive."""
        return self.judged[0].verdict.word


@dataclass(frozen=True)
class _Gated:
    contestant: Contestant
    deployment: Deployment
    report: Report
    code: ExitCode
    clues: Clues
    identity: Identity
    foretold: Foretold | None  # what the load is held against


def floors(deployment: Deployment) -> Floors:
    """From the profile."""
    smoke, probe = deployment.profile.smoke, deployment.profile.probe
    return Floors(
        accept_length=probe.min_accept_length if smoke.min_accept_length is None else smoke.min_accept_length,
        first_position=smoke.min_first_position,
        gain=smoke.min_gain,
        regression=smoke.max_regression,
    )


def sweep_settings(text: str) -> dict[str, int]:
    """``3/1/4`` to SGLang's settings. Raises ValueError."""
    parts = text.split("/")
    if len(parts) != 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"expected STEPS/TOPK/DRAFT_TOKENS such as 3/1/4, found {text}")
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    return dict(zip(names, map(int, parts), strict=True))


def smoke(deployment: Deployment, wishes: Wishes) -> Result:
    """Everything in order. Raises `server.Interrupted`; nothing of any server is left in any case."""
    started = time.monotonic()
    gated = [_gate(deployment, contestant, wishes) for contestant in wishes.contestants]
    wanted = floors(deployment)
    runs: dict[int, Run] = {}
    baseline = None
    for index, gate in enumerate(gated):
        if gate.code is not ExitCode.OK:
            wishes.say(f"{gate.contestant.label}: refused before the start")
            continue
        if baseline is not None and baseline.failure is not None:
            # What no drafter mends is no drafter's fault, and would only cost each of them a start.
            runs[index] = Run(gate.contestant.label, failure=f"not measured, since {_WITHOUT} failed")
            continue
        run = runs[index] = _contest(gate, wanted, wishes)
        if baseline is None and run.cells and run.failure is None and run.stopped_early is None:
            # Right after the first drafter that needs one, so that both meet the machine in the same mood.
            baseline = _serve(BASELINE, local(without_drafter(deployment)), wishes, Outlook(wishes.say))
    judged = [_judged(gate, runs.get(index), baseline, wanted, wishes) for index, gate in enumerate(gated)]
    return Result(
        name=deployment.profile.profile.name or (deployment.profile_path.stem if deployment.profile_path else "smoke"),
        judged=tuple(judged),
        baseline=baseline,
        floors=floors(deployment),
        plan=wishes.plan,
        baselines=baseline_tok_s(baseline),
        recommended=recommend(judged) if any(one.contestant.settings for one in judged) else None,
        seconds=time.monotonic() - started,
    )


def recommend(judged: Sequence[Judged]) -> Judged | None:
    """The fastest setting over all batch sizes of those that were measured to the end; None if none gains."""
    best: tuple[float, Judged] | None = None
    for one in judged:
        gains = [interval.estimate for interval in one.verdict.figures.gain.values()]
        if not gains:
            continue
        product = 1.0
        for gain in gains:
            product *= gain
        mean = product ** (1 / len(gains))
        if mean > 1 and (best is None or mean > best[0]):
            best = (mean, one)
    return best[1] if best else None


def _contest(gate: _Gated, wanted: Floors, wishes: Wishes) -> Run:
    from guarded_serve.checks.load import contradictions  # noqa: PLC0415 - with the checks

    foretold = gate.foretold
    outlook = Outlook(
        wishes.say,
        early=lambda samples: early_end(samples, wanted),
        contradictions=lambda event: contradictions(foretold, event) if foretold is not None else (),
    )
    return _serve(gate.contestant.label, local(gate.deployment), wishes, outlook)


def _judged(gate: _Gated, run: Run | None, baseline: Run | None, wanted: Floors, wishes: Wishes) -> Judged:
    if run is None:
        return Judged(gate.contestant, Verdict(gate.contestant.label, gate.report, Figures()), None, gate.identity)
    recorded, problem = _recorded(wishes.record, gate.identity)
    broken = baseline is not None and baseline.failure is not None
    verdict = judge(Case(run, wanted, None if broken else baseline, recorded, gate.clues))
    outcomes = (*gate.report.outcomes, *problem, *verdict.report.outcomes)
    if broken and run.failure is None and run.stopped_early is None:
        assert baseline is not None
        outcomes = (*outcomes, _no_baseline(baseline))
    return Judged(gate.contestant, replace(verdict, report=Report(outcomes)), run, gate.identity)


def _recorded(path: Path | None, identity: Identity) -> tuple[Recorded | None, tuple[Outcome, ...]]:
    if path is None:
        return None, ()
    try:
        return read_record(path, identity), ()
    except FileNotFoundError:
        return None, ()  # the first run of a profile that names where its record will be
    except (BadRecord, OSError) as error:
        finding = Finding("smoke.record", Severity.WARNING, f"the record cannot be used: {error}", where=str(path))
        return None, (Outcome("smoke.record", Status.WARN, (finding,)),)


def _no_baseline(baseline: Run) -> Outcome:
    finding = Finding(
        "smoke.baseline",
        Severity.ERROR,
        f"{_WITHOUT} failed: {baseline.failure}",
        remedy=baseline.failure_remedy,
        exit_code=ExitCode.SERVER,
    )
    return Outcome("smoke.baseline", Status.FAIL, (finding,))


# Gate 1


def _gate(deployment: Deployment, contestant: Contestant, wishes: Wishes) -> _Gated:
    from guarded_serve.checks.load import foretell  # noqa: PLC0415 - `--help` needs none of it

    settings = {"speculative_draft_model_path": contestant.drafter, **contestant.settings}
    other = contestant.drafter != deployment.get("speculative_draft_model_path")
    remove = ("speculative_draft_model_revision",) if other else ()
    mine = with_settings(deployment, settings, remove=remove, origin="the smoke test")
    wishes.say(f"{contestant.label}: checking")
    facts, report = _judge(local(mine), wishes.configuration)
    code = exit_code(report)
    broken = most_telling(found.exit_code for found in wishes.configuration if found.severity is Severity.ERROR)
    return _Gated(
        contestant,
        mine,
        report,
        broken if code is ExitCode.OK else code,
        clues(facts, report),
        identify(mine, facts, wishes.plan.prompts, wishes.plan.new_tokens, wishes.prompts_source),
        foretell(facts.model),
    )


def _judge(deployment: Deployment, configuration: tuple[Finding, ...]) -> tuple[Facts, Report]:
    """Gate 1 with every byte of the drafter, once the machine is free."""
    from guarded_serve.checks.gate import judge as gate_1  # noqa: PLC0415 - `--help` needs none of it
    from guarded_serve.checks.registry import checks_of  # noqa: PLC0415
    from guarded_serve.facts.model import scan_drafter  # noqa: PLC0415

    facts, report = _when_free(deployment, lambda: gate_1(deployment, FAMILIES, configuration))
    if facts.model is not None and exit_code(report) is ExitCode.OK:
        facts = replace(facts, model=scan_drafter(facts.model))
        report = run_checks(checks_of(FAMILIES), facts, deployment.profile.preflight.ignore)
    return facts, report


def _when_free(deployment: Deployment, ask: Callable[[], tuple[Facts, Report]]) -> tuple[Facts, Report]:
    """Ask again while a server that just ended still holds memory or ports, for at most `gpus.wait_s`."""
    end = time.monotonic() + deployment.profile.gpus.wait_s
    facts, report = ask()
    while exit_code(report) is ExitCode.BUSY and time.monotonic() + _BUSY_RETRY_S < end:
        time.sleep(_BUSY_RETRY_S)
        facts, report = ask()
    return facts, report


# Servers


def _serve(label: str, deployment: Deployment, wishes: Wishes, outlook: Outlook) -> Run:
    """One server, once the GPUs and the machine are free again."""
    from guarded_serve.checks.gate import judge as gate_1  # noqa: PLC0415

    facts, report = _when_free(deployment, lambda: gate_1(deployment, ("gpu", "host")))
    if exit_code(report) is not ExitCode.OK:
        errors = [found.message for found in report.findings if found.severity is Severity.ERROR]
        return Run(label, failure="; ".join(errors))
    pins = facts.gpus.choice.environment if facts.gpus is not None else {}
    pinned = {name: Setting(value, "the guard: the GPUs that were checked") for name, value in pins.items()}
    log = None
    if wishes.logs is not None:
        wishes.logs.mkdir(parents=True, exist_ok=True)
        log = wishes.logs / f"server-{file_name(label)}.log"
    return run_server(
        label,
        replace(deployment, environment={**deployment.environment, **pinned}),
        wishes.plan,
        wishes.command,
        replace(outlook, log=log),
    )


def file_name(label: str) -> str:
    """A label as part of a file's name."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in label).strip("-.") or "drafter"


def to_stderr(text: str) -> None:
    """Progress for a person."""
    print(text, file=sys.stderr, flush=True)
