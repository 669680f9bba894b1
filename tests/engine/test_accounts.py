"""The accounts close: a thousand requests with prefills, stop strings, cancellation and retraction mixed in."""

from __future__ import annotations

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.conftest import marked_server
from tests.support import ledger
from tests.support.bare_sglang import ROOT, eagle3_flags
from tests.support.toy import ToyPair

REQUESTS = 1000
AT_ONCE = 12


def _request(url: str, number: int) -> dict[str, Any]:
    """One streamed request; every seventh is cancelled after a few pieces. Returns the last meta_info."""
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
            meta = json.loads(line.removeprefix("data: ")).get("meta_info", {})
            pieces += 1
            if pieces == cancel_after:
                httpx.post(f"{url}/abort_request", json={"rid": body["rid"]}, timeout=30)
    return meta


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_accounts_close(tmp_path: Path, toy: ToyPair) -> None:
    """Rows of all records less the dropped ones equal SGLang's verifications; tokens equal prefill's plus accepted less
    what stopping cut off. All three are counted, none is fitted. SGLang's side is its scheduler's, request by request:
    of one that is cancelled while it waits after a retraction, the client does not learn the counts."""
    environment = {
        "SGLANG_TEST_RETRACT": "1",
        "SGLANG_TEST_RETRACT_INTERVAL": "25",
        "PYTHONPATH": os.pathsep.join([str(ledger.write_plugin(tmp_path / "plugin")), str(ROOT)]),
        ledger.LEDGER: str(tmp_path / "ledger"),
    }
    with marked_server(tmp_path, toy.target, eagle3_flags(toy.drafter, 3, 1, 4), **environment) as marked:
        before = len(marked.records())
        prefill_before = marked.totals().prefill_tokens
        with ThreadPoolExecutor(AT_ONCE) as pool:
            meta = list(pool.map(lambda number: _request(marked.server.url, number), range(REQUESTS)))
        records = marked.records()[before:]
        counted = ledger.read(tmp_path / "ledger")
        beat, totals = marked.of("beat")[-1], marked.totals()
        log = (tmp_path / "log").read_text()
    reasons = [entry["finish_reason"]["type"] for entry in meta]
    assert "Testing retraction" in log
    assert {"stop", "length", "abort"} <= set(reasons)
    assert max(record.bs for record in records) > 4

    ours = [counted[f"request-{number}"] for number in range(REQUESTS) if f"request-{number}" in counted]
    assert len(ours) > REQUESTS * 0.9, "all but those cancelled before the scheduler saw them"
    told = [entry for entry in meta if "spec_verify_ct" in entry]
    assert len(told) > REQUESTS * 0.8
    for entry in told:
        assert entry["spec_verify_ct"] == counted[entry["id"]]["verifications"]
        assert entry["completion_tokens"] == counted[entry["id"]]["tokens"]

    rows = sum(len(record.kept()) for record in records)
    assert rows == sum(one["verifications"] for one in ours)

    prefill = totals.prefill_tokens - prefill_before
    accepted = sum(sum(record.kept()) for record in records)
    cut = sum(record.cut for record in records)
    assert prefill > REQUESTS * 0.9, "one a request that was not cancelled before, and one after each retraction"
    assert cut > 0
    assert sum(one["tokens"] for one in ours) == prefill + accepted - cut
    assert (beat["dropped"], beat["lost"], beat["faults"]) == (0, 0, 0)
