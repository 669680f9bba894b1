"""The accounts close: a thousand requests with prefills, stop strings, cancellation and retraction mixed in."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.conftest import marked_server
from tests.support.bare_sglang import eagle3_flags
from tests.support.toy import ToyPair

REQUESTS = 1000
AT_ONCE = 12


def _request(url: str, number: int) -> dict[str, Any]:
    """One streamed request; every seventh is cancelled after a few pieces. Returns meta_info, each key's newest value.

    Cancelled after a retraction, while it waits, it ends with a meta_info that counts nothing.
    """
    choose = random.Random(number)
    sampling: dict[str, Any] = {"temperature": 0, "max_new_tokens": choose.randrange(1, 40), "ignore_eos": True}
    if number % 3 == 0:
        sampling["stop"] = [chr(choose.randrange(97, 123)), chr(choose.randrange(65, 91))]
    body = {
        "input_ids": [choose.randrange(256) for _ in range(choose.randrange(4, 60))],
        "sampling_params": sampling,
        "stream": True,
        "rid": f"request-{number}",
    }
    cancel_after = choose.randrange(0, 4) if number % 7 == 0 else None
    meta: dict[str, Any] = {}
    with httpx.stream("POST", f"{url}/generate", json=body, timeout=300) as answer:
        pieces = 0
        if cancel_after == 0:
            httpx.post(f"{url}/abort_request", json={"rid": body["rid"]}, timeout=30)
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            meta |= json.loads(line.removeprefix("data: ")).get("meta_info", {})
            pieces += 1
            if pieces == cancel_after:
                httpx.post(f"{url}/abort_request", json={"rid": body["rid"]}, timeout=30)
    return meta


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_accounts_close(tmp_path: Path, toy: ToyPair) -> None:
    """Rows of all records less the dropped ones equal SGLang's verifications; tokens equal prefill's plus accepted less
    what stopping cut off. All three are counted, none is fitted."""
    retraction = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "25"}
    with marked_server(tmp_path, toy.target, eagle3_flags(toy.drafter, 3, 1, 4), **retraction) as marked:
        before = len(marked.records())
        prefill_before = marked.totals().prefill_tokens
        with ThreadPoolExecutor(AT_ONCE) as pool:
            meta = list(pool.map(lambda number: _request(marked.server.url, number), range(REQUESTS)))
        records = marked.records()[before:]
        beat, totals = marked.of("beat")[-1], marked.totals()
        log = (tmp_path / "log").read_text()
    reasons = [entry["finish_reason"]["type"] for entry in meta]
    assert "Testing retraction" in log
    assert {"stop", "length", "abort"} <= set(reasons)
    assert max(record.bs for record in records) > 4

    rows = sum(len(record.kept()) for record in records)
    assert rows == sum(entry.get("spec_verify_ct", 0) for entry in meta)

    prefill = totals.prefill_tokens - prefill_before
    accepted = sum(sum(record.kept()) for record in records)
    cut = sum(record.cut for record in records)
    assert prefill > REQUESTS * 0.9, "one a request that was not cancelled before, and one after each retraction"
    assert cut > 0
    assert sum(entry.get("completion_tokens", 0) for entry in meta) == prefill + accepted - cut
    assert (beat["dropped"], beat["lost"], beat["faults"]) == (0, 0, 0)
