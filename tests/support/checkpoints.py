"""Small checkpoints for tests, written without torch: config.json and safetensors by hand."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "F32": 32,
    "I64": 64,
    "F64": 64,
}
_PACK = {"BOOL": "B", "U8": "B", "I8": "b", "I16": "h", "F16": "e", "I32": "i", "F32": "f", "I64": "q", "F64": "d"}


@dataclass
class Data:
    """One tensor: dtype, shape, and its values (None: small noise from a fixed seed)."""

    dtype: str
    shape: tuple[int, ...]
    values: Sequence[float] | None = None
    seed: int = 0
    like: str | None = None  # make the noise of a tensor of this name

    def encoded(self, name: str) -> bytes:
        """Little-endian bytes."""
        count = math.prod(self.shape)
        values = self.values
        if values is None:
            noise = random.Random(f"{self.like or name} {self.shape} {self.seed}")
            values = [noise.gauss(0, 0.05) for _ in range(count)]
            if self.dtype in ("I64", "I32", "I16", "U8", "I8", "BOOL", "F8_E4M3"):
                values = [noise.randrange(2) for _ in range(count)]
        if len(values) != count:
            raise ValueError(f"{name}: {len(values)} values for {self.shape}")
        if self.dtype == "BF16":
            return b"".join(struct.pack("<I", _float_bits(value))[2:] for value in values)
        if self.dtype == "F8_E4M3":
            return bytes(int(value) & 0xFF for value in values)
        if self.dtype in ("F16", "F32", "F64"):
            return struct.pack(f"<{count}{_PACK[self.dtype]}", *values)
        return struct.pack(f"<{count}{_PACK[self.dtype]}", *(int(value) for value in values))


def _float_bits(value: float) -> int:
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if math.isnan(value):
        return 0x7FC00000
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return int(rounded & 0xFFFFFFFF) if not math.isinf(value) else int(bits)


def write_safetensors(path: Path, tensors: Mapping[str, Data], metadata: Mapping[str, str] | None = None) -> None:
    """A valid safetensors file."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    body = b""
    for name, tensor in tensors.items():
        data = tensor.encoded(name)
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def compact(path: Path) -> None:
    """The header as the safetensors library writes it."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.dumps(json.loads(raw[8 : 8 + length]), separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])


@dataclass
class Model:
    """A model folder to be written: change it, then `write` it."""

    config: dict[str, Any]
    tensors: dict[str, Data]
    files: dict[str, bytes] = field(default_factory=dict)

    def write(self, folder: Path, *, shards: int = 1) -> Path:
        """Write config.json and the weights; with several shards an index too."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=1))
        names = list(self.tensors)
        if shards == 1:
            write_safetensors(folder / "model.safetensors", self.tensors, {"format": "pt"})
        else:
            index: dict[str, str] = {}
            for number in range(shards):
                file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
                part = names[number::shards]
                index.update(dict.fromkeys(part, file))
                write_safetensors(folder / file, {name: self.tensors[name] for name in part}, {"format": "pt"})
            text = json.dumps({"metadata": {}, "weight_map": index}, indent=1)
            (folder / "model.safetensors.index.json").write_text(text)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return folder

    def rename(self, old: str, new: str) -> None:
        """Replace ``old`` by ``new`` in every tensor name."""
        self.tensors = {name.replace(old, new): tensor for name, tensor in self.tensors.items()}


TARGET_VOCABULARY = 96
DRAFT_VOCABULARY = 40


def target(*, layers: int = 8, hidden: int = 32, vocabulary: int = TARGET_VOCABULARY, **config: Any) -> Model:
    """A Llama target of some 100 kB."""
    heads, head_dim, intermediate = 4, hidden // 4, 48
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "vocab_size": vocabulary,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        **config,
    }
    tensors = {"model.embed_tokens.weight": Data("BF16", (vocabulary, hidden))}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        tensors |= {
            f"{prefix}input_layernorm.weight": Data("BF16", (hidden,)),
            f"{prefix}post_attention_layernorm.weight": Data("BF16", (hidden,)),
            f"{prefix}self_attn.q_proj.weight": Data("BF16", (heads * head_dim, hidden)),
            f"{prefix}self_attn.k_proj.weight": Data("BF16", (2 * head_dim, hidden)),
            f"{prefix}self_attn.v_proj.weight": Data("BF16", (2 * head_dim, hidden)),
            f"{prefix}self_attn.o_proj.weight": Data("BF16", (hidden, heads * head_dim)),
            f"{prefix}mlp.gate_proj.weight": Data("BF16", (intermediate, hidden)),
            f"{prefix}mlp.up_proj.weight": Data("BF16", (intermediate, hidden)),
            f"{prefix}mlp.down_proj.weight": Data("BF16", (hidden, intermediate)),
        }
    tensors |= {"model.norm.weight": Data("BF16", (hidden,)), "lm_head.weight": Data("BF16", (vocabulary, hidden))}
    return Model(settings, tensors)


def kept_ids(draft: int = DRAFT_VOCABULARY, vocabulary: int = TARGET_VOCABULARY) -> list[int]:
    """Target ids of a draft vocabulary: the first few all, then gaps, as token counts produce them."""
    fixed = list(range(min(8, draft)))
    return sorted(fixed + random.Random(draft).sample(range(8, vocabulary), draft - len(fixed)))


def maps(ids: Sequence[int], vocabulary: int = TARGET_VOCABULARY) -> dict[str, Data]:
    """d2t and t2d of a list of target ids."""
    kept = set(ids)
    return {
        "d2t": Data("I64", (len(ids),), [token - i for i, token in enumerate(ids)]),
        "t2d": Data("BOOL", (vocabulary,), [token in kept for token in range(vocabulary)]),
    }


def drafter(
    *,
    hidden: int = 32,
    target_hidden: int | None = None,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 8,
    intermediate: int = 48,
    vocabulary: int = TARGET_VOCABULARY,
    draft: int = DRAFT_VOCABULARY,
    states: int = 3,
    layers: int = 1,
    prefix: str = "midlayer.",
    dtype: str = "BF16",
    **config: Any,
) -> Model:
    """A SpecForge-like EAGLE-3 head with both maps (no maps where draft equals vocabulary)."""
    settings = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocabulary,
        "draft_vocab_size": draft,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True},
        **config,
    }
    settings = {key: value for key, value in settings.items() if value is not ABSENT}
    if target_hidden is not None:
        settings["target_hidden_size"] = target_hidden
    rows, kv_rows = heads * head_dim, kv_heads * head_dim
    tensors = {"fc.weight": Data(dtype, (hidden, states * (target_hidden or hidden)))}
    for layer in range(layers):
        name, inputs = (prefix, 2 * hidden) if layer == 0 else (f"layers.{layer}.", hidden)
        tensors |= {
            f"{name}input_layernorm.weight": Data(dtype, (hidden,)),
            f"{name}hidden_norm.weight": Data(dtype, (hidden,)),
            f"{name}post_attention_layernorm.weight": Data(dtype, (hidden,)),
            f"{name}self_attn.q_proj.weight": Data(dtype, (rows, inputs)),
            f"{name}self_attn.k_proj.weight": Data(dtype, (kv_rows, inputs)),
            f"{name}self_attn.v_proj.weight": Data(dtype, (kv_rows, inputs)),
            f"{name}self_attn.o_proj.weight": Data(dtype, (hidden, rows)),
            f"{name}mlp.gate_proj.weight": Data(dtype, (intermediate, hidden)),
            f"{name}mlp.up_proj.weight": Data(dtype, (intermediate, hidden)),
            f"{name}mlp.down_proj.weight": Data(dtype, (hidden, intermediate)),
        }
    tensors |= {"norm.weight": Data(dtype, (hidden,)), "lm_head.weight": Data(dtype, (draft, hidden))}
    if draft != vocabulary:
        tensors |= maps(kept_ids(draft, vocabulary), vocabulary)
    return Model(settings, tensors)


class _Absent:
    """Take a key out of a config."""


ABSENT: Any = _Absent()


def mla_drafter(**config: Any) -> Model:
    """A Kimi-like head with multi-head latent attention over the full vocabulary."""
    hidden, heads, vocabulary, intermediate = 32, 4, TARGET_VOCABULARY, 48
    nope, rope, value, q_rank, kv_rank = 8, 4, 8, 12, 16
    settings = {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": vocabulary,
        "draft_vocab_size": vocabulary,
        "q_lora_rank": q_rank,
        "kv_lora_rank": kv_rank,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 64.0,
            "original_max_position_embeddings": 8,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "use_aux_hidden_state": True},
        **config,
    }
    settings = {key: entry for key, entry in settings.items() if entry is not ABSENT}
    layer, attention = "layers.0.", "layers.0.self_attn."
    tensors = {
        "fc.weight": Data("BF16", (hidden, 3 * hidden)),
        f"{layer}input_layernorm.weight": Data("BF16", (hidden,)),
        f"{layer}hidden_norm.weight": Data("BF16", (hidden,)),
        f"{layer}post_attention_layernorm.weight": Data("BF16", (hidden,)),
        f"{attention}q_a_proj.weight": Data("BF16", (q_rank, 2 * hidden)),
        f"{attention}q_a_layernorm.weight": Data("BF16", (q_rank,)),
        f"{attention}q_b_proj.weight": Data("BF16", (heads * (nope + rope), q_rank)),
        f"{attention}kv_a_proj_with_mqa.weight": Data("BF16", (kv_rank + rope, 2 * hidden)),
        f"{attention}kv_a_layernorm.weight": Data("BF16", (kv_rank,)),
        f"{attention}kv_b_proj.weight": Data("BF16", (heads * (nope + value), kv_rank)),
        f"{attention}o_proj.weight": Data("BF16", (hidden, heads * value)),
        f"{layer}mlp.gate_proj.weight": Data("BF16", (intermediate, hidden)),
        f"{layer}mlp.up_proj.weight": Data("BF16", (intermediate, hidden)),
        f"{layer}mlp.down_proj.weight": Data("BF16", (hidden, intermediate)),
        "norm.weight": Data("BF16", (hidden,)),
        "lm_head.weight": Data("BF16", (vocabulary, hidden)),
    }
    return Model(settings, tensors)
