"""No finding is folklore: for every fault here the guard's finding is an error, and bare SGLang does what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

from tests.support.bare_sglang import Server, eagle3_flags, serve
from tests.support.faults import DRAFTER, FAULTS, TARGET, Dies, Slow, copy
from tests.support.guarded import ROOT
from tests.support.verdicts import deployment, errors, judge

PROMPTS = [json.loads(line)["text"] for line in (ROOT / "demo/prompts.jsonl").read_text().splitlines()][:5]
CHAIN = (3, 1, 4)


def accept_length(server: Server) -> float:
    """Tokens a verify, over a few prompts that the target continues well."""
    tokens = verifies = 0
    for prompt in PROMPTS:
        body = {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 48}}
        answer = httpx.post(f"{server.url}/generate", json=body, timeout=120)
        answer.raise_for_status()
        told = answer.json()["meta_info"]
        tokens += told["completion_tokens"]
        verifies += told["spec_verify_ct"]
    return tokens / verifies


@pytest.mark.parametrize("name", FAULTS)
def test_the_guard_finds_it(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    settings = dict(fault.settings)
    algorithm = settings.pop("speculative_algorithm", "EAGLE3")
    report = judge(deployment(TARGET, copy(tmp_path, fault), algorithm=algorithm, dtype="float32", **settings))
    assert errors(report) == [fault.finding]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.engine, *([] if fault.in_make_test else [pytest.mark.soak])])
        for name, fault in FAULTS.items()
    ],
)
def test_bare_sglang_does_what_the_finding_says(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    flags = eagle3_flags(copy(tmp_path, fault), *CHAIN)
    for key, value in fault.settings.items():
        flags[flags.index("--" + key.replace("_", "-")) + 1] = str(value)
    log = tmp_path / "server.log"
    if isinstance(fault.does, Slow):
        with serve(TARGET, flags, log, fault.environment) as server:
            assert accept_length(server) < fault.does.below
        return
    assert isinstance(fault.does, Dies)
    with pytest.raises(RuntimeError, match="did not start"), serve(TARGET, flags, log) as server:
        accept_length(server)
    assert re.search(fault.does.log, log.read_text(errors="replace")), log.read_text(errors="replace")[-3000:]


@pytest.mark.engine
@pytest.mark.soak
def test_the_right_drafter_is_worth_it(tmp_path: Path) -> None:
    """The same measure on the drafter that every fault is a copy of."""
    assert errors(judge(deployment(TARGET, DRAFTER, dtype="float32"))) == []
    with serve(TARGET, eagle3_flags(DRAFTER, *CHAIN), tmp_path / "server.log") as server:
        assert accept_length(server) > 2.2
