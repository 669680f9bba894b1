"""A tiny Llama target and an EAGLE-3 drafter for it, made in a second without training, for tests on the real engine.

The target is close to a bigram model: its token embeddings pass to a random head nearly unchanged, and its layers add
`context` of noise that depends on the text before. The drafter's weights are set by hand to compute that bigram
choice (its attention looks at the current token only and cancels the hidden state that it is given), so it is right
most of the time: accept lengths lie well above 1 and below the most that is possible. Files are float32.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
DRAFTER_GAIN = 8.0  # how far the drafter's output outweighs what it cannot cancel
DRAFTER_FOCUS = 3.0  # query and key scale: how sharply its attention stays on the current token


@dataclass(frozen=True)
class ToyPair:
    """Folders of the two checkpoints; the tokenizer lies with the target."""

    target: Path
    drafter: Path


@dataclass(frozen=True)
class ToyShape:
    """Sizes of the pair; `key_heads` * head size is the hidden size, so the drafter's values can hold an embedding."""

    layers: int = 9
    hidden: int = 64
    heads: int = 4
    key_heads: int = 2
    draft_vocab: int = 200
    context: float = 0.12
    positions: int = 2048

    @property
    def head_size(self) -> int:
        return self.hidden // self.key_heads


def make_tokenizer(folder: Path) -> int:
    """Write a tokenizer of single bytes and three marks, with a chat template; returns its vocabulary's size."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[0],
        "pad_token": SPECIAL[0],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    return int(tokenizer.get_vocab_size())


def _config(shape: ToyShape, architecture: str, layers: int, vocab: int, **extra: object) -> dict[str, object]:
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": 2 * shape.hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head_size,
        "vocab_size": vocab,
        "max_position_embeddings": shape.positions,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eos_token_id": 256,
        "bos_token_id": 256,
        **extra,
    }


def _target_weights(shape: ToyShape, vocab: int, random: torch.Generator) -> dict[str, torch.Tensor]:
    def normal(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * scale / columns**0.5

    hidden, query, key = shape.hidden, shape.heads * shape.head_size, shape.key_heads * shape.head_size
    embedding = torch.randn(vocab, hidden, generator=random)
    weights = {
        "model.embed_tokens.weight": embedding / embedding.pow(2).mean(dim=1, keepdim=True).sqrt(),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": normal(vocab, hidden, 8.0),
    }
    for layer in range(shape.layers):
        name = f"model.layers.{layer}."
        weights |= {
            name + "self_attn.q_proj.weight": normal(query, hidden, 2.0),
            name + "self_attn.k_proj.weight": normal(key, hidden, 2.0),
            name + "self_attn.v_proj.weight": normal(key, hidden),
            name + "self_attn.o_proj.weight": normal(hidden, query, shape.context),
            name + "mlp.gate_proj.weight": normal(2 * hidden, hidden),
            name + "mlp.up_proj.weight": normal(2 * hidden, hidden),
            name + "mlp.down_proj.weight": normal(hidden, 2 * hidden, shape.context),
            name + "input_layernorm.weight": torch.ones(hidden),
            name + "post_attention_layernorm.weight": torch.ones(hidden),
        }
    return weights


def _drafter_weights(shape: ToyShape, head: torch.Tensor, random: torch.Generator) -> dict[str, torch.Tensor]:
    vocab, hidden = head.shape
    size, group = shape.head_size, shape.heads // shape.key_heads
    identity, nothing = torch.eye(hidden), torch.zeros(hidden, hidden)
    pick = torch.cat([identity[(h // group) * size : (h // group + 1) * size] for h in range(shape.heads)])
    kept = torch.randperm(vocab, generator=random)[: shape.draft_vocab].sort().values
    is_kept = torch.zeros(vocab, dtype=torch.bool)
    is_kept[kept] = True
    layer = "midlayer."
    return {
        "fc.weight": torch.zeros(hidden, 3 * hidden),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": head[kept].clone(),
        "d2t": kept - torch.arange(shape.draft_vocab),
        "t2d": is_kept,
        layer + "self_attn.q_proj.weight": torch.cat([pick, torch.zeros_like(pick)], dim=1) * DRAFTER_FOCUS,
        layer + "self_attn.k_proj.weight": torch.cat([identity, nothing], dim=1) * DRAFTER_FOCUS,
        # The hidden state is DRAFTER_GAIN times the last embedding, or zero: its part of the value cancels it.
        layer + "self_attn.v_proj.weight": torch.cat([identity, -identity], dim=1) * DRAFTER_GAIN,
        layer + "self_attn.o_proj.weight": pick.T.contiguous() / group,
        layer + "mlp.gate_proj.weight": torch.zeros(2 * hidden, hidden),
        layer + "mlp.up_proj.weight": torch.zeros(2 * hidden, hidden),
        layer + "mlp.down_proj.weight": torch.zeros(hidden, 2 * hidden),
        layer + "input_layernorm.weight": torch.ones(hidden),
        layer + "hidden_norm.weight": torch.ones(hidden),
        layer + "post_attention_layernorm.weight": torch.ones(hidden),
    }


def make_pair(folder: Path, shape: ToyShape | None = None, seed: int = 0) -> ToyPair:
    """Write the pair under `folder` (target/ and drafter/), the same bytes for the same shape and seed."""
    shape = shape or ToyShape()
    random = torch.Generator().manual_seed(seed)
    pair = ToyPair(folder / "target", folder / "drafter")
    pair.target.mkdir(parents=True)
    pair.drafter.mkdir()
    vocab = make_tokenizer(pair.target)
    target = _target_weights(shape, vocab, random)
    config = _config(shape, "LlamaForCausalLM", shape.layers, vocab)
    (pair.target / "config.json").write_text(json.dumps(config, indent=2))
    save_file(target, str(pair.target / "model.safetensors"))
    config = _config(shape, "LlamaForCausalLMEagle3", 1, vocab, draft_vocab_size=shape.draft_vocab)
    (pair.drafter / "config.json").write_text(json.dumps(config, indent=2))
    save_file(_drafter_weights(shape, target["lm_head.weight"], random), str(pair.drafter / "model.safetensors"))
    return pair
