"""Gate 2 on small torch models: what was written, what was shared, what the map is, and what that means."""

from __future__ import annotations

import gc
import hashlib
import struct
import sys
import weakref
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from guarded_serve.engine.load_gate import LoadGate, LoadWatch, captured_layers, effective_settings, judge, map_facts

torch = pytest.importorskip("torch")


def _default_loader(parameter: Any, weight: Any) -> None:
    parameter.data.copy_(weight)


class Drafter(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A stand-in for LlamaForCausalLMEagle3, with its ways of loading."""

    def __init__(self, draft_vocab: int | None = 6) -> None:
        super().__init__()
        self.model = torch.nn.Module()
        self.model.embed_tokens = torch.nn.Embedding(10, 4)
        self.model.fc = torch.nn.Linear(12, 4, bias=False)
        self.model.qkv_proj = torch.nn.Linear(4, 12, bias=False)
        self.model.norm = torch.nn.LayerNorm(4, bias=False)
        self.lm_head = torch.nn.Linear(4, 6, bias=False)
        self.config = SimpleNamespace(draft_vocab_size=draft_vocab)
        self.hot_token_id: Any = None

        def stacked(parameter: Any, weight: Any, part: str) -> None:
            place = "qkv".index(part) * 4
            parameter.data[place : place + 4].copy_(weight)

        self.model.qkv_proj.weight.weight_loader = stacked

    def load_weights(self, weights: dict[str, Any]) -> None:
        parameters = dict(self.named_parameters())
        for name, weight in weights.items():
            if name == "d2t":
                self.hot_token_id = weight + torch.arange(len(weight))
                continue
            known, _, part = name.partition("/")
            if known in parameters:
                loader: Callable[..., None] = getattr(parameters[known], "weight_loader", _default_loader)
                loader(parameters[known], weight, *([part] if part else []))


def _weights() -> dict[str, Any]:
    return {
        "model.fc.weight": torch.randn(4, 12),
        **{f"model.qkv_proj.weight/{part}": torch.randn(4, 4) for part in "qkv"},
        "model.norm.weight": torch.ones(4),  # equal to the initial value: only the loader's call shows it
        "lm_head.weight": torch.randn(6, 4),
        "d2t": torch.arange(6) // 2,
    }


def _watched(weights: dict[str, Any], drafter: Drafter | None = None) -> LoadWatch:
    drafter = drafter or Drafter()
    watch = LoadWatch(drafter)
    watch.begin(_default_loader)
    drafter.load_weights(weights)
    watch.end()
    drafter.model.embed_tokens.weight = torch.nn.Parameter(torch.randn(10, 4))  # the target's
    return watch


def test_everything_written_or_shared() -> None:
    watch = _watched(_weights())
    assert watch.unwritten() == []
    assert watch.partial() == {}
    assert watch.replaced() == ["model.embed_tokens.weight"]


@pytest.mark.parametrize("name", ["model.fc.weight", "model.norm.weight", "lm_head.weight"])
def test_what_the_file_lacks(name: str) -> None:
    weights = _weights()
    del weights[name]
    assert _watched(weights).unwritten() == [name]


def test_a_stacked_parameter_filled_in_part() -> None:
    weights = _weights()
    del weights["model.qkv_proj.weight/q"]
    watch = _watched(weights)
    assert watch.unwritten() == []
    assert watch.partial() == {"model.qkv_proj.weight": ["q"]}


def test_an_embedding_that_nobody_shares_is_unwritten() -> None:
    drafter = Drafter()
    watch = LoadWatch(drafter)
    watch.begin(_default_loader)
    drafter.load_weights(_weights())
    watch.end()
    assert watch.unwritten() == ["model.embed_tokens.weight"]


def test_a_model_that_copies_by_itself_counts_as_written() -> None:
    """Without a loader the change of value shows it."""
    drafter = Drafter()
    watch = LoadWatch(drafter)
    watch.begin(_default_loader)
    weights = _weights()
    drafter.lm_head.weight.data.copy_(weights.pop("lm_head.weight"))
    drafter.load_weights(weights)
    watch.end()
    assert "lm_head.weight" not in watch.unwritten()


def test_loaders_are_put_back() -> None:
    drafter = Drafter()
    before = drafter.model.qkv_proj.weight.weight_loader
    _watched(_weights(), drafter)
    assert drafter.model.qkv_proj.weight.weight_loader is before
    assert not hasattr(drafter.lm_head.weight, "weight_loader")


def test_the_hook_watches_drafters_and_leaves_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    utilities = ModuleType("sglang.srt.model_loader.weight_utils")
    utilities.default_weight_loader = _default_loader  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.srt.model_loader.weight_utils", utilities)
    gate = LoadGate()
    target = gate.hook(lambda config: Drafter(), SimpleNamespace(is_draft_model=False))
    drafter = gate.hook(lambda config: Drafter(), SimpleNamespace(is_draft_model=True))
    target.load_weights(_weights())
    assert [watch.model for watch in gate.watches] == [drafter]
    assert not gate.watches[0].loaded
    drafter.load_weights(_weights())
    assert gate.watches[0].loaded
    assert "load_weights" not in vars(drafter), "later loads go straight to the class's own"


def test_what_sglang_lets_go_of_is_freed() -> None:
    """The drafter's own embedding is a gigabyte on a real model; SGLang frees it before it sizes the cache."""
    drafter = Drafter()
    gone = weakref.ref(drafter.model.embed_tokens.weight)
    watch = _watched(_weights(), drafter)
    gc.collect()
    assert gone() is None
    assert "model.embed_tokens.weight" in watch.replaced()
    assert watch.unwritten() == []


def test_an_unreadable_parameter_ends_the_judging_and_not_the_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    utilities = ModuleType("sglang.srt.model_loader.weight_utils")
    utilities.default_weight_loader = _default_loader  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.srt.model_loader.weight_utils", utilities)
    gate = LoadGate()
    drafter = gate.hook(lambda config: Drafter(), SimpleNamespace(is_draft_model=True))
    drafter.lm_head.lazy = torch.nn.UninitializedParameter()  # as GGUF's are, and after others that are wrapped by then
    before = drafter.model.qkv_proj.weight.weight_loader
    weights = _weights()
    drafter.load_weights(weights)
    assert torch.equal(drafter.lm_head.weight, weights["lm_head.weight"])
    assert drafter.model.qkv_proj.weight.weight_loader is before
    assert gate.watches == []
    assert len(gate.errors) == 1


def test_an_empty_map_is_no_error_of_ours() -> None:
    facts = map_facts(torch.tensor([], dtype=torch.int64))
    (refusal,) = judge({**_facts(), "map": facts})
    assert refusal.message == "the drafter's map is not as long as its head"


def test_facts_of_a_map() -> None:
    facts = map_facts(torch.tensor([0, 2, 3, 9]))
    assert facts == {
        "length": 4,
        "dtype": "int64",
        "lowest": 0,
        "highest": 9,
        "repeats": 0,
        "sha256": hashlib.sha256(struct.pack("<4q", 0, 2, 3, 9)).hexdigest(),
    }
    assert map_facts(torch.tensor([0.0, 1.0])) == {"length": 2, "dtype": "float32"}
    assert map_facts(None) is None


def test_captured_layers_are_the_targets_own() -> None:
    target = torch.nn.Sequential(torch.nn.Linear(1, 1))
    assert captured_layers(target) is None
    target[0].layers_to_capture = [6, 2, 4]
    assert captured_layers(target) == [2, 4, 6]


GOOD_MAP = {"length": 6, "dtype": "int64", "lowest": 0, "highest": 9, "repeats": 0, "sha256": ""}


def _facts(**changes: Any) -> dict[str, Any]:
    drafter = {"class": "LlamaForCausalLMEagle3", "unwritten": [], "partial": {}, "draft_vocab": 6}
    facts = {"map": GOOD_MAP, "captured_layers": [2, 4, 6], "target_vocab": 10}
    for name, value in changes.items():
        (drafter if name in ("class", "unwritten", "partial", "draft_vocab") else facts)[name] = value
    return {**facts, "drafters": [drafter]}


@pytest.mark.parametrize(
    ("target", "draft", "said"),
    [
        (SimpleNamespace(capture_bs=[8, 1, 4]), SimpleNamespace(capture_bs=[1, 2]), ([1, 4, 8], [1, 2])),
        (SimpleNamespace(), None, ([], [])),  # SGLang's EagerRunner; no graphs for the draft
        (None, None, ([], [])),
    ],
)
def test_settings_say_which_batch_sizes_have_graphs(target: Any, draft: Any, said: Any) -> None:
    config = SimpleNamespace(context_len=64, dtype="torch.bfloat16", vocab_size=10)
    runner = SimpleNamespace(attn_backend=object(), decode_cuda_graph_runner=target)
    scheduler = SimpleNamespace(
        model_worker=SimpleNamespace(
            draft_worker=SimpleNamespace(cuda_graph_runner=draft, draft_attn_backend=None), topk=1
        ),
        tp_worker=SimpleNamespace(model_runner=runner, model_config=config),
        max_running_requests=8,
        max_total_num_tokens=100,
        enable_overlap=False,
    )
    settings = effective_settings(scheduler)
    assert (settings["target_graph_batch_sizes"], settings["draft_graph_batch_sizes"]) == said


def test_a_right_load_passes() -> None:
    assert judge(_facts()) == []
    assert judge(_facts(map=None, draft_vocab=10)) == []
    assert judge({**_facts(), "drafters": []}) == []


@pytest.mark.parametrize(
    ("changes", "check", "words"),
    [
        ({"unwritten": ["model.layers.0.mlp.down_proj.weight"]}, "load.unwritten", "down_proj"),
        ({"unwritten": ["model.fc.weight"]}, "load.unwritten", "model.fc.weight"),
        ({"partial": {"qkv_proj.weight": ["q"]}}, "load.partial", "qkv_proj.weight without q"),
        ({"map": None}, "load.map", "none"),
        ({"map": {**GOOD_MAP, "highest": 10}}, "load.map", "0 to 10"),
        ({"map": {**GOOD_MAP, "lowest": -1}}, "load.map", "-1 to 9"),
        ({"map": {**GOOD_MAP, "length": 5}}, "load.map", "5"),
        ({"map": {"length": 6, "dtype": "float32"}}, "load.map", "float32"),
    ],
)
def test_a_wrong_load_is_refused_for_its_reason(changes: dict[str, Any], check: str, words: str) -> None:
    (refusal,) = judge(_facts(**changes))
    assert refusal.check == check
    assert words in refusal.found
    assert refusal.message
    assert refusal.remedy


def test_an_fc_that_is_not_read_may_be_unwritten() -> None:
    """With no captured layers the forward pass goes round fc."""
    assert judge(_facts(unwritten=["model.fc.weight"], captured_layers=None)) == []


def test_other_heads_are_reported_and_not_refused() -> None:
    """What an MTP head shares with its target is that class's business."""
    assert judge(_facts(**{"class": "DeepseekV3ForCausalLMNextN", "unwritten": ["model.eh_proj.weight"]})) == []
