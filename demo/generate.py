"""Text from the target, many sequences at once, and the test for text that repeats itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from demo.model import Target
from demo.tokenizer import EOS_ID, PAD_ID

SPAN = 20
"""Tokens in a span that must not recur."""

MOST_REPEATS = 2
"""How often one span may occur in a text."""


@torch.no_grad()
def generate(
    target: Target, prompts: Sequence[Sequence[int]], length: int, temperatures: Tensor | None = None
) -> Tensor:
    """Continue each prompt (token ids, BOS included) to `length` tokens in all: [B, length].

    Temperature 0 (the default) is greedy. Sequences go on past EOS; `until_eos` cuts them.
    """
    device = target.cos.device
    dtype = target.model.embed_tokens.weight.dtype
    s = target.shape
    longest = max(len(prompt) for prompt in prompts)
    given = torch.full((len(prompts), longest), PAD_ID)
    for row, prompt in enumerate(prompts):
        given[row, : len(prompt)] = torch.tensor(prompt)
    given = given.to(device)
    sizes = torch.tensor([len(prompt) for prompt in prompts], device=device)
    cache = torch.zeros(s.layers, 2, len(prompts), s.kv_heads, length, s.head_dim, device=device, dtype=dtype)
    ids = torch.full((len(prompts), length), PAD_ID, device=device)
    ids[:, 0] = given[:, 0]
    for position in range(length - 1):
        logits = target.step(ids[:, position], position, cache)
        chosen = logits.argmax(-1)
        if temperatures is not None:
            noise = -torch.log(torch.empty_like(logits, dtype=torch.float32).exponential_() + 1e-20)
            chosen = (logits.float() + noise * temperatures[:, None]).argmax(-1)
        if position + 1 < longest:
            chosen = torch.where(position + 1 < sizes, given[:, position + 1], chosen)
        ids[:, position + 1] = chosen
    return ids


def until_eos(tokens: Sequence[int]) -> list[int]:
    """Tokens up to and including the first EOS."""
    tokens = list(tokens)
    return tokens[: tokens.index(EOS_ID) + 1] if EOS_ID in tokens else tokens


def most_repeats(tokens: Sequence[int], span: int = SPAN) -> int:
    """How often the commonest span of `span` tokens occurs, overlaps counted; 0 for a shorter text."""
    spans = Counter(tuple(tokens[i : i + span]) for i in range(len(tokens) - span + 1))
    return max(spans.values(), default=0)


def repeats_itself(tokens: Sequence[int]) -> bool:
    """True if one span occurs more often than the demo allows."""
    return most_repeats(tokens) > MOST_REPEATS


def repeating_rows(ids: Tensor, span: int = SPAN) -> Tensor:
    """The same test for rows of token ids [B, T], vectorised: a bool tensor [B]."""
    weights = torch.randint(1, 2**31, (span,), generator=torch.Generator().manual_seed(7)).to(ids.device)
    windows = ids.unfold(1, span, 1)
    hashes = (windows * weights).sum(-1).sort(dim=1).values
    return (hashes[:, MOST_REPEATS:] == hashes[:, :-MOST_REPEATS]).any(dim=1)
