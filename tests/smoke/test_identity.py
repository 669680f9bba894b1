"""Like with like: what makes two runs' acceptance, or only their times, incomparable."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.facts.bag import Facts
from guarded_serve.facts.model import gather_models
from guarded_serve.profile.resolve import resolve
from guarded_serve.smoke.identity import Identity, identify, unlike_acceptance, unlike_time
from guarded_serve.smoke.prompts import Prompt
from guarded_serve.smoke.record import read_record, write_record
from guarded_serve.smoke.verdict import Case, judge
from guarded_serve.timing.reference import BadRecord, read_references
from tests.support.smoke_facts import FLOORS, run
from tests.support.toy import ToyPair, make_pair

PROMPTS = (Prompt("a", "code", text="x"),)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> ToyPair:
    return make_pair(tmp_path_factory.mktemp("toy"))


def identity(pair: ToyPair, *flags: str, prompts: tuple[Prompt, ...] = PROMPTS, tokens: int = 64) -> Identity:
    arguments = ["--model-path", str(pair.target), "--speculative-draft-model-path", str(pair.drafter)]
    deployment = resolve(None, [*arguments, "--speculative-algorithm", "EAGLE3", *flags]).deployment
    return identify(deployment, Facts(deployment, model=gather_models(deployment)), prompts, tokens, "builtin")


def both(now: Identity, then: Identity) -> tuple[tuple[str, ...], tuple[str, ...]]:
    first, second = now.to_mapping(), json.loads(json.dumps(then.to_mapping()))
    return unlike_acceptance(first, second), unlike_time(first, second)


def test_the_same_is_like(pair: ToyPair) -> None:
    assert both(identity(pair), identity(pair)) == ((), ())
    assert both(identity(pair, "--port", "1"), identity(pair, "--port", "2")) == ((), ())


def test_another_drafter_is_what_is_compared(pair: ToyPair, tmp_path: Path) -> None:
    other = shutil.copytree(pair.drafter, tmp_path / "other")
    assert both(identity(ToyPair(pair.target, other)), identity(pair)) == ((), ())


def test_a_target_with_other_numbers_in_the_same_shapes(pair: ToyPair, tmp_path: Path) -> None:
    other = make_pair(tmp_path / "other", seed=1)
    acceptance, _ = both(identity(ToyPair(other.target, pair.drafter)), identity(pair))
    assert len(acceptance) == 1
    assert "another target" in acceptance[0]
    copied = shutil.copytree(pair.target, tmp_path / "copy")
    assert both(identity(ToyPair(copied, pair.drafter)), identity(pair)) == ((), ())


@pytest.mark.parametrize(
    ("now", "text"),
    [
        ({"prompts": (Prompt("a", "code", text="y"),)}, "other prompts"),
        ({"tokens": 32}, "64 new tokens, now 32"),
    ],
)
def test_other_work(pair: ToyPair, now: dict[str, Any], text: str) -> None:
    acceptance, time = both(identity(pair, **now), identity(pair))
    assert text in acceptance[0]
    assert text in time[0]


def test_settings(pair: ToyPair) -> None:
    """The chain's length decides acceptance; the memory fraction only time."""
    steps, _ = both(identity(pair, "--speculative-num-steps", "5"), identity(pair, "--speculative-num-steps", "3"))
    assert steps == ("speculative_num_steps 3, now 5",)
    acceptance, time = both(identity(pair, "--mem-fraction-static", "0.5"), identity(pair))
    assert acceptance == ()
    assert time == ("mem_fraction_static None, now 0.5",)


def test_other_hardware_and_versions_concern_time_alone(pair: ToyPair) -> None:
    now = identity(pair).to_mapping()
    then = {**now, "hardware": {**now["hardware"], "cores": 999}, "versions": {**now["versions"], "sglang": "0.4"}}
    assert unlike_acceptance(now, then) == ()
    assert {text.split()[0] for text in unlike_time(now, then)} == {"cores", "sglang"}


def test_no_secret_is_recorded(pair: ToyPair) -> None:
    assert "hush-hush" not in json.dumps(identity(pair, "--api-key", "hush-hush").to_mapping())


def test_a_record_is_read_again(pair: ToyPair, tmp_path: Path) -> None:
    file, mine, base = tmp_path / "r.json", identity(pair), run("baseline", first=None, ms=8.0)
    drafter = run("v1")
    write_record(file, drafter, judge(Case(drafter, FLOORS, base)), base, mine)
    recorded = read_record(file, mine)
    assert (recorded.label, recorded.unlike, recorded.period_ms) == ("v1", (), {1: 10.0, 4: 10.0})
    again = judge(Case(drafter, FLOORS, base, recorded))
    assert again.figures.regression is not None
    assert again.figures.regression.estimate == pytest.approx(1)
    references = read_references(file)
    assert references.references[1].period_ms == 10.0
    assert references.baseline_tok_s[1] == pytest.approx(125, rel=0.02)
    for text in ("{}", "[]", "nothing", json.dumps({"kind": "else"})):
        file.write_text(text)
        with pytest.raises(BadRecord, match=r"r\.json"):
            read_record(file, mine)
        with pytest.raises(BadRecord, match=r"r\.json"):
            read_references(file)
