"""Look-alikes of the models in the shipped profiles: real configs, names, shapes and dtypes, and no weights.

Each file is a real safetensors header before a hole in the file system; only the vocabulary maps have values. Shapes
and configs are those that the models publish.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.checkpoints import BITS, Data, kept_ids, maps

Shapes = dict[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape by name."""

LAYERS_A_SHARD = 8


@dataclass
class LookAlike:
    """A model folder to be written; ``values`` are tensors that have values."""

    config: dict[str, Any]
    shapes: Shapes
    values: dict[str, Data] = field(default_factory=dict)
    cut: int = 0  # bytes that the end of each file lacks

    def write(self, folder: Path) -> Path:
        """config.json, and one sparse file for the rest and each `LAYERS_A_SHARD` layers."""
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=1))
        shards: dict[int, Shapes] = {}
        for name, shape in self.shapes.items():
            layer = next((int(part) for part in name.split(".") if part.isdigit()), None)
            number = 0 if layer is None else 1 + layer // LAYERS_A_SHARD
            shards.setdefault(number, {})[name] = shape
        files = sorted(shards)
        index: dict[str, str] = {}
        for position, number in enumerate(files, start=1):
            one = "model.safetensors" if len(files) == 1 else f"model-{position:05}-of-{len(files):06}.safetensors"
            _write_sparse(folder / one, shards[number], self.values)
            if self.cut:
                with (folder / one).open("rb+") as file:
                    file.truncate(file.seek(0, 2) - self.cut)
            index.update(dict.fromkeys(shards[number], one))
        if len(files) > 1:
            text = json.dumps({"metadata": {}, "weight_map": index})
            (folder / "model.safetensors.index.json").write_text(text)
        return folder


def _write_sparse(path: Path, shapes: Shapes, values: Mapping[str, Data]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in shapes.items():
        size = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        start = file.tell()
        file.truncate(start + at)
        for name, data in values.items():
            if name in shapes:
                file.seek(start + header[name]["data_offsets"][0])
                file.write(data.encoded(name))


# Parts


def _layer(prefix: str, hidden: int, intermediate: int, heads: int, kv_heads: int, head_dim: int) -> Shapes:
    """A Llama layer in bfloat16."""
    return {
        f"{prefix}input_layernorm.weight": ("BF16", (hidden,)),
        f"{prefix}post_attention_layernorm.weight": ("BF16", (hidden,)),
        f"{prefix}self_attn.q_proj.weight": ("BF16", (heads * head_dim, hidden)),
        f"{prefix}self_attn.k_proj.weight": ("BF16", (kv_heads * head_dim, hidden)),
        f"{prefix}self_attn.v_proj.weight": ("BF16", (kv_heads * head_dim, hidden)),
        f"{prefix}self_attn.o_proj.weight": ("BF16", (hidden, heads * head_dim)),
        **_mlp(f"{prefix}mlp.", hidden, intermediate),
    }


def _mlp(prefix: str, hidden: int, intermediate: int, dtype: str = "BF16") -> Shapes:
    up, down = (intermediate, hidden), (hidden, intermediate)
    return {f"{prefix}{name}.weight": (dtype, down if name == "down_proj" else up) for name in _PROJECTIONS}


_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def _ends(prefix: str, hidden: int, vocabulary: int) -> Shapes:
    return {
        f"{prefix}model.embed_tokens.weight": ("BF16", (vocabulary, hidden)),
        f"{prefix}model.norm.weight": ("BF16", (hidden,)),
        f"{prefix}lm_head.weight": ("BF16", (vocabulary, hidden)),
    }


def _scaled(shapes: Shapes) -> Shapes:
    """Matrices in FP8 with a scale for each block of 128 x 128."""
    made: Shapes = {}
    for name, (_, shape) in shapes.items():
        made[name] = ("F8_E4M3", shape)
        made[f"{name}_scale_inv"] = ("F32", tuple(-(-side // 128) for side in shape))
    return made


def _packed(shapes: Shapes) -> Shapes:
    """Matrices in four bits, eight to an int32, with a scale for each 32 numbers (compressed-tensors)."""
    made: Shapes = {}
    for name, (_, (rows, columns)) in shapes.items():
        made[f"{name}_packed"] = ("I32", (rows, columns // 8))
        made[f"{name}_scale"] = ("BF16", (rows, columns // 32))
        made[f"{name}_shape"] = ("I32", (2,))
    return made


def _mla(prefix: str, heads: int) -> Shapes:
    """DeepSeek's latent attention, by the numbers that V3 and Kimi K2 share."""
    return {
        f"{prefix}q_a_proj.weight": ("BF16", (1536, 7168)),
        f"{prefix}q_b_proj.weight": ("BF16", (heads * 192, 1536)),
        f"{prefix}kv_a_proj_with_mqa.weight": ("BF16", (576, 7168)),
        f"{prefix}kv_b_proj.weight": ("BF16", (heads * 256, 512)),
        f"{prefix}o_proj.weight": ("BF16", (7168, heads * 128)),
    }


def _mla_norms(prefix: str) -> Shapes:
    return {
        f"{prefix}input_layernorm.weight": ("BF16", (7168,)),
        f"{prefix}post_attention_layernorm.weight": ("BF16", (7168,)),
        f"{prefix}self_attn.q_a_layernorm.weight": ("BF16", (1536,)),
        f"{prefix}self_attn.kv_a_layernorm.weight": ("BF16", (512,)),
    }


def _experts(prefix: str, count: int) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    for expert in range(count):
        yield from _mlp(f"{prefix}{expert}.", 7168, 2048).items()


# Targets


def llama_3_1_8b() -> LookAlike:
    """meta-llama/Llama-3.1-8B-Instruct."""
    shapes = _ends("", 4096, 128256)
    for layer in range(32):
        shapes |= _layer(f"model.layers.{layer}.", 4096, 14336, 32, 8, 128)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
        "rope_scaling": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3",
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
    }  # fmt: skip
    return LookAlike(config, shapes)


def qwen3_8b() -> LookAlike:
    """Qwen/Qwen3-8B."""
    shapes = _ends("", 4096, 151936)
    for layer in range(36):
        prefix = f"model.layers.{layer}."
        shapes |= _layer(prefix, 4096, 12288, 32, 8, 128)
        shapes |= {f"{prefix}self_attn.{name}.weight": ("BF16", (128,)) for name in ("q_norm", "k_norm")}
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
        "rope_scaling": None, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "bos_token_id": 151643, "eos_token_id": 151645, "attention_bias": False, "use_sliding_window": False,
    }  # fmt: skip
    return LookAlike(config, shapes)


def gpt_oss_120b() -> LookAlike:
    """openai/gpt-oss-120b: experts in MXFP4, config.json without a dtype."""
    shapes = _ends("", 2880, 201088)
    for layer in range(36):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}{name}.weight": ("BF16", (2880,)) for name in ("input_layernorm", "post_attention_layernorm")
        }
        for name, rows, columns in (
            ("q_proj", 4096, 2880), ("k_proj", 512, 2880), ("v_proj", 512, 2880), ("o_proj", 2880, 4096),
        ):  # fmt: skip
            shapes[f"{prefix}self_attn.{name}.weight"] = ("BF16", (rows, columns))
            shapes[f"{prefix}self_attn.{name}.bias"] = ("BF16", (rows,))
        shapes |= {
            f"{prefix}self_attn.sinks": ("BF16", (64,)),
            f"{prefix}mlp.router.weight": ("BF16", (128, 2880)),
            f"{prefix}mlp.router.bias": ("BF16", (128,)),
            f"{prefix}mlp.experts.gate_up_proj_blocks": ("U8", (128, 5760, 90, 16)),
            f"{prefix}mlp.experts.gate_up_proj_scales": ("U8", (128, 5760, 90)),
            f"{prefix}mlp.experts.gate_up_proj_bias": ("BF16", (128, 5760)),
            f"{prefix}mlp.experts.down_proj_blocks": ("U8", (128, 2880, 90, 16)),
            f"{prefix}mlp.experts.down_proj_scales": ("U8", (128, 2880, 90)),
            f"{prefix}mlp.experts.down_proj_bias": ("BF16", (128, 2880)),
        }
    config = {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "vocab_size": 201088, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 150000,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
            "rope_type": "yarn", "truncate": False,
        },
        "hidden_act": "silu", "tie_word_embeddings": False, "eos_token_id": 200002, "pad_token_id": 199999,
        "attention_bias": True, "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
            ],
        },
    }  # fmt: skip
    return LookAlike(config, shapes)


_DEEPSEEK = {
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True,
    "moe_layer_freq": 1,
}  # fmt: skip


def deepseek_v3() -> LookAlike:
    """deepseek-ai/DeepSeek-V3-0324 in FP8, with the layer for multi-token prediction."""
    shapes = _ends("", 7168, 129280)
    for layer in range(62):
        prefix = f"model.layers.{layer}."
        shapes |= _mla_norms(prefix)
        shapes |= _scaled(_mla(f"{prefix}self_attn.", 128))
        if layer < 3:
            shapes |= _scaled(_mlp(f"{prefix}mlp.", 7168, 18432))
            continue
        shapes |= {f"{prefix}mlp.gate.weight": ("BF16", (256, 7168))}
        shapes |= {f"{prefix}mlp.gate.e_score_correction_bias": ("F32", (256,))}
        shapes |= _scaled(_mlp(f"{prefix}mlp.shared_experts.", 7168, 2048))
        shapes |= _scaled(dict(_experts(f"{prefix}mlp.experts.", 256)))
    shapes |= {
        "model.layers.61.embed_tokens.weight": ("BF16", (129280, 7168)),
        "model.layers.61.enorm.weight": ("BF16", (7168,)),
        "model.layers.61.hnorm.weight": ("BF16", (7168,)),
        "model.layers.61.eh_proj.weight": ("BF16", (7168, 14336)),
        "model.layers.61.shared_head.norm.weight": ("BF16", (7168,)),
        "model.layers.61.shared_head.head.weight": ("BF16", (129280, 7168)),
    }
    config = {
        **_DEEPSEEK, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
        "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "n_routed_experts": 256,
        "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 1, "max_position_embeddings": 163840, "rope_theta": 10000,
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "type": "yarn",
            "original_max_position_embeddings": 4096,
        },
        "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1,
        "quantization_config": {
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
        },
    }  # fmt: skip
    return LookAlike(config, shapes)


def kimi_k2_5_int4() -> LookAlike:
    """Kimi K2.5 with experts in INT4; of its vision tower only the first tensors."""
    start = "language_model."
    shapes = _ends(start, 7168, 163840)
    shapes |= {
        "vision_tower.patch_embed.proj.weight": ("BF16", (1152, 3, 14, 14)),
        "vision_tower.patch_embed.proj.bias": ("BF16", (1152,)),
        "mm_projector.pre_norm.weight": ("BF16", (1152,)),
    }
    for layer in range(61):
        prefix = f"{start}model.layers.{layer}."
        shapes |= _mla_norms(prefix)
        shapes |= _mla(f"{prefix}self_attn.", 64)
        if layer == 0:
            shapes |= _mlp(f"{prefix}mlp.", 7168, 18432)
            continue
        shapes |= {f"{prefix}mlp.gate.weight": ("BF16", (384, 7168))}
        shapes |= {f"{prefix}mlp.gate.e_score_correction_bias": ("F32", (384,))}
        shapes |= _mlp(f"{prefix}mlp.shared_experts.", 7168, 2048)
        shapes |= _packed(dict(_experts(f"{prefix}mlp.experts.", 384)))
    text = {
        **_DEEPSEEK, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "num_attention_heads": 64,
        "num_key_value_heads": 64, "vocab_size": 163840, "n_routed_experts": 384, "first_k_dense_replace": 1,
        "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827, "num_nextn_predict_layers": 0,
        "max_position_embeddings": 262144, "rope_theta": 50000.0,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0, "type": "yarn",
            "original_max_position_embeddings": 4096,
        },
        "dtype": "bfloat16", "bos_token_id": 163584, "eos_token_id": 163585,
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True},
                }
            },
            "ignore": [
                "lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
            ],
        },
    }  # fmt: skip
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "dtype": "bfloat16",
        "tie_word_embeddings": False, "text_config": text,
        "vision_config": {"vt_hidden_size": 1152, "vt_num_hidden_layers": 27, "vt_num_attention_heads": 16},
    }  # fmt: skip
    return LookAlike(config, shapes)


# Drafters


def eagle3(
    hidden: int,
    intermediate: int,
    heads: tuple[int, int, int],
    vocabulary: int,
    *,
    ends: tuple[int, ...],
    ids: tuple[int, ...] | None = None,
    dtype: str = "BF16",
    **config: Any,
) -> LookAlike:
    """A SpecForge head of one layer over 32000 draft tokens; ``heads`` are query heads, key heads and head size,
    ``ends`` the tokens that end the target's text, which are in the draft vocabulary.
    """
    draft, (query, keys, size) = 32000, heads
    common = [token for token in kept_ids(draft, vocabulary) if token not in ends]
    kept = sorted([*common[: draft - len(ends)], *ends])
    both = 2 * hidden
    shapes: Shapes = {
        "fc.weight": (dtype, (hidden, 3 * hidden)),
        "midlayer.input_layernorm.weight": (dtype, (hidden,)),
        "midlayer.hidden_norm.weight": (dtype, (hidden,)),
        "midlayer.post_attention_layernorm.weight": (dtype, (hidden,)),
        "midlayer.self_attn.q_proj.weight": (dtype, (query * size, both)),
        "midlayer.self_attn.k_proj.weight": (dtype, (keys * size, both)),
        "midlayer.self_attn.v_proj.weight": (dtype, (keys * size, both)),
        "midlayer.self_attn.o_proj.weight": (dtype, (hidden, query * size)),
        **_mlp("midlayer.mlp.", hidden, intermediate, dtype),
        "norm.weight": (dtype, (hidden,)),
        "lm_head.weight": (dtype, (draft, hidden)),
        "d2t": ("I64", (draft,)),
        "t2d": ("BOOL", (vocabulary,)),
    }
    settings: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": hidden,
        "intermediate_size": intermediate, "num_hidden_layers": 1, "num_attention_heads": query,
        "num_key_value_heads": keys, "head_dim": size, "vocab_size": vocabulary, "draft_vocab_size": draft,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
        "torch_dtype": {"BF16": "bfloat16", "F16": "float16"}[dtype], **config,
    }  # fmt: skip
    if ids is not None:
        settings["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(ids), "use_aux_hidden_state": True}
    return LookAlike(settings, shapes, maps(kept, vocabulary))


def llama_3_1_8b_eagle3() -> LookAlike:
    """lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B: float16, trained at 2048 positions."""
    return eagle3(
        4096, 14336, (32, 8, 128), 128256, ends=(128001, 128008, 128009), dtype="F16", max_position_embeddings=2048
    )


def qwen3_8b_eagle3() -> LookAlike:
    """Tengyunw/qwen3_8b_eagle3."""
    return eagle3(4096, 12288, (32, 8, 128), 151936, ends=(151645,), max_position_embeddings=40960, rope_theta=1000000)


def gpt_oss_120b_eagle3() -> LookAlike:
    """lmsys/EAGLE3-gpt-oss-120b-bf16."""
    return eagle3(
        2880,
        17280,
        (64, 8, 64),
        201088,
        ends=(200002,),
        ids=(1, 17, 33),
        max_position_embeddings=131072,
        rope_theta=150000,
    )


def kimi_k2_5_eagle3() -> LookAlike:
    """AQ-MedAI/Kimi-K25-eagle3; the one for K2 has the same shapes."""
    return eagle3(
        7168,
        18432,
        (64, 64, 128),
        163840,
        ends=(163585,),
        ids=(2, 30, 58),
        max_position_embeddings=262144,
        rope_theta=1000000.0,
    )
