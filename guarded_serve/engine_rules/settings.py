"""What SGLang makes of speculative settings and a config's scalars: defaults, dtype, context length, rope.

Source, SGLang 0.5.16 to 0.5.23: `srt/arg_groups/speculative_hook.py` (`_handle_eagle_family`,
`_auto_choose_speculative_params`; in older versions the same in `server_args.py`), `srt/configs/model_config.py`
(`_get_and_verify_dtype`, `_derive_context_length`), `srt/utils/hf_transformers/common.py` (`get_context_length`),
`srt/layers/rotary_embedding/factory.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from guarded_serve.checkpoint.config import MAX_ROPE_FACTOR, ModelConfig
from guarded_serve.engine_rules.versions import Version

ROPE_TYPES = (
    "default", "llama3", "linear", "dynamic", "yarn", "deepseek_yarn", "longrope", "mrope", "proportional",
)  # fmt: skip
_CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
_WITH_ORIGINAL = ("llama3", "yarn", "longrope")
"""Types for which transformers 5 fills in `original_max_position_embeddings` (modeling_rope_utils.py), so that SGLang
leaves the factor out."""
_LLAMA_MAX_POSITIONS = 2048  # transformers' LlamaConfig


FORCED_DTYPES = {"MistralLarge3ForCausalLM": "bfloat16", "PixtralForConditionalGeneration": "bfloat16"}
"""Targets for which SGLang sets `--dtype` whatever is asked for, and so for the drafter too
(arg_groups/model_override_base.py; 0.5.17: arg_groups/overrides.py)."""


def forced_dtype(target: ModelConfig) -> str | None:
    """What SGLang puts in the place of `--dtype` for a target's class, or None where it leaves it alone."""
    quantization = target.raw.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if target.architecture == "GptOssForCausalLM" and method == "mxfp4":
        return "bfloat16"  # arg_groups/model_overrides/gpt_oss.py
    return FORCED_DTYPES.get(target.architecture or "")


def runtime_dtype(config: ModelConfig, setting: str | None) -> str:
    """The dtype that SGLang computes in: `--dtype`, or with ``auto`` the config's, float32 becoming float16."""
    names = {"half": "float16", "float": "float32"}
    wanted = (setting or "auto").lower()
    if wanted != "auto":
        return names.get(wanted, wanted)
    own = config.dtype or "float32"
    if own != "float32":
        return own
    return "bfloat16" if (config.model_type or "").startswith("gemma") else "float16"


def context_length(config: ModelConfig) -> int:
    """The context length that SGLang derives from a config, in tokens."""
    factor: float = 1
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if isinstance(rope, dict) and "original_max_position_embeddings" not in rope:
        value: Any = rope.get("factor")
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and 0 < value < MAX_ROPE_FACTOR and config.rope.type not in _WITH_ORIGINAL:
            factor = value
    for key in _CONTEXT_KEYS:
        length = config.integer(key)
        if length is not None:
            return int(factor * length)
    return int(factor * _LLAMA_MAX_POSITIONS)


def raises_on_longer_context(version: Version, *, explicit: bool) -> bool:
    """Whether SGLang refuses to start when the served context exceeds the drafter's (eagle_worker_v2.py).

    0.5.17 hands the drafter only an explicit `--context-length`; the others always the target's.
    """
    return explicit or version != (0, 5, 17)


@dataclass(frozen=True)
class DraftShape:
    """Steps, topk and draft tokens as they will be in force."""

    steps: int
    topk: int
    draft_tokens: int

    @property
    def tree_size(self) -> int:
        """Most draft tokens that a tree of these steps and topk can hold (build_tree; topk of all scores)."""
        return self.topk + (self.steps - 1) * self.topk * self.topk


def default_shape(algorithm: str, target_class: str | None) -> DraftShape:
    """What SGLang chooses when none of the three is set."""
    if algorithm != "STANDALONE" and target_class in ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM"):
        return DraftShape(5, 4, 8)
    return DraftShape(3, 1, 4)
