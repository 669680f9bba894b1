"""The plugin inside the real SGLang on the CPU engine: records against SGLang's own counters, for several workers."""

from __future__ import annotations

import hashlib
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import load_file, save_file

from tests.engine.conftest import Marked, marked_server
from tests.support.bare_sglang import eagle3_flags
from tests.support.toy import ToyPair

pytestmark = [pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(600)]


def _prompts(count: int, seed: int) -> list[list[int]]:
    choose = random.Random(seed)
    return [[choose.randrange(256) for _ in range(choose.randrange(8, 40))] for _ in range(count)]


@pytest.fixture(scope="module")
def eagle3(tmp_path_factory: pytest.TempPathFactory, toy: ToyPair) -> Iterator[Marked]:
    folder = tmp_path_factory.mktemp("eagle3")
    with marked_server(folder, toy.target, eagle3_flags(toy.drafter, 3, 1, 4)) as marked:
        yield marked


def test_hello_says_that_every_hook_took_hold(eagle3: Marked) -> None:
    (hello,) = eagle3.of("hello")
    assert set(hello["hooks"].values()) == {"applied"}
    assert {target.rsplit(".", 1)[1] for target in hello["hooks"]} >= {
        *("forward_batch_generation", "draft", "verify", "_draft_extend_for_decode", "on_verify_complete_cpu")
    }
    assert (hello["algorithm"], hello["worker"], hello["role"]) == ("EAGLE3", "EAGLEWorkerV2", "scheduler")
    assert (hello["rank"], hello["source"], hello["clocked"]) == (0, "cpu-clock", True)


def test_the_load_is_told(eagle3: Marked, toy: ToyPair) -> None:
    (loaded,) = eagle3.of("drafter-loaded")
    (drafter,) = loaded["drafters"]
    assert (drafter["class"], drafter["unwritten"], drafter["partial"]) == ("LlamaForCausalLMEagle3", [], {})
    assert drafter["shared"] == ["model.embed_tokens.weight"]
    d2t = load_file(toy.drafter / "model.safetensors")["d2t"]
    target_ids = (d2t + torch.arange(len(d2t))).tolist()
    packed = struct.pack(f"<{len(target_ids)}q", *target_ids)
    assert loaded["map"]["sha256"] == hashlib.sha256(packed).hexdigest()
    assert loaded["map"]["length"] == drafter["draft_vocab"] == 200
    assert loaded["captured_layers"] == [2, 4, 6], "SGLang's own choice for nine layers and no ids in the config"
    (settings,) = eagle3.of("settings")
    assert (settings["speculative_num_steps"], settings["speculative_eagle_topk"]) == (3, 1)
    assert settings["max_running_requests"] == 48, "SGLang's own choice with speculation"
    assert not eagle3.of("refused")


def test_a_drafter_with_holes_never_serves(tmp_path: Path, toy: ToyPair) -> None:
    """Bare SGLang serves it in silence; with the gate the engine says why and ends."""
    broken = tmp_path / "drafter"
    shutil.copytree(toy.drafter, broken)
    weights = load_file(broken / "model.safetensors")
    del weights["midlayer.mlp.down_proj.weight"], weights["midlayer.self_attn.q_proj.weight"]
    save_file(weights, broken / "model.safetensors")
    events: list[dict[str, Any]] = []
    with (
        pytest.raises(RuntimeError, match="did not start"),
        marked_server(tmp_path, toy.target, eagle3_flags(broken, 3, 1, 4), events=events),
    ):
        pass
    refused = {event["check"]: event for event in events if event["event"] == "refused"}
    assert set(refused) == {"load.unwritten", "load.partial"}
    assert refused["load.unwritten"]["found"] == "model.layers.0.mlp.down_proj.weight"
    assert refused["load.partial"]["found"] == "model.layers.0.self_attn.qkv_proj.weight without q"
    assert not [event for event in events if event["event"] == "hello"]


def test_one_request_at_a_time_every_verification_is_a_record(eagle3: Marked) -> None:
    before = len(eagle3.records())
    meta = [eagle3.server.generate(prompt, 40)["meta_info"] for prompt in _prompts(6, 1)]
    records = eagle3.records()[before:]
    assert sum(len(record.kept()) for record in records) == sum(entry["spec_verify_ct"] for entry in meta)
    emitted = sum(sum(record.kept()) - record.cut for record in records)
    assert emitted + len(meta) == sum(entry["completion_tokens"] for entry in meta), "a prefill emits one token"
    for record in records:
        assert (record.bs, record.steps, record.draft_tokens, record.source) == (1, 3, 4, "cpu-clock")
        stages = (record.draft_ms or 0) + (record.verify_ms or 0) + (record.extend_ms or 0)
        assert 0 < stages <= (record.gpu_ms or 0)
        assert record.period_ms is None or record.period_ms >= (record.gpu_ms or 0)
    assert sum(record.period_ms is None for record in records) == len(meta), "one cycle a request is its last"


def test_requests_at_once(eagle3: Marked) -> None:
    before = len(eagle3.records())
    meta = [entry["meta_info"] for entry in eagle3.server.generate_at_once(_prompts(8, 2), 40)]
    records = eagle3.records()[before:]
    assert sum(len(record.kept()) for record in records) == sum(entry["spec_verify_ct"] for entry in meta)
    assert max(record.bs for record in records) > 1


def test_requests_at_once_show_in_sglangs_own_metrics(eagle3: Marked) -> None:
    eagle3.server.generate_at_once(_prompts(4, 9), 20)
    records = eagle3.records()
    text = httpx.get(f"{eagle3.server.url}/metrics", timeout=30).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    rows = sum(sample.value for sample in samples if sample.name == "guarded_serve_rows_total")
    assert rows == sum(len(record.kept()) for record in records)
    verify = [sample for sample in samples if sample.name == "guarded_serve_stage_seconds_sum"]
    verify_s = next(sample.value for sample in verify if sample.labels["stage"] == "verify")
    assert verify_s == pytest.approx(sum(record.verify_ms or 0 for record in records) / 1e3, rel=1e-3)


def test_the_totals_are_told(eagle3: Marked) -> None:
    records = eagle3.records()
    beat, totals = eagle3.of("beat")[-1], eagle3.totals()
    assert sum(entry.rows for entry in totals.speculative.values()) == sum(len(record.kept()) for record in records)
    assert (beat["dropped"], beat["lost"], beat["faults"], beat["problem"]) == (0, 0, 0, "")


def test_the_clock_switches_while_serving(eagle3: Marked) -> None:
    eagle3.switch(False)
    before = len(eagle3.records())
    eagle3.server.generate(_prompts(1, 3)[0], 20)
    assert len(eagle3.records()) == before
    eagle3.switch(True)
    eagle3.server.generate(_prompts(1, 4)[0], 20)
    assert len(eagle3.records()) > before


@pytest.mark.parametrize(
    ("name", "worker", "plain"),
    [("none", "TpModelWorker", True), ("NGRAM", "NGRAMWorker", False), ("STANDALONE", "StandaloneWorkerV2", False)],
)
def test_other_workers(tmp_path: Path, toy: ToyPair, name: str, worker: str, plain: bool) -> None:
    """Plain decode (the baseline), NGRAM, and STANDALONE with the target as its own drafter."""
    flags = {
        "none": [],
        "NGRAM": ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4"],
        "STANDALONE": [
            *("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", str(toy.target)),
            *("--speculative-draft-attention-backend", "intel_amx", "--speculative-num-steps", "3"),
            *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
        ],
    }[name]
    with marked_server(tmp_path, toy.target, flags) as marked:
        (hello,) = marked.of("hello")
        assert set(hello["hooks"].values()) == {"applied"}
        assert hello["worker"] == worker
        before = len(marked.records())
        meta = [entry["meta_info"] for entry in marked.server.generate_at_once(_prompts(4, 5), 30)]
        meta += [marked.server.generate(prompt, 30)["meta_info"] for prompt in _prompts(2, 6)]
        records = marked.records()[before:]
        assert not marked.of("fault")
    emitted = sum(sum(record.kept()) - record.cut for record in records)
    assert emitted + len(meta) == sum(entry["completion_tokens"] for entry in meta)
    assert all(record.plain is plain for record in records)
    assert all(record.verify_ms is not None and record.verify_ms > 0 for record in records)
    if plain:
        assert {count for record in records for count in record.accept} == {1}
        return
    assert sum(len(record.kept()) for record in records) == sum(entry["spec_verify_ct"] for entry in meta)
    assert all(record.draft_ms is not None for record in records)
    if name == "STANDALONE":
        length = sum(sum(record.kept()) for record in records) / sum(len(record.kept()) for record in records)
        assert length > 3.0, "the target predicts itself"
