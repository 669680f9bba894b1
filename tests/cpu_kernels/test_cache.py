"""Slot bookkeeping against loops over single elements."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from sgl_kernel import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)

WIDTH = 30
INDEX = st.sampled_from([torch.int32, torch.int64])


def _table(requests: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A slot table with an entry of its own everywhere, and the rows that these requests have in it."""
    pool = requests + 2
    return torch.arange(pool * WIDTH, dtype=torch.int32).view(pool, WIDTH), torch.arange(pool).flip(0)[:requests]


@st.composite
def ranges(draw: st.DrawFn) -> list[tuple[int, int]]:
    """[start, end) of each request, some of them empty."""
    starts = draw(st.lists(st.integers(0, 15), min_size=1, max_size=9))
    return [(start, start + draw(st.integers(0, 10))) for start in starts]


@given(ranges(), INDEX, INDEX)
def test_slots_are_written_and_read_back(
    spans: list[tuple[int, int]], rows_type: torch.dtype, offset_type: torch.dtype
) -> None:
    table, rows = _table(len(spans))
    start, end = torch.tensor(spans, dtype=offset_type).unbind(1)
    total = sum(last - first for first, last in spans)
    slots = torch.randperm(5000)[:total]
    expected = table.clone()
    left = iter(slots.tolist())
    for row, (first, last) in zip(rows.tolist(), spans, strict=True):
        for position in range(first, last):
            expected[row, position] = next(left)
    assign_req_to_token_pool_cpu(rows.to(rows_type), table, start, end, slots, WIDTH)
    assert table.equal(expected)
    found = torch.full((total + 3,), -9)
    assign_extend_cache_locs_cpu(rows.to(rows_type), table, start, end, found, WIDTH)
    assert found.tolist() == [*slots.tolist(), -9, -9, -9]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(1, 4), st.integers(1, 4), INDEX)
def test_each_drafted_branch_sees_its_request_and_its_own_slots(
    lengths: list[int], topk: int, steps: int, index: torch.dtype
) -> None:
    table, rows = _table(len(lengths))
    seq_lens = torch.tensor(lengths, dtype=index)
    slots = torch.empty(len(lengths) * topk * steps, dtype=torch.int64)
    assign_draft_cache_locs_contiguous_cpu(rows, table, seq_lens, slots, WIDTH, topk, steps)
    branches = build_draft_decode_metadata_cpu(table, rows, seq_lens, topk, steps, WIDTH)
    assert branches.shape == (len(lengths) * topk, WIDTH)
    assert branches.dtype == table.dtype
    own = slots.view(len(lengths), topk, steps)
    for request, length in enumerate(lengths):
        row = table[rows[request]].tolist()
        assert own[request].flatten().tolist() == row[length : length + topk * steps]
        for branch in range(topk):
            expected = row[:length] + own[request, branch].tolist()
            assert branches[request * topk + branch, : length + steps].tolist() == expected


@given(st.data(), st.integers(1, 8), st.integers(1, 6))
def test_the_last_accepted_token_is_the_bonus(data: st.DataObject, requests: int, stride: int) -> None:
    tokens = torch.arange(requests * stride, dtype=torch.int32).view(requests, stride)
    counts = [data.draw(st.integers(1, stride)) for _ in range(requests)]
    bonus = torch.empty(requests, dtype=torch.int32)
    fill_bonus_tokens_cpu(tokens, torch.tensor(counts, dtype=torch.int32), bonus, stride)
    assert bonus.tolist() == [request * stride + count - 1 for request, count in enumerate(counts)]


@given(st.lists(st.integers(-1, 19), min_size=1, max_size=24))
def test_accepted_slots_move_to_the_front(index: list[int]) -> None:
    slots = torch.randperm(100)[:20]
    packed = torch.full((len(index),), -9)
    fill_accept_out_cache_loc_cpu(torch.tensor(index, dtype=torch.int32), slots, packed)
    accepted = [int(slots[place]) for place in index if place >= 0]
    assert packed.tolist() == accepted + [-9] * (len(index) - len(accepted))


@given(st.data(), st.lists(st.integers(0, 6), min_size=1, max_size=6), st.booleans())
def test_ids_move_left_and_the_new_one_comes_last(data: st.DataObject, counts: list[int], selected: bool) -> None:
    starts = [sum(counts[:request]) for request in range(len(counts))]
    ids = torch.arange(100, 100 + sum(counts) + 2)
    new = torch.arange(len(counts)) + 900
    select = [start + data.draw(st.integers(0, max(count - 1, 0))) for start, count in zip(starts, counts, strict=True)]
    expected = ids.tolist()
    for request, (start, count) in enumerate(zip(starts, counts, strict=True)):
        if count:
            expected[start : start + count - 1] = expected[start + 1 : start + count]
            expected[select[request] if selected else start + count - 1] = 900 + request
    rotate_input_ids_cpu(
        ids, torch.tensor(starts), torch.tensor(counts), new, torch.tensor(select) if selected else None
    )
    assert ids.tolist() == expected


@given(st.data(), st.integers(0, 8))
def test_slots_are_copied_in_every_layer_at_once(data: st.DataObject, count: int) -> None:
    """Overlapping sources and targets: every read comes before the writes."""
    buffers = [torch.randn(12, 2, 4), torch.randn(12, 3).to(torch.bfloat16)]
    source = torch.tensor(data.draw(st.permutations(range(12))))[:count]
    target = torch.tensor(data.draw(st.permutations(range(12))))[:count]
    expected = [buffer.clone() for buffer in buffers]
    for buffer, before in zip(expected, buffers, strict=True):
        buffer[target] = before[source]
    pointers = torch.tensor([buffer.data_ptr() for buffer in buffers])
    strides = torch.tensor([buffer[0].nbytes for buffer in buffers])
    copy_all_layer_kv_cache_cpu(pointers, strides, target, source)
    for buffer, wanted in zip(buffers, expected, strict=True):
        assert buffer.equal(wanted)
