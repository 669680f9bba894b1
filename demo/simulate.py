"""What a drafter would be accepted for, without an engine: SGLang's greedy chain speculation in plain PyTorch.

    python -m demo.simulate --target demo/target --drafter demo/drafter

Accept length is SGLang's: completion tokens over verify passes. The first completion token comes from the prefill, and
each verify pass gives the accepted drafts and one bonus token.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from demo.checkpoint import load_drafter, load_target
from demo.generate import generate, most_repeats, until_eos
from demo.model import Drafter, Target
from demo.prompts import read_prompts


@dataclass(frozen=True)
class Acceptance:
    """Counts over some texts: completion tokens, verify passes, and passes that accepted at least 1, 2, ... drafts."""

    completion_tokens: int
    verify_passes: int
    accepted_at_least: tuple[int, ...]

    @property
    def accept_length(self) -> float:
        """Bonus token included; between 1 and steps + 1."""
        return self.completion_tokens / max(1, self.verify_passes)

    @property
    def by_position(self) -> tuple[float, ...]:
        """Share of verify passes that accepted the first, second, ... draft."""
        return tuple(count / max(1, self.verify_passes) for count in self.accepted_at_least)


def add(parts: Sequence[Acceptance]) -> Acceptance:
    """The sum of several counts."""
    columns = zip(*(part.accepted_at_least for part in parts), strict=True)
    return Acceptance(
        sum(part.completion_tokens for part in parts),
        sum(part.verify_passes for part in parts),
        tuple(sum(column) for column in columns),
    )


def _walk(accepted_from: Sequence[int], prompt: int, length: int, steps: int) -> Acceptance:
    """Follow the verify passes over a text; `accepted_from[t]` is how many drafts of the chain at t are right."""
    passes = 0
    counts = [0] * steps
    known = prompt + 1
    while known < length:
        accepted = min(accepted_from[known - 2], length - known)
        passes += 1
        for k in range(accepted):
            counts[k] += 1
        known += accepted + 1
    return Acceptance(length - prompt, passes, tuple(counts))


@torch.no_grad()
def acceptance(
    target: Target, drafter: Drafter, texts: Sequence[Sequence[int]], prompt_lengths: Sequence[int], steps: int = 3
) -> Acceptance:
    """Acceptance over texts that the target wrote greedily (prompt included), all chains of a text in one pass."""
    parts = []
    for text, prompt in zip(texts, prompt_lengths, strict=True):
        ids = torch.tensor([list(text)], device=target.cos.device)
        _, aux = target(ids)
        right = torch.zeros(steps, len(text), dtype=torch.bool)
        for k, logits in enumerate(drafter.unroll(target.model.embed_tokens(ids), aux, steps)):
            drafted = drafter.token_ids[logits[0].argmax(-1)]
            usable = len(text) - 2 - k
            if usable > 0:
                right[k, :usable] = (drafted[:usable] == ids[0, 2 + k :]).cpu()
        accepted = right.int().cumprod(dim=0).sum(dim=0).tolist()
        parts.append(_walk(accepted, prompt, len(text), steps))
    return add(parts)


@torch.no_grad()
def speculate(
    target: Target, drafter: Drafter, prompt: Sequence[int], new_tokens: int, steps: int = 3
) -> tuple[list[int], Acceptance]:
    """Draft, verify and extend one token at a time as SGLang does: the completion, and what was accepted.

    Slow, and independent of `Drafter.unroll`: it holds the training's attention against inference's.
    """
    device = target.cos.device
    layer, groups = drafter.midlayer, drafter.shape.heads // drafter.shape.kv_heads
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def draft(token: int, hidden: Tensor, position: int) -> tuple[int, Tensor]:
        """One drafter forward at a position, whose key is put there; the drafted token and the state to go on from."""
        del keys[position:], values[position:]
        embeds = target.model.embed_tokens(torch.tensor([[token]], device=device))
        cos, sin = drafter.cos[position : position + 1], drafter.sin[position : position + 1]
        q, key, value = layer.project(embeds, hidden, cos, sin)
        keys.append(key.repeat_interleave(groups, dim=1))
        values.append(value.repeat_interleave(groups, dim=1))
        out = layer.finish(hidden, F.scaled_dot_product_attention(q, torch.cat(keys, 2), torch.cat(values, 2)))
        best = int(drafter.lm_head(drafter.norm(out))[0, 0].argmax())
        return int(drafter.token_ids[best]), out

    tokens = list(prompt)
    logits, aux = target(torch.tensor([tokens], device=device))
    tokens.append(int(logits[0, -1].argmax()))
    extended = 0
    passes = 0
    counts = [0] * steps
    while len(tokens) - len(prompt) < new_tokens:
        # Extend: the drafter reads every accepted token beside the target's state one place before it.
        drafted, hidden = 0, aux
        for position in range(extended, len(tokens) - 1):
            drafted, hidden = draft(tokens[position + 1], drafter.fc(aux[:, position : position + 1]), position)
        extended = len(tokens) - 1
        chain = [drafted]
        for k in range(1, steps):
            drafted, hidden = draft(chain[-1], hidden, extended + k - 1)
            chain.append(drafted)
        # Verify: one target pass over the chain.
        logits, aux = target(torch.tensor([tokens + chain], device=device))
        best = logits[0, len(tokens) - 1 :].argmax(-1).tolist()
        accepted = 0
        while accepted < steps and chain[accepted] == best[accepted]:
            accepted += 1
        room = new_tokens - (len(tokens) - len(prompt))
        passes += 1
        for k in range(min(accepted, room)):
            counts[k] += 1
        tokens += best[: min(accepted + 1, room)]
    completion = tokens[len(prompt) :]
    return completion, Acceptance(len(completion), passes, tuple(counts))


def main() -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=here / "target")
    parser.add_argument("--drafter", type=Path, default=here / "drafter")
    parser.add_argument("--prompts", type=Path, default=here / "prompts.jsonl")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3, help="drafted tokens a cycle")
    options = parser.parse_args()
    target, drafter = load_target(options.target), load_drafter(options.drafter)
    tokenizer = Tokenizer.from_file(str(options.target / "tokenizer.json"))
    prompts = [tokenizer.encode(prompt.text).ids for prompt in read_prompts(options.prompts)]
    new = options.new_tokens
    rows = generate(target, prompts, max(map(len, prompts)) + new).tolist()
    texts = [row[: len(p)] + until_eos(row[len(p) : len(p) + new]) for row, p in zip(rows, prompts, strict=True)]
    found = acceptance(target, drafter, texts, [len(p) for p in prompts], options.steps)
    print(
        json.dumps(
            {
                "prompts": len(prompts),
                "completion_tokens": found.completion_tokens,
                "verify_passes": found.verify_passes,
                "accept_length": round(found.accept_length, 3),
                "accepted_by_position": [round(share, 3) for share in found.by_position],
                "most_repeats_of_a_span": max(most_repeats(t[len(p) :]) for t, p in zip(texts, prompts, strict=True)),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
