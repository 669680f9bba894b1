"""The verdict from plain data: each rule passes, fails for the stated reason, and knows when it does not know."""

from __future__ import annotations

from dataclasses import replace

from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding, Status
from guarded_serve.smoke.facts import Acceptance, Clues, Run
from guarded_serve.smoke.verdict import Case, Recorded, Verdict, by_prompt, early_end, judge
from tests.support.smoke_facts import FLOORS, run

BASELINE = run("baseline", first=None, ms=8.0, seed=1)


def outcome(verdict: Verdict, name: str) -> Status:
    return next(one.status for one in verdict.report.outcomes if one.check == f"smoke.{name}")


def finding(verdict: Verdict, name: str) -> Finding:
    return next(one for one in verdict.report.findings if one.check == f"smoke.{name}")


def recorded(of: Run, **more: object) -> Recorded:
    assert of.smallest is not None
    return replace(Recorded("v1", by_prompt(of.smallest.samples), {1: 10.0, 4: 10.0}), **more)  # type: ignore[arg-type]


def test_a_good_drafter_passes_with_its_gain() -> None:
    verdict = judge(Case(run("new"), FLOORS, BASELINE))
    assert (verdict.word, verdict.code) == ("pass", ExitCode.OK)
    gain = verdict.figures.gain[1]
    assert f"gain over no drafter at batch size 1 is {gain.estimate:.2f}" in finding(verdict, "gain_bs1").message
    assert gain.low < 1.6 < gain.high
    assert verdict.figures.first_position is not None
    assert verdict.figures.by_position[0] == verdict.figures.first_position.estimate


def test_a_broken_pairing_is_told_from_a_weak_head() -> None:
    verdict = judge(Case(run("new", first=0.1), FLOORS, BASELINE))
    assert verdict.code is ExitCode.REFUSED
    assert "broken pairing" in (finding(verdict, "first_position").remedy or "")
    weak = judge(Case(run("new", first=0.35, given=0.3), FLOORS, BASELINE))
    assert outcome(weak, "first_position") is Status.PASS
    assert outcome(weak, "accept_length") is Status.FAIL
    assert "below the floor of 1.60" in finding(weak, "accept_length").message
    assert weak.code is ExitCode.REFUSED


def test_other_prompts_may_lie_below_the_floor() -> None:
    """These prompts pass, and the interval over prompts reaches below the floor: a pass with a warning."""
    verdict = judge(Case(run("new", first=0.45, given=0.3), replace(FLOORS, accept_length=1.60), BASELINE))
    assert outcome(verdict, "accept_length") is Status.WARN
    assert "other prompts" in finding(verdict, "accept_length").message
    assert verdict.code is ExitCode.OK


def test_repeats_on_both_sides_of_the_floor_are_no_answer() -> None:
    better, worse = run("new", first=0.45, given=0.3), run("new", first=0.44, given=0.3)
    cell = replace(better.cells[0], repeats=(*better.cells[0].repeats[:2], worse.cells[0].repeats[0]))
    lengths = [Acceptance.of(repeat).length or 0 for repeat in cell.repeats]
    middle = (max(lengths) + min(lengths)) / 2
    verdict = judge(Case(replace(better, cells=(cell,)), replace(FLOORS, accept_length=middle), BASELINE))
    assert outcome(verdict, "accept_length") is Status.FAIL
    assert (verdict.word, verdict.code) == ("inconclusive", ExitCode.BUSY)
    assert "no clear answer" in finding(verdict, "accept_length").message


def test_a_loss_is_refused_at_its_batch_size_alone() -> None:
    mixed = run("new", ms=5.0)
    slow = run("new", ms=9.0)
    verdict = judge(Case(replace(mixed, cells=(mixed.cells[0], slow.cells[1])), FLOORS, BASELINE))
    assert outcome(verdict, "gain_bs1") is Status.PASS
    assert outcome(verdict, "gain_bs4") is Status.FAIL
    assert ", below the floor of 1.05" in finding(verdict, "gain_bs4").message
    assert verdict.code is ExitCode.REFUSED


def test_noise_larger_than_the_margin_is_no_answer() -> None:
    """The same gain that passes on a quiet machine."""
    noisy = run("new", ms=7.0, unrest=0.15, seed=3)
    base = run("baseline", first=None, ms=8.0, unrest=0.15, seed=4)
    verdict = judge(Case(noisy, FLOORS, base))
    assert (verdict.word, verdict.code) == ("inconclusive", ExitCode.BUSY)
    assert outcome(verdict, "accept_length") is Status.PASS
    quiet = judge(
        Case(run("new", ms=7.0, unrest=0.005, seed=3), FLOORS, run("b", first=None, unrest=0.005, seed=4, ms=8))
    )
    assert quiet.code is ExitCode.OK


def test_a_clear_failure_outweighs_an_unclear_gain() -> None:
    verdict = judge(Case(run("new", first=0.1, ms=7.5, unrest=0.1), FLOORS, BASELINE))
    assert verdict.code is ExitCode.REFUSED


def test_other_text_is_a_warning_with_the_place() -> None:
    verdict = judge(Case(run("new", text="the quick fox"), FLOORS, run("b", first=None, ms=8.0, text="the quiet fox")))
    assert outcome(verdict, "same_text") is Status.WARN
    assert "from character 7 on" in finding(verdict, "same_text").message
    assert verdict.code is ExitCode.OK
    assert outcome(judge(Case(run("new"), FLOORS, BASELINE)), "same_text") is Status.PASS


def test_regression_against_the_record() -> None:
    old = run("v1", first=0.6)
    same = judge(Case(run("new", first=0.6), FLOORS, BASELINE, recorded(old)))
    assert outcome(same, "regression") is Status.PASS
    worse = judge(Case(run("new", first=0.4), FLOORS, BASELINE, recorded(old)))
    assert outcome(worse, "regression") is Status.FAIL
    assert worse.code is ExitCode.REFUSED
    assert "against the recorded v1" in finding(worse, "regression").message


def test_unlike_is_not_compared_with_unlike() -> None:
    old = recorded(run("v1", first=0.9), unlike=("another target (/models/other)",))
    verdict = judge(Case(run("new"), FLOORS, BASELINE, old))
    skipped = next(one for one in verdict.report.outcomes if one.check == "smoke.regression")
    assert skipped.status is Status.SKIPPED
    assert "another target" in (skipped.reason or "")


def test_a_longer_cycle_with_the_same_acceptance() -> None:
    """Report 12411: a software regression, not the drafter; said where hardware and versions are the same."""
    slower = run("new", period_ms=12.0)
    verdict = judge(Case(slower, FLOORS, BASELINE, recorded(run("v1"))))
    assert outcome(verdict, "regression") is Status.WARN
    assert "12.00 ms at batch size 1, recorded were 10.00 ms" in finding(verdict, "regression").message
    elsewhere = judge(Case(slower, FLOORS, BASELINE, recorded(run("v1"), unlike_time=("another GPU",))))
    assert outcome(elsewhere, "regression") is Status.PASS


def test_a_server_that_died() -> None:
    verdict = judge(
        Case(Run("new", failure="the server ended: the GPU ran out of memory", failure_remedy="less"), FLOORS)
    )
    assert verdict.code is ExitCode.SERVER
    refused = judge(
        Case(Run("new", failure="engine.unwritten: lm_head", refused={"check": "engine.unwritten"}), FLOORS)
    )
    assert refused.code is ExitCode.REFUSED


def test_no_drafter_at_work() -> None:
    verdict = judge(Case(run("new", first=None), FLOORS, BASELINE))
    assert verdict.code is ExitCode.REFUSED
    assert "says nothing of verifications" in finding(verdict, "first_position").message


def test_an_early_end() -> None:
    bad, good = run("new", first=0.05), run("new")
    assert bad.smallest is not None
    assert good.smallest is not None
    assert "first drafts" in (early_end(bad.smallest.repeats[0], FLOORS) or "")
    assert early_end(good.smallest.repeats[0], FLOORS) is None
    short = replace(bad, stopped_early="...", cells=(replace(bad.cells[0], repeats=bad.cells[0].repeats[:1]),))
    verdict = judge(Case(short, FLOORS, BASELINE))
    assert verdict.code is ExitCode.REFUSED
    assert outcome(verdict, "gain_bs1") is Status.SKIPPED


def test_causes_come_with_a_refusal_only() -> None:
    shifted = Clues("EAGLE3", 3, True, captured=(3, 5, 6), usual=(2, 4, 5))
    good = judge(Case(run("new"), FLOORS, BASELINE, clues=shifted))
    assert not [one for one in good.report.findings if one.check == "smoke.likely_cause"]
    bad = judge(Case(run("new", first=0.1), FLOORS, BASELINE, clues=shifted))
    causes = [one.message for one in bad.report.findings if one.check == "smoke.likely_cause"]
    assert "shifted by +1" in causes[0]
