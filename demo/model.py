"""The target (a Llama) and the EAGLE-3 drafter in plain PyTorch; parameter names are those of the files on disk.

Shapes: B sequences, T positions, H hidden size, V and D the target's and the draft vocabulary.
The drafter follows SGLang's `srt/models/llama_eagle3.py` and `srt/speculative/eagle_worker_v2.py`: at position t it
reads the embedding of token t + 1 beside the target's state at t, in that order, and predicts token t + 2. A later
step reads the token just drafted and the drafter's own output before the final norm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of a target or drafter. `aux` holds the layers whose *input* the drafter reads (target numbering)."""

    vocab: int = 2048
    hidden: int = 128
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 384
    positions: int = 2048
    rope_theta: float = 10000.0
    eps: float = 1e-5
    draft_vocab: int = 0
    aux: tuple[int, ...] = (2, 4, 5)


TARGET = Shape()
DRAFTER = Shape(layers=1, heads=8, kv_heads=4, intermediate=1536, draft_vocab=1536)

LARGE_TARGET = Shape(hidden=640, layers=24, heads=10, kv_heads=5, head_dim=64, intermediate=2048, aux=(2, 12, 21))
"""125 million parameters: for a GPU, where the demo's own target is all overhead."""
LARGE_DRAFTER = replace(LARGE_TARGET, layers=1, draft_vocab=1536)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight).to(x.dtype)


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


def rope_table(shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosine and sine for every position, [positions, head_dim], in the half-rotated (NeoX) layout."""
    inverse = 1.0 / shape.rope_theta ** (torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angles = torch.arange(shape.positions).float()[:, None] * inverse[None]
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to [B, heads, T, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat([-second, first], dim=-1) * sin.to(x.dtype)


class Attention(nn.Module):
    """Projections and rotary positions; how keys are attended to is the caller's business."""

    def __init__(self, shape: Shape, width_in: int) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(width_in, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(width_in, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(width_in, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, width_in] to queries [B, heads, T, d] and keys and values [B, kv_heads, T, d]."""
        b, t, _ = x.shape
        s = self.shape
        q = self.q_proj(x).view(b, t, s.heads, s.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, s.kv_heads, s.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, s.kv_heads, s.head_dim).transpose(1, 2)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def merge(self, x: Tensor) -> Tensor:
        """[B, heads, T, d] through the output projection to [B, T, H]."""
        b, h, t, d = x.shape
        out: Tensor = self.o_proj(x.transpose(1, 2).reshape(b, t, h * d))
        return out


class TargetLayer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape, shape.hidden)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)


class TargetBody(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(TargetLayer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.eps)


class Target(nn.Module):
    """A Llama with the embedding tied to the head."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape = TARGET, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.dropout = dropout
        self.model = TargetBody(shape)
        cos, sin = rope_table(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * shape.layers) ** 0.5 if deep else 0.02)
        # RMSNorm undoes the scale; a larger embedding lets the tied head give sharp logits.
        nn.init.normal_(self.model.embed_tokens.weight, std=0.05)

    def logits(self, states: Tensor) -> Tensor:
        return F.linear(self.model.norm(states), self.model.embed_tokens.weight)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, T, V] and the aux states [B, T, len(aux) * H] of whole sequences [B, T]."""
        t = ids.shape[1]
        cos, sin = self.cos[:t], self.sin[:t]
        x = self._drop(self.model.embed_tokens(ids))
        aux: list[Tensor] = []
        for index, layer in enumerate(self.model.layers):
            if index in self.shape.aux:
                aux.append(x)
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            x = x + self._drop(
                layer.self_attn.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
            )
            x = x + self._drop(layer.mlp(layer.post_attention_layernorm(x)))
        return self.logits(x), torch.cat(aux, dim=-1)

    def step(self, ids: Tensor, position: int, cache: Tensor) -> Tensor:
        """Logits [B, V] of one more token each, all at `position`; `cache` is [layers, 2, B, kv_heads, T, d]."""
        cos, sin = self.cos[position : position + 1], self.sin[position : position + 1]
        s = self.shape
        x = self.model.embed_tokens(ids[:, None])
        for index, layer in enumerate(self.model.layers):
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            cache[index, 0, :, :, position] = k[:, :, 0]
            cache[index, 1, :, :, position] = v[:, :, 0]
            keys, values = cache[index, :, :, :, : position + 1]
            grouped = q.view(q.shape[0], s.kv_heads, s.heads // s.kv_heads, s.head_dim)
            weights = torch.softmax((grouped @ keys.transpose(-1, -2)).float() * s.head_dim**-0.5, dim=-1)
            x = x + layer.self_attn.merge((weights.to(values.dtype) @ values).view(q.shape))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.logits(x[:, 0])


class DraftLayer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape, 2 * shape.hidden)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.hidden_norm = RMSNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)

    def project(self, embeds: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values from [embedding, hidden], in that order."""
        joined = torch.cat([self.input_layernorm(embeds), self.hidden_norm(hidden)], dim=-1)
        return self.self_attn.project(joined, cos, sin)

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer's output before the final norm, [B, T, H]."""
        x = hidden + self.self_attn.merge(attended)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Drafter(nn.Module):
    """One EAGLE-3 layer with a reduced vocabulary; it borrows the target's embedding, as SGLang makes it do."""

    cos: Tensor
    sin: Tensor
    d2t: Tensor
    t2d: Tensor

    def __init__(self, shape: Shape = DRAFTER) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(len(shape.aux) * shape.hidden, shape.hidden, bias=False)
        self.midlayer = DraftLayer(shape)
        self.norm = RMSNorm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, shape.draft_vocab, bias=False)
        cos, sin = rope_table(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.register_buffer("d2t", torch.zeros(shape.draft_vocab, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(shape.vocab, dtype=torch.bool))
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2 and name != "fc.weight":
                nn.init.normal_(parameter, std=0.02)

    def set_vocabulary(self, token_ids: Tensor) -> None:
        """Take the target's ids [D] as the draft vocabulary; d2t holds offsets: target id = i + d2t[i]."""
        ordered = token_ids.sort().values.to(self.d2t.device)
        self.d2t.copy_(ordered - torch.arange(len(ordered), device=ordered.device))
        self.t2d.zero_()[ordered] = True

    @property
    def token_ids(self) -> Tensor:
        """Target ids of the draft vocabulary, [D]."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def unroll(self, embeds: Tensor, aux: Tensor, steps: int) -> list[Tensor]:
        """Draft-vocabulary logits [B, T, D] of `steps` drafted tokens from every position at once.

        `embeds` [B, T, H] are the target's embeddings of the text itself, so step k from position t reads tokens
        t + 1 .. t + 1 + k as if all had been accepted, and predicts token t + 2 + k. As in SGLang, a chain sees the
        first step's keys up to its own start and its own later keys, at rising positions. The last k + 1 positions
        of step k have no token to read and mean nothing.
        """
        s = self.shape
        t = embeds.shape[1]
        groups = s.heads // s.kv_heads
        causal = torch.ones(t, t, dtype=torch.bool, device=embeds.device).triu(1)
        hidden = self.fc(aux)
        outputs: list[Tensor] = []
        first_keys = first_values = embeds
        own_keys: list[Tensor] = []
        own_values: list[Tensor] = []
        for k in range(steps):
            tokens = F.pad(embeds[:, 1 + k :], (0, 0, 0, 1 + k))
            q, key, value = self.midlayer.project(tokens, hidden, self.cos[k : k + t], self.sin[k : k + t])
            key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
            if k == 0:
                first_keys, first_values = key, value
                attended = F.scaled_dot_product_attention(q, key, value, is_causal=True)
            else:
                own_keys.append(key)
                own_values.append(value)
                scale = s.head_dim**-0.5
                scores = (q @ first_keys.transpose(-1, -2)).masked_fill(causal, float("-inf"))
                own = torch.stack([(q * own_key).sum(-1) for own_key in own_keys], dim=-1)
                weights = torch.softmax(torch.cat([scores, own], dim=-1).float() * scale, dim=-1).to(value.dtype)
                attended = weights[..., :t] @ first_values
                for j, own_value in enumerate(own_values):
                    attended = attended + weights[..., t + j, None] * own_value
            hidden = self.midlayer.finish(hidden, attended)
            outputs.append(self.lm_head(self.norm(hidden)))
        return outputs
