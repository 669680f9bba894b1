"""Make the demo pair and its sibling from scratch: corpus, tokenizer, target, its text, drafter, sibling, prompts.

    python -m demo.train --out demo

Needs torch, tokenizers and safetensors; no SGLang. About ten minutes on one data-centre GPU. `--scale 0.01` runs every
stage on a CPU in a few minutes, for a model that knows nothing.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from demo import checkpoint, corpus
from demo.corpus import Document, Part
from demo.generate import generate, repeating_rows, repeats_itself, until_eos
from demo.model import DRAFTER, LARGE_DRAFTER, LARGE_TARGET, TARGET, Drafter, Shape, Target
from demo.prompts import candidates, choose, write_prompts
from demo.simulate import Acceptance, acceptance
from demo.tokenizer import BOS_ID, EOS_ID, save_tokenizer, train_tokenizer


@dataclass(frozen=True)
class Recipe:
    """Every number of a run. Batches are in sequences, windows in tokens."""

    seed: int = 20240601
    target_steps: int = 5000
    target_batch: int = 128
    target_window: int = 512
    target_rate: float = 3e-3
    dropout: float = 0.05
    generated: int = 131_072
    generated_batch: int = 8192
    generated_length: int = 256
    greedy_share: float = 0.7
    drafter_steps: int = 8000
    drafter_batch: int = 96
    drafter_rate: float = 2e-3
    unroll: int = 4
    unroll_weights: tuple[float, ...] = (1.0, 0.9, 0.8, 0.4)
    corpus_share: float = 0.1
    sibling_round: int = 150
    sibling_rounds: int = 12
    sibling_rate: float = 1e-3
    sibling_drop: float = 0.5
    pool: int = 2000
    prompts: int = 40
    new_tokens: int = 128

    def scaled(self, scale: float) -> Recipe:
        """The same run, smaller: for a machine without a GPU."""
        return replace(
            self,
            target_steps=max(20, int(self.target_steps * scale)),
            drafter_steps=max(20, int(self.drafter_steps * scale)),
            sibling_round=max(5, int(self.sibling_round * scale)),
            generated=max(64, int(self.generated * scale)),
            target_batch=8,
            drafter_batch=8,
            generated_batch=64,
            pool=40,
        )


class Stream:
    """A part of the corpus as one row of tokens, with the places where a window or prompt may start."""

    def __init__(self, documents: Sequence[Document], part: Part, tokenizer: Tokenizer, device: torch.device) -> None:
        newline = tokenizer.encode("\n", add_special_tokens=False).ids[0]
        words = ("def", "class", "async", '"""', "Ġdef", "Ġclass", 'Ġ"""')
        heads = torch.tensor([number for word in words if (number := tokenizer.token_to_id(word)) is not None])
        texts = [document.text for document in documents if document.part == part]
        row: list[int] = []
        for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
            row += [*encoding.ids, EOS_ID]
        tokens = torch.tensor(row)
        before = F.pad(tokens[:-1], (1, 0), value=EOS_ID)
        line = ((before == newline) | (before == EOS_ID)) & (tokens != newline) & (tokens != EOS_ID)
        head = torch.isin(tokens, heads)
        block = line & (head | F.pad(head[1:], (0, 1)))
        self.tokens = tokens.to(device)
        self.lines = line.nonzero()[:, 0].to(device)
        self.blocks = block.nonzero()[:, 0].to(device)

    def windows(self, count: int, size: int, blocks: float) -> Tensor:
        """BOS and text from a random line on, [count, size]; the share `blocks` starts at a def, class or docstring."""
        device = self.tokens.device
        some = self.blocks[torch.randint(len(self.blocks), (count,), device=device)]
        other = self.lines[torch.randint(len(self.lines), (count,), device=device)]
        starts = torch.where(torch.rand(count, device=device) < blocks, some, other).clamp(max=len(self.tokens) - size)
        places = starts[:, None] + torch.arange(size - 1, device=device)
        return F.pad(self.tokens[places], (1, 0), value=BOS_ID)


class Clock:
    """Prints what happens, with seconds since the start."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.start:6.1f} s] {text}", flush=True)


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 matrix products on a GPU; float32 elsewhere."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def _optimizer(model: torch.nn.Module, rate: float, decay: float) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=next(model.parameters()).is_cuda)


def optimise(
    model: torch.nn.Module,
    loss_of: Callable[[], Tensor],
    steps: int,
    rate: float,
    clock: Clock,
    name: str,
    decay: float = 0.1,
    final: float = 0.02,
) -> None:
    """AdamW with warm-up and a cosine down to `final` of the rate."""
    optimizer = _optimizer(model, rate, decay)
    warm = max(1, min(200, steps // 10))
    model.train()
    for step in range(steps):
        factor = min(1.0, (step + 1) / warm) * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate * factor
        loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % max(1, steps // 10) == 0 or step == steps - 1:
            clock.say(f"{name} step {step} loss {loss.item():.4f}")
    model.eval()


def target_loss(target: Callable[[Tensor], tuple[Tensor, Tensor]], ids: Tensor) -> Tensor:
    """Next-token cross-entropy over windows [B, T]."""
    with autocast(ids.device):
        logits, _ = target(ids[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(target: Target, stream: Stream, recipe: Recipe) -> float:
    """Mean loss over a few held-out windows."""
    size = min(recipe.target_window, len(stream.tokens) - 1)
    losses = [target_loss(target, stream.windows(16, size, 0.5)).item() for _ in range(4)]
    return sum(losses) / len(losses)


def write_text(target: Target, stream: Stream, recipe: Recipe, clock: Clock) -> Tensor:
    """Text that the target writes from training prompts, greedily or sampled; rows that repeat themselves left out."""
    device = stream.tokens.device
    writer = copy.deepcopy(target)
    if device.type == "cuda":
        writer = writer.bfloat16()
    dice = random.Random(recipe.seed)
    kept: list[Tensor] = []
    made = 0
    while made < recipe.generated:
        count = min(recipe.generated_batch, recipe.generated - made)
        starts = stream.windows(count, 64, 0.7).tolist()
        prompts = [row[: dice.randint(6, 64)] for row in starts]
        sampled = torch.rand(count, device=device) >= recipe.greedy_share
        temperatures = torch.where(sampled, 0.3 + 0.6 * torch.rand(count, device=device), 0.0)
        rows = generate(writer, prompts, recipe.generated_length, temperatures)
        good = rows[~repeating_rows(rows)].to(torch.int16)
        kept.append(good)
        made += count
        clock.say(f"text {made} rows, {len(good) / count:.2f} of the last without loops")
    return torch.cat(kept)


def draft_vocabulary(rows: Tensor, vocab: int, size: int) -> tuple[Tensor, float]:
    """The `size` commonest tokens of generated text [N, T] and their share of it."""
    counts = torch.bincount(rows.flatten().long(), minlength=vocab)
    ids = counts.argsort(descending=True, stable=True)[:size]
    return ids, (counts[ids].sum() / counts.sum()).item()


def drafter_loss(
    target: Callable[[Tensor], tuple[Tensor, Tensor]],
    unroll: Callable[[Tensor, Tensor, int], list[Tensor]],
    embedding: Tensor,
    token_ids: Tensor,
    to_draft: Tensor,
    ids: Tensor,
    recipe: Recipe,
) -> Tensor:
    """Half the target's distribution over the draft vocabulary, half its first choice, for every unrolled step."""
    with torch.no_grad(), autocast(ids.device):
        logits, aux = target(ids)
        wanted = torch.softmax(logits[..., token_ids].float(), dim=-1)
        first = to_draft[logits.argmax(-1)]
        after_end = (ids == EOS_ID).cumsum(dim=1) > 0
    with autocast(ids.device):
        outputs = unroll(F.embedding(ids, embedding), aux, recipe.unroll)
    total = torch.zeros((), device=ids.device)
    for k, (weight, output) in enumerate(zip(recipe.unroll_weights, outputs, strict=True)):
        scores = torch.log_softmax(output[:, : -1 - k].float(), dim=-1)
        real = ~after_end[:, 1 + k :]
        soft = -(wanted[:, 1 + k :] * scores).sum(-1)
        hard = -scores.gather(-1, first[:, 1 + k :].clamp(min=0)[..., None])[..., 0]
        known = real & (first[:, 1 + k :] >= 0)
        total = total + weight * 0.5 * ((soft * real).sum() / real.sum() + (hard * known).sum() / known.sum())
    return total / sum(recipe.unroll_weights)


def continuations(target: Target, prompts: Sequence[list[int]], new_tokens: int) -> list[list[int]]:
    """Prompt and greedy continuation of each prompt, up to EOS."""
    rows = generate(target, prompts, max(map(len, prompts)) + new_tokens).tolist()
    return [
        row[: len(prompt)] + until_eos(row[len(prompt) : len(prompt) + new_tokens])
        for row, prompt in zip(rows, prompts, strict=True)
    ]


@dataclass(frozen=True)
class Judged:
    """A target on the pool: which prompts it continues without repeating itself, and the acceptance over those."""

    usable: list[bool]
    found: Acceptance


def judge(target: Target, drafter: Drafter, pool: Sequence[list[int]], recipe: Recipe) -> Judged:
    """Continue the pool greedily in float32 and count what the drafter would be accepted for."""
    texts = continuations(target, pool, recipe.new_tokens)
    usable = [not repeats_itself(text[len(prompt) :]) for text, prompt in zip(texts, pool, strict=True)]
    pairs = [(text, len(prompt)) for text, prompt, good in zip(texts, pool, usable, strict=True) if good]
    pairs = pairs or [(texts[0], len(pool[0]))]
    return Judged(usable, acceptance(target, drafter, [text for text, _ in pairs], [size for _, size in pairs]))


def batches(rows: Tensor, size: int) -> Iterator[Tensor]:
    """Random batches, epoch after epoch."""
    while True:
        order = torch.randperm(len(rows), device=rows.device)
        for start in range(0, len(order) - size + 1, size):
            yield rows[order[start : start + size]].long()


def make(
    documents: list[Document],
    out: Path,
    recipe: Recipe,
    device: torch.device,
    compiled: bool,
    shapes: tuple[Shape, Shape] = (TARGET, DRAFTER),
) -> None:
    """Run every stage and write target, drafter, sibling, prompts.jsonl and training.json below `out`."""
    clock = Clock()
    torch.manual_seed(recipe.seed)
    torch.set_float32_matmul_precision("highest")
    speed_up: Callable[..., Callable[..., object]] = torch.compile if compiled else (lambda f, **_: f)

    tokenizer = train_tokenizer(document.text for document in documents if document.part == "train")
    streams = {part: Stream(documents, part, tokenizer, device) for part in ("train", "held-out", "sibling")}
    sizes = {part: len(stream.tokens) for part, stream in streams.items()}
    clock.say(f"tokens {sizes}, block starts {len(streams['train'].blocks)}")

    target = Target(shapes[0], recipe.dropout).to(device)
    fast = speed_up(target)
    optimise(
        target,
        lambda: target_loss(fast, streams["train"].windows(recipe.target_batch, recipe.target_window + 1, 0.4)),
        recipe.target_steps,
        recipe.target_rate,
        clock,
        "target",
    )
    checkpoint.round_to_disk(target)
    target.requires_grad_(False)
    checkpoint.save(target, out / "target")
    save_tokenizer(tokenizer, out / "target", target.shape.positions)
    held_out = held_out_loss(target, streams["held-out"], recipe)
    clock.say(f"target held-out loss {held_out:.4f}, training {held_out_loss(target, streams['train'], recipe):.4f}")

    pool = candidates(documents, tokenizer, recipe.seed, recipe.pool)
    ids = [tokenizer.encode(prompt.text).ids for prompt in pool]
    clock.say(f"{len(pool)} candidate prompts from {len({prompt.file for prompt in pool})} files")

    rows = write_text(target, streams["train"], recipe, clock)
    drafter = Drafter(shapes[1]).to(device)
    chosen, mass = draft_vocabulary(rows, target.shape.vocab, drafter.shape.draft_vocab)
    drafter.set_vocabulary(chosen)
    with torch.no_grad():
        drafter.lm_head.weight.copy_(target.model.embed_tokens.weight[drafter.token_ids])
    clock.say(f"{len(rows)} rows kept; draft vocabulary holds {mass:.4f} of the text")
    to_draft = torch.full((target.shape.vocab,), -1, device=device)
    to_draft[drafter.token_ids] = torch.arange(len(drafter.token_ids), device=device)
    supply = batches(rows, recipe.drafter_batch)
    fast_target, fast_unroll = speed_up(target), speed_up(drafter.unroll)

    def draft_batch() -> Tensor:
        batch = next(supply)
        own = int(recipe.corpus_share * len(batch))
        return torch.cat([batch[own:], streams["train"].windows(own, recipe.generated_length, 0.5)])

    optimise(
        drafter,
        lambda: drafter_loss(
            fast_target,
            fast_unroll,
            target.model.embed_tokens.weight,
            drafter.token_ids,
            to_draft,
            draft_batch(),
            recipe,
        ),
        recipe.drafter_steps,
        recipe.drafter_rate,
        clock,
        "drafter",
        decay=0.05,
    )
    checkpoint.round_to_disk(drafter)
    checkpoint.save(drafter, out / "drafter")
    on_target = judge(target, drafter, ids, recipe)
    clock.say(f"on target: {_told(on_target)}")

    sibling = copy.deepcopy(target).requires_grad_(True)
    fast_sibling = speed_up(sibling)
    rounds = 0
    on_sibling = on_target
    while rounds < recipe.sibling_rounds:
        optimise(
            sibling,
            lambda: target_loss(
                fast_sibling, streams["sibling"].windows(recipe.target_batch, recipe.target_window + 1, 0.4)
            ),
            recipe.sibling_round,
            recipe.sibling_rate,
            clock,
            "sibling",
            final=0.1,
        )
        rounds += 1
        rounded = copy.deepcopy(sibling)
        checkpoint.round_to_disk(rounded)
        on_sibling = judge(rounded, drafter, ids, recipe)
        clock.say(f"on sibling after round {rounds}: {_told(on_sibling)}")
        if on_target.found.accept_length - on_sibling.found.accept_length >= recipe.sibling_drop:
            break
    if rounds:
        checkpoint.round_to_disk(sibling)
        checkpoint.save(sibling, out / "sibling")
        save_tokenizer(tokenizer, out / "sibling", sibling.shape.positions)

    summary = {
        "recipe": asdict(recipe),
        "tokens": sizes,
        "target_held_out_loss": round(held_out, 4),
        "draft_vocabulary_share": round(mass, 4),
        "sibling_steps": rounds * recipe.sibling_round,
        "seconds": round(time.monotonic() - clock.start),
    }
    (out / "training.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    choose_prompts(documents, out, recipe, device, clock)


def choose_prompts(documents: list[Document], out: Path, recipe: Recipe, device: torch.device, clock: Clock) -> None:
    """Write prompts.jsonl for the weights in `out`, and put what they give into training.json."""
    tokenizer = Tokenizer.from_file(str(out / "target" / "tokenizer.json"))
    drafter = checkpoint.load_drafter(out / "drafter").to(device)
    names = ("target", "sibling") if recipe.sibling_rounds else ("target",)
    models = {name: checkpoint.load_target(out / name).to(device) for name in names}
    pool = candidates(documents, tokenizer, recipe.seed, recipe.pool)
    ids = [tokenizer.encode(prompt.text).ids for prompt in pool]
    first = judge(models["target"], drafter, ids, recipe)
    pool = [prompt for prompt, good in zip(pool, first.usable, strict=True) if good]
    ids = [tokens for tokens, good in zip(ids, first.usable, strict=True) if good]
    usable = judge(models["sibling"], drafter, ids, recipe).usable if "sibling" in models else [True] * len(pool)
    taken = choose(pool, usable, recipe.prompts)
    write_prompts(taken, out / "prompts.jsonl")
    chosen = [tokenizer.encode(prompt.text).ids for prompt in taken]
    file = out / "training.json"
    summary = json.loads(file.read_text(encoding="utf-8"))
    summary["candidates"] = len(first.usable)
    summary["without_loops_by_target"] = sum(first.usable)
    summary["and_by_sibling"] = sum(usable)
    summary["prompts"] = len(taken)
    summary["accept_length_on_prompts"] = {
        name: round(judge(model, drafter, chosen, recipe).found.accept_length, 3)
        for name, model in models.items()
        if chosen
    }
    file.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    clock.say(json.dumps({key: value for key, value in summary.items() if key != "recipe"}))


def _told(judged: Judged) -> str:
    shares = " / ".join(f"{share:.2f}" for share in judged.found.by_position)
    return (
        f"accept length {judged.found.accept_length:.3f} ({shares}), "
        f"{sum(judged.usable)} of {len(judged.usable)} prompts without loops"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where the folders go")
    parser.add_argument("--corpus", type=Path, help="text packed by --pack; default: this Python's own library")
    parser.add_argument("--pack", type=Path, help="write the corpus to this .xz file and stop")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    parser.add_argument("--scale", type=float, help="share of the full run's steps, in small batches (a dry run)")
    parser.add_argument("--large", action="store_true", help="a target of 125 million parameters, and its drafter")
    parser.add_argument("--only-prompts", action="store_true", help="choose prompts again for the weights in --out")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER", help="change a recipe number")
    options = parser.parse_args()
    documents = corpus.unpack(options.corpus) if options.corpus else corpus.standard_library()
    if options.pack:
        corpus.pack(documents, options.pack)
        return
    recipe = Recipe()
    if options.scale:
        recipe = recipe.scaled(options.scale)
    for change in options.set:
        name, _, value = change.partition("=")
        recipe = replace(recipe, **{name: type(getattr(recipe, name))(float(value))})
    if options.only_prompts:
        choose_prompts(documents, options.out, recipe, torch.device(options.device), Clock())
        return
    shapes = (LARGE_TARGET, LARGE_DRAFTER) if options.large else (TARGET, DRAFTER)
    make(documents, options.out, recipe, torch.device(options.device), options.compile, shapes)


if __name__ == "__main__":
    main()
