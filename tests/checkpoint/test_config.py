"""config.json in the forms that are published, and in forms that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.checkpoint.config import ModelConfig, parse_config, read_config
from guarded_serve.engine_rules.settings import context_length, runtime_dtype


def config(**raw: Any) -> ModelConfig:
    return parse_config(raw, Path("config.json"))


@pytest.mark.parametrize(
    ("raw", "theta", "place"),
    [
        ({"rope_theta": 1e6}, 1e6, "rope_theta"),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5, "rope_parameters"),
        ({"rope_scaling": {"rope_theta": 5e4, "type": "yarn"}}, 5e4, "rope_scaling"),
        ({"rope_scaling": {"type": "yarn", "factor": 64}, "rope_theta": 50000}, 50000, "rope_theta"),
        ({}, None, None),
        ({"rope_theta": "1e6"}, None, "rope_theta"),
        ({"rope_theta": float("nan")}, None, "rope_theta"),
    ],
)
def test_rope_stands_in_three_places(raw: dict[str, Any], theta: float | None, place: str | None) -> None:
    assert (config(**raw).rope.theta, config(**raw).rope.place) == (theta, place)


def test_both_names_of_the_dtype() -> None:
    assert config(dtype="bfloat16").dtype == config(torch_dtype="torch.bfloat16").dtype == "bfloat16"
    assert config().dtype is None


@pytest.mark.parametrize(
    ("raw", "setting", "runs_in"),
    [
        ({"dtype": "bfloat16"}, None, "bfloat16"),
        ({"torch_dtype": "float32"}, "auto", "float16"),
        ({}, None, "float16"),
        ({"dtype": "float32", "model_type": "gemma3"}, None, "bfloat16"),
        ({"dtype": "float16"}, "bfloat16", "bfloat16"),
        ({"dtype": "float16"}, "half", "float16"),
        ({"dtype": "bfloat16", "text_config": {"hidden_size": 8}}, None, "bfloat16"),
    ],
)
def test_the_dtype_that_sglang_runs_in(raw: dict[str, Any], setting: str | None, runs_in: str) -> None:
    assert runtime_dtype(config(**raw), setting) == runs_in


@pytest.mark.parametrize(
    ("raw", "tokens"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        (
            {"max_position_embeddings": 4096, "rope_scaling": {"factor": 8, "original_max_position_embeddings": 512}},
            4096,
        ),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, 16384),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": float("inf")}}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 1e300}}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": True}}, 4096),
        ({"max_seq_len": 1024, "max_position_embeddings": 4096}, 1024),
        ({}, 2048),
    ],
)
def test_context_length(raw: dict[str, Any], tokens: int) -> None:
    assert context_length(config(**raw)) == tokens


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "longrope", "llama3", "default"])
def test_which_types_get_their_original_length_from_transformers(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    rope = {"rope_type": kind, "factor": 4.0, "short_factor": [1.0] * 32, "long_factor": [1.0] * 32}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    made = transformers.LlamaConfig(max_position_embeddings=4096, hidden_size=2048, rope_scaling=rope)
    filled = made.rope_parameters.get("original_max_position_embeddings") == 4096
    ours = context_length(config(max_position_embeddings=4096, rope_scaling=rope))
    assert ours == (4096 if filled or kind == "llama3" else 16384)


def test_nested_decoders() -> None:
    assert config(text_config={"vocab_size": 9}, vocab_size=5).get("vocab_size") == 9
    assert config(thinker_config={"text_config": {"hidden_size": 7}}).get("hidden_size") == 7
    speculators = config(
        transformer_layer_config={"hidden_size": 6}, draft_vocab_size=3, speculators_model_type="eagle3"
    )
    assert speculators.is_speculators
    assert speculators.integer("hidden_size") == 6
    assert speculators.integer("draft_vocab_size") == 3


def test_ids_in_both_places() -> None:
    both = config(
        eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}, eagle_aux_hidden_state_layer_ids=[2, 4, 5]
    )
    assert both.nested_aux_ids == (1, 3, 4)
    assert both.top_aux_ids == (2, 4, 5)


@pytest.mark.parametrize(
    "raw",
    [
        {"hidden_size": "4096"}, {"hidden_size": -1}, {"hidden_size": 1.5}, {"hidden_size": True},
        {"vocab_size": 2**40}, {"tie_word_embeddings": "false"}, {"architectures": "LlamaForCausalLM"},
        {"eagle_config": []}, {"rope_scaling": {"factor": float("inf")}}, {"rope_parameters": {"factor": 1e300}},
        {"rope_scaling": {"factor": 0}}, {"rope_scaling": {"factor": -2.0}}, {"rope_scaling": {"factor": "4"}},
        {"rope_scaling": {"factor": 10**400}}, {"rope_scaling": {"factor": True}},
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": "1,3,4"}}, {"eagle_aux_hidden_state_layer_ids": [1.0, 2]},
    ],
)  # fmt: skip
def test_wrong_types_are_problems(raw: dict[str, Any]) -> None:
    (problem,) = config(**raw).problems
    assert problem.kind == "bad-value"
    assert next(iter(raw)) in problem.message


def test_overrides_are_laid_over_as_sglang_does(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"a": {"x": 1, "y": 2}, "hidden_size": 8}))
    found = read_config(tmp_path, overrides={"a": {"y": 3}, "hidden_size": 16})
    assert found.raw["a"] == {"x": 1, "y": 3}
    assert found.integer("hidden_size") == 16
