"""How a server is measured: what is sent, what counts and what does not, over HTTP against a scripted server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from guarded_serve.smoke.client import ServerError
from guarded_serve.smoke.facts import EngineAccount, Sample
from guarded_serve.smoke.measure import SHORTEST, Hooks, Plan, Stopped, measure
from guarded_serve.smoke.prompts import Prompt
from guarded_serve.supervisor.ready import Address

NEW_TOKENS = 40
PROMPTS = tuple(Prompt(f"p{number}", "code", text=f"p{number}") for number in range(4))


@dataclass
class Scripted:
    """Numbers its answers, and keeps what it was asked, in order. A measured answer among the first ``beside`` requests
    comes only when another request has come after it."""

    port: int = 0
    asked: list[tuple[str, int]] = field(default_factory=list)  # prompt, max_new_tokens
    beside: int = 0
    broken: int | None = None  # the request that it answers with something else
    changed: threading.Condition = field(default_factory=threading.Condition)

    def answer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        tokens = int(body["sampling_params"]["max_new_tokens"])
        with self.changed:
            number = len(self.asked)
            self.asked.append((body["text"], tokens))
            self.changed.notify_all()
            if tokens == NEW_TOKENS and number < self.beside:
                assert self.changed.wait_for(lambda: len(self.asked) > number + 1, timeout=10)
        if number == self.broken:
            return [{"nothing": "of use"}]
        counts = {"spec_verify_ct": tokens // 2, "spec_correct_drafts_histogram": [1, 1]}
        return [
            {"text": str(number), "meta_info": {"id": body["rid"], "completion_tokens": count, **counts}}
            for count in (1, tokens)
        ]


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    script = Scripted()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            chunks = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in script.answer(body)]
            self.send_response(200)
            self.end_headers()
            for chunk in (*chunks, b"data: [DONE]\n\n"):
                self.wfile.write(chunk)
                self.wfile.flush()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield script
        server.shutdown()
        thread.join()


def hooks(early: str | None = None, seen: list[list[Sample]] | None = None) -> Hooks:
    def judge(samples: Any) -> str | None:
        if seen is not None:
            seen.append(list(samples))
        return early

    return Hooks(
        reset=lambda: None,
        account=lambda _: EngineAccount(),
        early=judge,
        say=lambda _: None,
        stop=threading.Event(),
    )


def plan(*batch_sizes: int) -> Plan:
    return Plan(PROMPTS, batch_sizes, repeats=3, new_tokens=NEW_TOKENS, most=3)


def test_the_first_pass_is_judged_and_not_timed(scripted: Scripted) -> None:
    seen: list[list[Sample]] = []
    run = measure("drafter", Address("127.0.0.1", scripted.port), plan(1), hooks(seen=seen))
    count = len(PROMPTS)
    assert scripted.asked[:count] == [(prompt.name, SHORTEST) for prompt in PROMPTS]
    assert scripted.asked[count:] == [(prompt.name, NEW_TOKENS) for prompt in PROMPTS] * 4
    numbers = [[int(sample.text) for sample in repeat] for repeat in run.cells[0].repeats]
    assert numbers == [list(range(start, start + count)) for start in (2 * count, 3 * count, 4 * count)]
    assert [[int(sample.text) for sample in samples] for samples in seen] == [list(range(count, 2 * count))]


def test_the_first_pass_may_decide(scripted: Scripted) -> None:
    """What decided is what the run holds; nothing is asked after it, at no batch size."""
    run = measure("drafter", Address("127.0.0.1", scripted.port), plan(1, 2), hooks(early="too few"))
    assert run.stopped_early == "too few"
    assert len(scripted.asked) == 2 * len(PROMPTS)
    assert [[int(sample.text) for sample in repeat] for cell in run.cells for repeat in cell.repeats] == [[4, 5, 6, 7]]


def test_no_measured_answer_sees_a_smaller_batch_or_shorter_answers_beside_it(scripted: Scripted) -> None:
    """Each measured answer comes only when the next request has: also the last of a pass, and the last of all."""
    count = len(PROMPTS)
    scripted.beside = count + 4 * count  # those that prepare, then the first pass and three repeats
    run = measure("drafter", Address("127.0.0.1", scripted.port), plan(2), hooks())
    asked = scripted.asked[count:]
    assert len(asked) > 4 * count
    assert {tokens for _, tokens in asked} == {NEW_TOKENS}
    assert [[sample.prompt for sample in repeat] for repeat in run.cells[0].repeats] == [["p0", "p1", "p2", "p3"]] * 3


@pytest.mark.parametrize(("unrest", "repeats"), [(0.0, 2), (1.0, 3)])
def test_more_passes_while_the_machine_is_restless(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, unrest: float, repeats: int
) -> None:
    """Up to the most that is allowed; with passes that overlap, each answer counts once, in its own place."""
    monkeypatch.setattr("guarded_serve.smoke.measure.unrest", lambda _: unrest)
    restless = Plan(PROMPTS, (3,), repeats=2, new_tokens=NEW_TOKENS, most=3)
    run = measure("drafter", Address("127.0.0.1", scripted.port), restless, hooks())
    found = run.cells[0].repeats
    assert [[sample.prompt for sample in repeat] for repeat in found] == [["p0", "p1", "p2", "p3"]] * repeats
    assert len({sample.text for repeat in found for sample in repeat}) == repeats * len(PROMPTS)


def test_a_worker_that_fails_ends_the_measurement(scripted: Scripted) -> None:
    """At once, whatever the others do: nothing is asked any more."""
    scripted.broken = len(PROMPTS) + 5
    with pytest.raises(ServerError, match="generate"):
        measure("drafter", Address("127.0.0.1", scripted.port), plan(2), hooks())
    assert len(scripted.asked) <= len(PROMPTS) + 5 + 1 + 2


def test_stop_ends_the_measurement(scripted: Scripted) -> None:
    told = hooks()
    told.stop.set()
    with pytest.raises(Stopped):
        measure("drafter", Address("127.0.0.1", scripted.port), plan(2), told)
    assert len(scripted.asked) == len(PROMPTS)
