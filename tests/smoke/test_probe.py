"""The probe: judged from plain answers; what a failure does is what the profile says; which prompts it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Severity
from guarded_serve.profile.deployment import Deployment
from guarded_serve.profile.resolve import resolve
from guarded_serve.smoke.probe import (
    FIRST,
    LENGTH,
    NOTHING,
    Answers,
    as_the_profile_says,
    judge,
    prompts_finding,
    wanted,
)
from tests.support.smoke_facts import plain, sample


def deployment(folder: Path, probe: str = "", flags: tuple[str, ...] = ()) -> Deployment:
    profile = folder / "p.toml"
    profile.write_text(
        '[server]\nmodel_path = "/m"\nspeculative_algorithm = "EAGLE3"\nspeculative_draft_model_path = "/d"\n'
        f"[probe]\nmin_accept_length = 1.6\n{probe}\n"
    )
    return resolve(profile, flags).deployment


def answers(first: float, given: float = 0.5) -> Answers:
    return Answers(tuple(sample(f"p{number}", first=first, given=given) for number in range(6)))


def test_a_good_drafter(tmp_path: Path) -> None:
    said = judge(answers(0.6), deployment(tmp_path))
    assert said.findings == ()
    assert (
        "accept length 2.05 over 6000 verifications of 6 prompts, accepted by position 0.60 / 0.30 / 0.15"
        in said.summary
    )


def test_a_broken_pairing_and_a_weak_head(tmp_path: Path) -> None:
    (broken,) = judge(answers(0.1), deployment(tmp_path)).findings
    assert (broken.check, broken.severity, broken.exit_code) == (FIRST, Severity.ERROR, ExitCode.REFUSED)
    assert "10.0% of the first drafted tokens" in broken.message
    (weak,) = judge(answers(0.4, 0.3), deployment(tmp_path)).findings
    assert weak.check == LENGTH
    assert "below probe.min_accept_length" in weak.message
    assert "guarded-serve smoke" in (weak.remedy or "")


def test_an_algorithm_that_counts_nothing_is_not_refused(tmp_path: Path) -> None:
    (nothing,) = judge(Answers((plain("p0"),)), deployment(tmp_path)).findings
    assert (nothing.check, nothing.severity) == (NOTHING, Severity.WARNING)


@pytest.mark.parametrize("wish", ["refuse", "warn", "serve-without-drafter"])
def test_what_a_failure_does(tmp_path: Path, wish: str) -> None:
    profile = deployment(tmp_path, f'on_failure = "{wish}"')
    said = as_the_profile_says(judge(answers(0.1), profile), profile)
    (finding,) = said.findings
    assert finding.severity is (Severity.WARNING if wish == "warn" else Severity.ERROR)
    if wish == "serve-without-drafter":
        assert said.instead is not None
        assert said.instead.get("speculative_algorithm") is None
        assert "--model-path" in said.instead.arguments
    else:
        assert said.instead is None
    good = judge(answers(0.6), profile)
    assert as_the_profile_says(good, profile) is good


def test_when_there_is_something_to_probe(tmp_path: Path) -> None:
    assert wanted(deployment(tmp_path))
    assert not wanted(deployment(tmp_path, "enabled = false"))
    assert not wanted(resolve(None, ["--model-path", "/m"]).deployment)
    assert not wanted(deployment(tmp_path, flags=("--skip-tokenizer-init",)))


def test_prompts_that_cannot_be_read_are_found_before_the_start(tmp_path: Path) -> None:
    assert prompts_finding(deployment(tmp_path)) is None
    missing = prompts_finding(deployment(tmp_path, 'prompts = "./none.jsonl"'))
    assert missing is not None
    assert missing.exit_code is ExitCode.MISSING
    assert "none.jsonl" in missing.message
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"role": "user"}\n')
    wrong = prompts_finding(deployment(tmp_path, 'prompts = "./bad.jsonl"'))
    assert wrong is not None
    assert wrong.exit_code is ExitCode.PROFILE
    assert "bad.jsonl:1" in wrong.message


def message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_prompts_files(tmp_path: Path) -> None:
    from guarded_serve.smoke.prompts import BadPrompts, load_prompts, spread  # noqa: PLC0415

    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in ([message("a")], {"text": "b", "kind": "code"})) + "\n\n")
    chat, text = load_prompts(str(file))
    assert (chat.name, chat.kind, chat.messages) == ("line 1", "chat", (message("a"),))
    assert (text.kind, text.text) == ("code", "b")
    for line in ("[]", "{}", "3", "nonsense", '{"text": "a", "messages": []}', '[{"role": 1}]'):
        file.write_text(line)
        with pytest.raises(BadPrompts, match=r"mine\.jsonl:1"):
            load_prompts(str(file))
    file.write_text("")
    with pytest.raises(BadPrompts, match="holds no prompt"):
        load_prompts(str(file))
    builtin = load_prompts("builtin")
    kinds = {prompt.kind for prompt in builtin}
    assert kinds == {"chat", "code", "maths", "multilingual", "long context", "tool calls"}
    assert len(builtin) >= 24
    assert {prompt.kind for prompt in spread(builtin, 6)} == kinds
    assert len(spread(builtin, 100)) == len(builtin)
