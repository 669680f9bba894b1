"""The main job on the embedded default: the real SGLang, the trained demo pair, through the launcher."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.bare_sglang import serve
from tests.support.guarded import DEMO_PROFILE, ROOT, Guarded, guarded

pytestmark = pytest.mark.engine

NEW_TOKENS = 96
PROMPTS = [json.loads(line) for line in (ROOT / "demo/prompts.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """The demo profile with a baseline."""
    folder = tmp_path_factory.mktemp("main")
    text = DEMO_PROFILE.read_text().replace('"../demo/', f'"{ROOT}/demo/')
    profile = folder / "profile.toml"
    profile.write_text(text.replace("[break_even]\n", "[break_even]\nbaseline_tok_s = { 1 = 100.0 }\n"))
    with guarded(folder, profile=profile) as running:
        yield running


@pytest.fixture(scope="module")
def answers(server: Guarded) -> list[dict[str, Any]]:
    """Every held-out prompt, one at a time, with the drafter."""
    return [server.generate(prompt["text"], NEW_TOKENS) for prompt in PROMPTS]


def test_says_what_passed_and_where_it_serves(server: Guarded) -> None:
    assert " checks: " in server.log
    assert f"state=serving url=http://127.0.0.1:{server.port}" in server.log
    order = [server.log.index(f"state={state}") for state in ("preflight", "starting", "probing", "serving")]
    assert order == sorted(order)


def test_serves_chat(server: Guarded) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "def add(a, b):\n"}], "max_tokens": 16}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] > 0


def test_accept_length_without_repetition(answers: list[dict[str, Any]]) -> None:
    """At least 2.2 tokens a verify, bonus included, by SGLang's own counters, on at least 30 prompts."""
    assert len(answers) >= 30
    assert all(_worst_repeat(answer["output_ids"]) <= 2 for answer in answers)
    tokens = sum(answer["meta_info"]["completion_tokens"] for answer in answers)
    verifies = sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)
    assert tokens / verifies >= 2.2


def test_one_record_for_each_verify(server: Guarded, answers: list[dict[str, Any]]) -> None:
    """One request at a time, its records equal SGLang's spec_verify_ct, and are on disk within a second."""
    assert answers
    time.sleep(1.0)  # what an earlier test asked for is on disk too
    for prompt in PROMPTS[:5]:
        before = len(server.records())
        answer = server.generate(prompt["text"], 40)
        time.sleep(1.0)
        new = server.records()[before:]
        assert abs(len(new) - answer["meta_info"]["spec_verify_ct"]) <= 1
        assert all(record["bs"] == 1 and record["steps"] == 3 and record["draft_tokens"] == 4 for record in new)
        assert all(record["source"] == "cpu-clock" for record in new)
        assert all(
            0 < record["draft_ms"] + record["verify_ms"] + record["extend_ms"] <= record["gpu_ms"] * 1.001
            for record in new
        )


def test_accept_lengths_are_sglangs(server: Guarded) -> None:
    """What the records say was accepted is what the request got: prefill gives one token, the cycles the rest."""
    time.sleep(1.0)
    before = len(server.records())
    answer = server.generate(PROMPTS[0]["text"], 60, ignore_eos=True)
    time.sleep(1.0)
    accepted = sum(sum(record["accept"]) for record in server.records()[before:])
    assert 0 <= accepted + 1 - answer["meta_info"]["completion_tokens"] <= 3  # the last cycle may go past the limit


def test_a_line_under_traffic(server: Guarded) -> None:
    """Every ten seconds under traffic: cycle time, shares, accept length and, given a baseline, break-even."""
    end = time.monotonic() + 12
    while time.monotonic() < end:
        server.generate(PROMPTS[1]["text"], 64)
    line = next(line for line in reversed(server.log.splitlines()) if "accept length" in line)
    assert "draft/verify/extend" in line
    assert "break-even" in line


def test_same_text_as_without_the_drafter(
    answers: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = tmp_path_factory.mktemp("plain") / "server.log"
    with serve(ROOT / "demo/target", [], log) as plain:
        for prompt, with_drafter in list(zip(PROMPTS, answers, strict=True))[:20]:
            body = {"text": prompt["text"], "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS}}
            without = httpx.post(f"{plain.url}/generate", json=body, timeout=120).json()
            assert "spec_verify_ct" not in without["meta_info"]
            assert without["output_ids"] == with_drafter["output_ids"]


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    """Exit 0 on SIGINT while a request runs; no process, no port, no shared memory, no run folder."""
    with guarded(tmp_path, profile=DEMO_PROFILE) as server:
        server.generate(PROMPTS[0]["text"], 8)
        family = server.family()
        names = {process.cmdline()[0] for process in family}
        assert {"sglang::scheduler", "sglang::detokenizer"} <= names
        segments = {segment for process in family for segment in _shared_memory(process.pid)}
        assert segments  # SGLang leaves at least one behind by itself
        assert server.stop(signal.SIGINT) == 0
        assert not [process for process in family if process.is_running()]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", server.port))
        assert not [segment for segment in segments if segment.exists()]
        assert "state=stopped" in server.log


def _shared_memory(pid: int) -> set[Path]:
    """Segments of /dev/shm that the process has mapped and that are still there by name."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    mapped = {Path(line.split(None, 5)[5]) for line in lines if "/dev/shm/" in line}
    return {segment for segment in mapped if segment.exists()}


def _worst_repeat(tokens: list[int], span: int = 20) -> int:
    """How often the most frequent span of this many tokens occurs."""
    spans = Counter(tuple(tokens[i : i + span]) for i in range(len(tokens) - span + 1))
    return max(spans.values(), default=0)
