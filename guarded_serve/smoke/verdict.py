"""The verdict on a drafter: facts in, outcomes with reasons out. Pure, so that every rule is tested from plain data.

Acceptance at temperature 0 repeats itself, so a floor is held against what these prompts gave; it is unclear only where
the repeats themselves lie on both sides, and an interval that reaches below the floor is a warning: other prompts of
the kind may do worse. Times do not repeat themselves: a gain passes or fails only with its whole interval (`stats`).
An unclear rule is an error of exit code 75, a failed one of 65, a failed server of 69.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding, Outcome, Report, Severity, Status
from guarded_serve.smoke import stats
from guarded_serve.smoke.diagnose import likely_causes
from guarded_serve.smoke.facts import Acceptance, Cell, Clues, Floors, Run, Sample
from guarded_serve.smoke.stats import Interval

SERVER, FIRST, LENGTH, TEXT, RECORD = (
    "smoke.server",
    "smoke.first_position",
    "smoke.accept_length",
    "smoke.same_text",
    "smoke.regression",
)
CAUSE = "smoke.likely_cause"
_LONGER_CYCLE = 1.15
_CLEARLY = 0.98  # repeats of the same prompts differ by less
_MORE = "give it more prompts or more repeats, or a machine that does nothing else"


@dataclass(frozen=True)
class Recorded:
    """What the record says of the drafter that is in production, by prompt and by batch size."""

    label: str
    counts: Mapping[str, tuple[int, int]]  # by prompt: tokens, verifications
    period_ms: Mapping[int, float] = field(default_factory=dict)
    unlike: tuple[str, ...] = ()  # why acceptance cannot be compared
    unlike_time: tuple[str, ...] = ()  # why times cannot be


@dataclass(frozen=True)
class Case:
    """One drafter and all that is known for judging it."""

    run: Run
    floors: Floors
    baseline: Run | None = None
    recorded: Recorded | None = None
    clues: Clues = field(default_factory=Clues)


@dataclass(frozen=True)
class Figures:
    """The numbers of a verdict, for reports. None where they could not be measured."""

    accept_length: Interval | None = None
    by_position: tuple[float, ...] = ()
    first_position: Interval | None = None
    gain: Mapping[int, Interval] = field(default_factory=dict)
    regression: Interval | None = None


@dataclass(frozen=True)
class Verdict:
    """What is said of one drafter."""

    label: str
    report: Report
    figures: Figures

    @property
    def code(self) -> ExitCode:
        """0, 65, 69 or 75; the most telling of the outcomes."""
        from guarded_serve.checks.runner import exit_code  # noqa: PLC0415 - no judge needs the runner

        return exit_code(self.report)

    @property
    def word(self) -> str:
        """For a person."""
        return {ExitCode.OK: "pass", ExitCode.BUSY: "inconclusive"}.get(self.code, "fail")


def early_end(samples: Sequence[Sample], floors: Floors) -> str | None:
    """After one pass: why the acceptance alone decides against the drafter; None when there is a need to go on."""
    try:
        length, first = _length(samples), _first(samples)
    except ValueError:
        return None
    if first is not None and first.high < floors.first_position:
        return f"only {first.estimate:.1%} of the first drafts are accepted"
    if length.estimate < floors.accept_length * _CLEARLY:
        return f"accept length is {length.estimate:.2f}, below the floor of {floors.accept_length:g}"
    return None


def judge(case: Case) -> Verdict:
    """All rules."""
    figures = _figures(case)
    outcomes = [_served(case)]
    if case.run.cells:
        first = _first_position(case, figures)
        outcomes += [
            first,
            _accept_length(case, figures, broken=first.status is Status.FAIL),
            *_gains(case, figures),
            _same_text(case),
            _regression(case, figures),
        ]
        outcomes += _causes(case, outcomes)
    return Verdict(case.run.label, Report(tuple(outcomes)), figures)


# Figures


def _length(samples: Iterable[Sample]) -> Interval:
    counts = by_prompt(samples)
    return stats.ratio([tokens for tokens, _ in counts.values()], [tries for _, tries in counts.values()])


def _first(samples: Iterable[Sample]) -> Interval | None:
    hits: dict[str, list[int]] = {}
    for sample in samples:
        if sum(sample.correct_drafts):
            entry = hits.setdefault(sample.prompt, [0, 0])
            entry[0] += sum(sample.correct_drafts[1:])
            entry[1] += sum(sample.correct_drafts)
    if not hits:
        return None
    return stats.share([hit for hit, _ in hits.values()], [tries for _, tries in hits.values()])


def by_prompt(samples: Iterable[Sample]) -> dict[str, tuple[int, int]]:
    """Tokens and verifications of each prompt, its repeats added up; prompts without verifications are left out."""
    counts: dict[str, tuple[int, int]] = {}
    for sample in samples:
        if sample.verifications:
            tokens, tries = counts.get(sample.prompt, (0, 0))
            counts[sample.prompt] = (tokens + sample.tokens, tries + sample.verifications)
    return counts


def _figures(case: Case) -> Figures:
    cell = case.run.smallest
    if cell is None or not by_prompt(cell.samples):
        return Figures()
    return Figures(
        accept_length=_length(cell.samples),
        by_position=Acceptance.of(cell.samples).by_position,
        first_position=_first(cell.samples),
        gain=gains(case.baseline, case.run),
        regression=_against_record(case, cell),
    )


def gains(baseline: Run | None, run: Run) -> dict[int, Interval]:
    """By batch size, over the prompts that both runs hold. Nothing for a run that ended early."""
    if baseline is None or run.stopped_early:
        return {}
    found = {}
    for cell in run.cells:
        other = baseline.cell(cell.batch_size)
        if other is not None:
            common = _common(other, cell)
            if common:
                found[cell.batch_size] = stats.gain(_times(other, common), _times(cell, common))
    return found


def _common(one: Cell, other: Cell) -> list[str]:
    names = {sample.prompt for sample in other.samples}
    return [sample.prompt for sample in one.repeats[0] if sample.prompt in names] if one.repeats else []


def _times(cell: Cell, prompts: Sequence[str]) -> list[list[float]]:
    rows = []
    for repeat in cell.repeats:
        seconds = {sample.prompt: sample.s_per_token for sample in repeat}
        rows.append([seconds[prompt] for prompt in prompts])
    return rows


def _against_record(case: Case, cell: Cell) -> Interval | None:
    recorded = case.recorded
    if recorded is None or recorded.unlike:
        return None
    now = by_prompt(cell.samples)
    common = [prompt for prompt in now if prompt in recorded.counts]
    if not common:
        return None
    return stats.ratio_of_ratios(
        [now[prompt][0] for prompt in common],
        [now[prompt][1] for prompt in common],
        [recorded.counts[prompt][0] for prompt in common],
        [recorded.counts[prompt][1] for prompt in common],
    )


# Rules


def _made(
    check: str, status: Status, *findings: tuple[str, str | None, str | None], remedy: str | None = None, code: ExitCode
) -> Outcome:
    """An outcome whose findings are (sentence, expected, found)."""
    severity = {Status.FAIL: Severity.ERROR, Status.WARN: Severity.WARNING}.get(status, Severity.INFO)
    return Outcome(
        check,
        status,
        tuple(
            Finding(check, severity, sentence, expected=expected, found=found, remedy=remedy, exit_code=code)
            for sentence, expected, found in findings
        ),
    )


def _shown(interval: Interval, shown: Callable[[float], str]) -> str:
    return f"{shown(interval.estimate)} ({shown(interval.low)} to {shown(interval.high)}, {stats.CONFIDENCE:.0%} sure)"


def _acceptance_floor(
    check: str,
    name: str,
    interval: Interval,
    repeats: Sequence[float],
    floor: float,
    remedy: str,
    shown: Callable[[float], str],
) -> Outcome:
    """By what these prompts gave in every repeat."""
    found, expected = _shown(interval, shown), f"at least {shown(floor)}"
    if max(repeats) < floor:
        sentence = f"{name} is {shown(interval.estimate)}, below the floor of {shown(floor)}"
        return _made(check, Status.FAIL, (sentence, expected, found), remedy=remedy, code=ExitCode.REFUSED)
    if min(repeats) < floor:
        sentence = (
            f"{name} is between {shown(min(repeats))} and {shown(max(repeats))} in {len(repeats)} repeats, and the"
        )
        sentence += f" floor is {shown(floor)}: no clear answer"
        return _made(check, Status.FAIL, (sentence, expected, found), remedy=_MORE, code=ExitCode.BUSY)
    if interval.low < floor:
        sentence = (
            f"{name} is {shown(interval.estimate)}; with other prompts it may lie below the floor of {shown(floor)}"
        )
        remedy = "more prompts make it surer"
        return _made(check, Status.WARN, (sentence, expected, found), remedy=remedy, code=ExitCode.REFUSED)
    return _made(check, Status.PASS, (f"{name} is {shown(interval.estimate)}", expected, found), code=ExitCode.OK)


def _interval_floor(check: str, name: str, interval: Interval, floor: float, digits: int, remedy: str) -> Outcome:
    """By the whole interval: pass, fail, or unclear where it holds the floor."""

    def shown(value: float) -> str:
        return f"{value:.{digits}f}"

    found, expected = _shown(interval, shown), f"at least {shown(floor)}"
    if interval.low >= floor:
        return _made(check, Status.PASS, (f"{name} is {shown(interval.estimate)}", expected, found), code=ExitCode.OK)
    if interval.high < floor:
        sentence = f"{name} is {shown(interval.estimate)}, below the floor of {shown(floor)}"
        return _made(check, Status.FAIL, (sentence, expected, found), remedy=remedy, code=ExitCode.REFUSED)
    sentence = f"{name} is {found}, too uncertain for the floor of {shown(floor)}: no clear answer"
    return _made(check, Status.FAIL, (sentence, expected, found), remedy=_MORE, code=ExitCode.BUSY)


def _served(case: Case) -> Outcome:
    run = case.run
    if run.failure is None:
        early = f"; ended early: {run.stopped_early}" if run.stopped_early else ""
        left = f"; {len(run.left_out)} prompts were not taken ({run.left_out[0]})" if run.left_out else ""
        status = Status.WARN if run.left_out else Status.PASS
        return _made(SERVER, status, (f"served and answered{early}{left}", None, None), code=ExitCode.OK)
    code = ExitCode.REFUSED if run.refused else ExitCode.SERVER
    return _made(SERVER, Status.FAIL, (run.failure, None, None), remedy=run.failure_remedy, code=code)


def _first_position(case: Case, figures: Figures) -> Outcome:
    if figures.first_position is None:
        reason = "the server says nothing of verifications: no drafter is at work, or its algorithm does not count"
        if figures.accept_length is None:
            return _made(FIRST, Status.FAIL, (reason, None, None), remedy=_WORKS, code=ExitCode.REFUSED)
        return Outcome(FIRST, Status.SKIPPED, reason=reason)
    assert case.run.smallest is not None
    return _acceptance_floor(
        FIRST,
        "first-position acceptance",
        figures.first_position,
        [Acceptance.of(repeat).by_position[0] for repeat in case.run.smallest.repeats],
        case.floors.first_position,
        "below 20 % drafter and target do not fit: this is a broken pairing, not a weak head",
        lambda value: f"{value:.1%}",
    )


_WORKS = "look at speculative_algorithm and at the server's log"


def _accept_length(case: Case, figures: Figures, *, broken: bool) -> Outcome:
    if figures.accept_length is None:
        return Outcome(LENGTH, Status.SKIPPED, reason="no verification was counted")
    assert case.run.smallest is not None
    return _acceptance_floor(
        LENGTH,
        "accept length",
        figures.accept_length,
        [Acceptance.of(repeat).length or 1.0 for repeat in case.run.smallest.repeats],
        case.floors.accept_length,
        "mend the pairing first"
        if broken
        else "train the drafter further, on this target's own answers; the floor is smoke.min_accept_length",
        lambda value: f"{value:.2f}",
    )


def _gains(case: Case, figures: Figures) -> Iterator[Outcome]:
    sizes = [cell.batch_size for cell in case.run.cells]
    for batch_size in sizes:
        check = f"smoke.gain_bs{batch_size}"
        interval = figures.gain.get(batch_size)
        if interval is None:
            if case.run.stopped_early:
                reason = "acceptance alone decided"
            elif case.baseline is None:
                reason = "no baseline was measured"
            else:
                reason = f"the baseline has no batch size {batch_size}: {case.baseline.failure or 'other prompts'}"
            yield Outcome(check, Status.SKIPPED, reason=reason)
            continue
        yield _interval_floor(
            check,
            f"gain over no drafter at batch size {batch_size}",
            interval,
            case.floors.gain,
            2,
            "fewer steps or draft tokens make the cycle shorter (`smoke --sweep`); or serve this batch size without",
        )


def _same_text(case: Case) -> Outcome:
    mine, theirs = case.run.smallest, case.baseline.smallest if case.baseline else None
    if mine is None or theirs is None or not mine.repeats or not theirs.repeats:
        return Outcome(TEXT, Status.SKIPPED, reason="no baseline was measured")
    texts = {sample.prompt: sample.text for sample in theirs.repeats[0]}
    compared = [sample for sample in mine.repeats[0] if sample.prompt in texts]
    different = [sample for sample in compared if sample.text != texts[sample.prompt]]
    if not different:
        return _made(
            TEXT,
            Status.PASS,
            (f"the same text as without drafter, {len(compared)} prompts", None, None),
            code=ExitCode.OK,
        )
    first = different[0]
    place = _first_difference(texts[first.prompt], first.text)
    sentence = (
        f"{len(different)} of {len(compared)} greedy answers differ from those without drafter; "
        f"{first.prompt} from character {place} on"
    )
    shown = (texts[first.prompt][max(0, place - 20) : place + 40], first.text[max(0, place - 20) : place + 40])
    return _made(
        TEXT,
        Status.WARN,
        (sentence, repr(shown[0]), repr(shown[1])),
        remedy="kernels round differently at other batch sizes, so near ties may fall otherwise; many differences, or "
        "early ones, are a fault of verification",
        code=ExitCode.REFUSED,
    )


def _first_difference(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _regression(case: Case, figures: Figures) -> Outcome:
    recorded = case.recorded
    if recorded is None:
        return Outcome(RECORD, Status.SKIPPED, reason="there is no record to compare with (`--record FILE` writes one)")
    if recorded.unlike:
        return Outcome(RECORD, Status.SKIPPED, reason=f"not comparable with the record: {'; '.join(recorded.unlike)}")
    if figures.regression is None:
        return Outcome(RECORD, Status.SKIPPED, reason="the record has none of these prompts")
    if case.run.stopped_early:
        return Outcome(RECORD, Status.SKIPPED, reason="acceptance alone decided")
    outcome = _interval_floor(
        RECORD,
        f"accept length against the recorded {recorded.label}",
        figures.regression,
        1 - case.floors.regression,
        3,
        "keep the recorded drafter, or record this one if the loss is wanted (smoke.max_regression)",
    )
    longer = [] if outcome.status is not Status.PASS or recorded.unlike_time else list(_longer(case, recorded))
    if longer:
        remedy = "the drafter is accepted as before: look at software versions, GPU clocks and neighbours"
        return _made(
            RECORD, Status.WARN, *((text, None, None) for text in longer), remedy=remedy, code=ExitCode.REFUSED
        )
    return outcome


def _longer(case: Case, recorded: Recorded) -> Iterator[str]:
    for cell in case.run.cells:
        now, then = cell.engine.period_ms, recorded.period_ms.get(cell.batch_size)
        if now and then and now > then * _LONGER_CYCLE:
            yield f"the cycle takes {now:.2f} ms at batch size {cell.batch_size}, recorded were {then:.2f} ms"


def _causes(case: Case, outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
    """Only where acceptance is what failed."""
    judged = [outcome for outcome in outcomes if outcome.check in (FIRST, LENGTH, RECORD)]
    if not any(
        finding.exit_code is ExitCode.REFUSED and outcome.status is Status.FAIL
        for outcome in judged
        for finding in outcome.findings
    ):
        return
    samples = case.run.smallest.samples if case.run.smallest else ()
    kinds = {sample.kind for sample in samples}
    by_kind = {kind: Acceptance.of(sample for sample in samples if sample.kind == kind) for kind in kinds}
    causes = likely_causes(Acceptance.of(samples), case.clues, by_kind)
    yield _made(CAUSE, Status.PASS, *((f"likely: {cause}", None, None) for cause in causes), code=ExitCode.OK)
