"""Attention over the paged cache against torch's own on each request's keys laid out densely, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import sgl_kernel  # noqa: F401  (installs torch.ops.sgl_kernel)
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

SIZE = 8
SLOTS = 400
NAN = float("nan")


@dataclass
class Cache:
    """A paged cache whose unused slots hold NaN, so that reading one shows."""

    requests: int
    key_heads: int
    longest: int
    seed: int
    keys: torch.Tensor = field(init=False)
    values: torch.Tensor = field(init=False)
    table: torch.Tensor = field(init=False)
    rows: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.keys = torch.full((SLOTS, self.key_heads, SIZE), NAN)
        self.values = torch.full((SLOTS, self.key_heads, SIZE), NAN)
        slots = torch.randperm(SLOTS)[: self.requests * self.longest]
        pool = self.requests + 3
        self.table = torch.randint(0, SLOTS, (pool, self.longest + 5), dtype=torch.int32)
        self.rows = torch.randperm(pool)[: self.requests]
        self.table[self.rows, : self.longest] = slots.view(self.requests, self.longest).int()

    def slot(self, request: int, position: int) -> int:
        return int(self.table[self.rows[request], position])

    def fill(self, request: int, start: int, end: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        for position in range(start, end):
            self.keys[self.slot(request, position)] = keys[position]
            self.values[self.slot(request, position)] = values[position]


@dataclass(frozen=True)
class Options:
    """What an attention layer may ask for besides the plain thing."""

    window: int = 0
    cap: float = 0.0
    sinks: torch.Tensor | None = None


def reference(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor, options: Options
) -> torch.Tensor:
    """[new, H, size] from query [new, H, size], keys and values [all, key heads, size], visible [new, all]."""
    group = query.shape[1] // keys.shape[1]
    q = query.double().transpose(0, 1)
    k = keys.double().transpose(0, 1).repeat_interleave(group, dim=0)
    v = values.double().transpose(0, 1).repeat_interleave(group, dim=0)
    scale = 1 / math.sqrt(SIZE)
    if options.cap == 0 and options.sinks is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale).transpose(0, 1)
    scores = q @ k.transpose(1, 2) * scale
    if options.cap:
        scores = options.cap * torch.tanh(scores / options.cap)
    weights = scores.masked_fill(~visible, -math.inf).exp()
    total = weights.sum(dim=2, keepdim=True)
    if options.sinks is not None:
        total = total + options.sinks.double().exp().view(-1, 1, 1)
    return (weights / total @ v).transpose(0, 1)


@st.composite
def options(draw: st.DrawFn, heads: int) -> Options:
    sinks = torch.tensor([draw(st.floats(-2, 2)) for _ in range(heads)]) if draw(st.booleans()) else None
    return Options(draw(st.sampled_from([0, 0, 1, 3, 7])), draw(st.sampled_from([0.0, 0.0, 2.0])), sinks)


def _in_window(positions: torch.Tensor, keys: int, window: int) -> torch.Tensor:
    """[new, keys]: what a query at each of these positions sees, itself and the `window` - 1 before it."""
    key = torch.arange(keys)
    seen = key <= positions.view(-1, 1)
    return seen & (key > positions.view(-1, 1) - window) if window else seen


@given(st.data(), st.integers(1, 9), st.sampled_from([(4, 4), (4, 2), (6, 1)]), st.integers(0, 2**20))
def test_decode_sees_a_requests_own_tokens(
    data: st.DataObject, requests: int, heads: tuple[int, int], seed: int
) -> None:
    query_heads, key_heads = heads
    lengths = [data.draw(st.integers(1, 20)) for _ in range(requests)]
    asked = data.draw(options(query_heads))
    stored = data.draw(st.booleans(), label="SGLang has stored the new token itself")
    cache = Cache(requests, key_heads, 20, seed)
    keys, values = torch.randn(2, requests, 20, key_heads, SIZE)
    for request, length in enumerate(lengths):
        cache.fill(request, 0, length if stored else length - 1, keys[request], values[request])
    last = torch.tensor(lengths) - 1
    newest = torch.arange(requests), last
    query = torch.randn(requests, query_heads, SIZE)
    output = torch.full_like(query, NAN)
    torch.ops.sgl_kernel.decode_attention_cpu(
        query,
        cache.keys,
        cache.values,
        1.0,
        1.0,
        output,
        None if stored else keys[newest],
        None if stored else values[newest],
        torch.tensor([cache.slot(request, length - 1) for request, length in enumerate(lengths)]),
        torch.empty(0),
        cache.table,
        cache.rows,
        torch.tensor(lengths),
        1 / math.sqrt(SIZE),
        asked.cap,
        False,
        asked.window,
        None,
        asked.sinks,
    )
    for request, length in enumerate(lengths):
        visible = _in_window(last[request : request + 1], length, asked.window)
        expected = reference(
            query[request : request + 1], keys[request, :length], values[request, :length], visible, asked
        )
        torch.testing.assert_close(output[request : request + 1].double(), expected, rtol=1e-4, atol=1e-5)
        assert cache.keys[cache.slot(request, length - 1)].equal(keys[request, length - 1])


@given(
    st.data(),
    st.integers(1, 8),
    st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    st.sampled_from(["prefill", "verify", "tree", "encoder"]),
    st.integers(0, 2**20),
)
def test_extend_sees_the_cache_and_what_each_new_token_may(
    data: st.DataObject, requests: int, heads: tuple[int, int], kind: str, seed: int
) -> None:
    query_heads, key_heads = heads
    same = data.draw(st.integers(1, 9))
    counts = [data.draw(st.integers(0, 9)) if kind == "prefill" else same for _ in range(requests)]
    cached = [data.draw(st.integers(0, 11)) for _ in range(requests)]
    asked = data.draw(options(query_heads))
    if kind in ("tree", "encoder"):
        asked = Options(0, asked.cap, asked.sinks)
    stored_only = data.draw(st.booleans(), label="keys come from the cache alone")
    cache = Cache(requests, key_heads, 20, seed)
    keys, values = torch.randn(2, requests, 20, key_heads, SIZE)
    total = sum(counts)
    query = torch.randn(total, query_heads, SIZE)
    output = torch.full_like(query, NAN)
    among = torch.rand(requests, same, same) < 0.5
    among |= torch.eye(same, dtype=torch.bool)
    ends = [before + new for before, new in zip(cached, counts, strict=True)]
    for request in range(requests):
        until = ends[request] if stored_only else cached[request]
        cache.fill(request, 0, until, keys[request], values[request])
    new = [slice(before, end) for before, end in zip(cached, ends, strict=True)]
    starts = [sum(counts[:request]) for request in range(requests)]
    torch.ops.sgl_kernel.extend_attention_cpu(
        query,
        None if stored_only else torch.cat([keys[request, new[request]] for request in range(requests)]),
        None if stored_only else torch.cat([values[request, new[request]] for request in range(requests)]),
        output,
        cache.keys,
        cache.values,
        1.0,
        1.0,
        cache.table,
        cache.rows,
        torch.tensor(ends),
        torch.tensor(counts, dtype=torch.int32),
        torch.tensor(starts, dtype=torch.int32),
        max(counts),
        1 / math.sqrt(SIZE),
        asked.cap,
        False,
        asked.window,
        None,
        asked.sinks,
        among.flatten() if kind == "tree" else None,
        kind != "encoder",
    )
    for request, (before, end, start) in enumerate(zip(cached, ends, starts, strict=True)):
        span = slice(start, start + counts[request])
        visible = _in_window(torch.arange(before, end), end, asked.window)
        if kind == "tree":
            visible[:, before:] = among[request]
        elif kind == "encoder":
            visible[:] = True
        expected = reference(query[span], keys[request, :end], values[request, :end], visible, asked)
        torch.testing.assert_close(output[span].double(), expected, rtol=1e-4, atol=1e-5)


def test_a_long_prefill_is_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from sgl_kernel import attention  # noqa: PLC0415

    torch.manual_seed(0)
    query = torch.randn(40, 2, SIZE)
    keys, values = torch.randn(2, 40, 1, SIZE)
    outputs = []
    for block in (512, 16):
        monkeypatch.setattr(attention, "_QUERY_BLOCK", block)
        outputs.append(torch.empty_like(query))
        attention.extend_attention_cpu(
            query, keys, values, outputs[-1], torch.zeros(4, 1, SIZE), torch.zeros(4, 1, SIZE), 1.0, 1.0,
            torch.zeros(1, 64, dtype=torch.int32), torch.tensor([0]), torch.tensor([40]), torch.tensor([40]),
            torch.tensor([0]), 40, 0.3, 0.0, False, 5, None, None, None, True,
        )  # fmt: skip
    torch.testing.assert_close(*outputs)


def test_an_8_bit_cache_is_multiplied_by_its_scales() -> None:
    query = torch.randn(1, 1, SIZE)
    keys = torch.randn(3, 1, SIZE).to(torch.float8_e4m3fn)
    values = torch.randn(3, 1, SIZE).to(torch.float8_e4m3fn)
    output = torch.empty_like(query)
    torch.ops.sgl_kernel.decode_attention_cpu(
        query, keys, values, 2.0, 3.0, output, None, None, torch.tensor([2]), torch.empty(0),
        torch.arange(3, dtype=torch.int32).view(1, 3), torch.tensor([0]), torch.tensor([3]), 0.5, 0.0, False, 0,
        None, None,
    )  # fmt: skip
    scores = (keys.float()[:, 0] * 2.0) @ query[0, 0] * 0.5
    expected = scores.softmax(0) @ (values.float()[:, 0] * 3.0)
    torch.testing.assert_close(output[0, 0], expected, rtol=1e-4, atol=1e-5)
