"""The committed demo weights: present, small enough, and shaped as SGLang and SpecForge expect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "demo"
PAIR_BYTES, ALL_BYTES = 6_000_000, 10_000_000

safetensors = pytest.importorskip("safetensors")
pytest.importorskip("torch")


def tensors(name: str):
    with safetensors.safe_open(DEMO / name / "model.safetensors", framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict


def config(name: str):
    return json.loads((DEMO / name / "config.json").read_text(encoding="utf-8"))


def size(*names: str) -> int:
    return sum(file.stat().st_size for name in names for file in (DEMO / name).iterdir())


def test_sizes_stay_within_what_a_repository_can_carry():
    assert size("target", "drafter") <= PAIR_BYTES
    assert size("target", "drafter", "sibling") <= ALL_BYTES


@pytest.mark.parametrize("name", ["target", "sibling"])
def test_a_target_is_a_complete_llama(name):
    found, weights = config(name), tensors(name)
    assert found["architectures"] == ["LlamaForCausalLM"]
    layers = found["num_hidden_layers"]
    assert layers >= 8
    assert len({2, layers // 2, layers - 3}) == 3
    assert tuple(weights["model.embed_tokens.weight"].shape) == (found["vocab_size"], found["hidden_size"])
    assert sum(key.endswith("self_attn.q_proj.weight") for key in weights) == layers
    width = found["num_attention_heads"] * found["head_dim"]
    assert tuple(weights["model.layers.0.self_attn.q_proj.weight"].shape) == (width, found["hidden_size"])
    assert {str(value.dtype) for value in weights.values()} == {"torch.bfloat16"}
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (DEMO / name / file).is_file()


def test_sibling_differs_from_target_in_its_weights_alone():
    assert config("sibling") == config("target")
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (DEMO / "sibling" / file).read_bytes() == (DEMO / "target" / file).read_bytes()
    ours, theirs = tensors("target"), tensors("sibling")
    assert {key: value.shape for key, value in ours.items()} == {key: value.shape for key, value in theirs.items()}
    assert any((ours[key] != theirs[key]).any() for key in ours)


def test_drafter_is_in_specforge_format():
    found, weights, target = config("drafter"), tensors("drafter"), config("target")
    assert found["architectures"] == ["LlamaForCausalLMEagle3"]
    assert found["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    assert found["draft_vocab_size"] < found["vocab_size"] == target["vocab_size"]
    assert found["max_position_embeddings"] >= target["max_position_embeddings"]
    assert not [key for key in weights if "embed" in key]
    hidden = found["hidden_size"]
    assert tuple(weights["fc.weight"].shape) == (hidden, 3 * target["hidden_size"])
    assert tuple(weights["lm_head.weight"].shape) == (found["draft_vocab_size"], hidden)
    assert weights["midlayer.self_attn.k_proj.weight"].shape[1] == 2 * hidden
    assert all(value.isfinite().all() for value in weights.values() if value.is_floating_point())


def test_vocabulary_maps_name_the_same_tokens():
    import torch  # noqa: PLC0415

    weights, found = tensors("drafter"), config("drafter")
    d2t, t2d = weights["d2t"], weights["t2d"]
    assert d2t.dtype == torch.int64
    assert t2d.dtype == torch.bool
    assert tuple(t2d.shape) == (found["vocab_size"],)
    ids = d2t + torch.arange(found["draft_vocab_size"])
    assert torch.equal(ids, t2d.nonzero()[:, 0])
    assert not torch.equal(d2t, torch.zeros_like(d2t))
    # Read as absolute ids, which is the usual mistake, the same map would not be one.
    assert not torch.equal(d2t, t2d.nonzero()[:, 0])


def test_tokenizer_gives_back_what_it_was_given():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO / "target" / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == config("target")["vocab_size"]
    for text in (Path(__file__).read_text(encoding="utf-8"), "x = 'é 漢字 🙂'\n\n\tif x:\r\n        pass", "  a\n\n"):
        encoded = tokenizer.encode(text).ids
        assert encoded[0] == config("target")["bos_token_id"]
        assert tokenizer.decode(encoded) == text


def test_a_prompt_ends_where_its_continuation_is_cut():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO / "target" / "tokenizer.json"))
    whole = tokenizer.encode("def f(x):\n    return x\n").ids
    assert whole[: len(start)] == start if (start := tokenizer.encode("def f(x):\n").ids) else False


def test_chat_template_passes_the_content_through():
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO / "target")
    messages = [{"role": "user", "content": "def f(x):\n"}]
    ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert ids == tokenizer("def f(x):\n")["input_ids"]
