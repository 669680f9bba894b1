"""The probe: judged from plain answers; what a failure does is what the profile says; which prompts it takes."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.ports import free_port
from guarded_serve.findings import Severity
from guarded_serve.profile.deployment import Deployment
from guarded_serve.profile.resolve import resolve
from guarded_serve.smoke.probe import (
    ANSWERS,
    FIRST,
    LENGTH,
    NOTHING,
    Answers,
    as_the_profile_says,
    judge,
    probe,
    prompts_finding,
    wanted,
)
from guarded_serve.supervisor.ready import Address
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


@contextmanager
def answering(status: int) -> Iterator[Address]:
    """A server that answers every POST with this status."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Address("127.0.0.1", server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def test_no_answer_is_a_failure_of_the_server_whatever_a_failed_probe_does(tmp_path: Path) -> None:
    asked = deployment(tmp_path, 'on_failure = "warn"')
    silent = probe(asked, Address("127.0.0.1", free_port()))
    assert "refused" in (silent.server_failure or "")
    with answering(500) as address:
        broken = probe(asked, address)
    assert "HTTP 500" in (broken.server_failure or "")
    assert silent.findings == broken.findings == ()


def test_a_server_that_takes_no_prompt_is_refused_and_not_restarted(tmp_path: Path) -> None:
    with answering(400) as address:
        said = probe(deployment(tmp_path), address)
    (finding,) = said.findings
    assert (said.server_failure, finding.check, finding.exit_code) == (None, ANSWERS, ExitCode.REFUSED)
    assert "takes none of the 8 prompts" in finding.message
    with answering(400) as address:
        (warning,) = probe(deployment(tmp_path, 'on_failure = "warn"'), address).findings
    assert warning.severity is Severity.WARNING
