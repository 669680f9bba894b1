"""Bookkeeping of cache slots and token lists between the steps of a speculative cycle.

`req_to_token` maps (request row, position in the text) to a slot of the K/V cache. Call sites: SGLang's
kernels/ops/speculative/cache_locs.py, eagle.py and multi_layer_eagle.py, kernels/ops/kvcache/cache_move.py,
srt/mem_cache/allocation.py and srt/layers/attention/intel_amx_backend.py.
"""

from __future__ import annotations

import ctypes

import numpy
import torch


def _ragged(starts: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Row number and column of every element of the ranges [start, start + length), in order, both int64."""
    lengths = lengths.long().clamp(min=0)
    rows = torch.repeat_interleave(lengths)
    before = lengths.cumsum(0) - lengths
    columns = torch.arange(rows.numel()) + (starts.long() - before)[rows]
    return rows, columns


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write newly allocated slots, one request's after the other's, to positions [start, end) of each request."""
    rows, columns = _ragged(start_offset, end_offset - start_offset)
    slots = out_cache_loc.view(-1)[: rows.numel()]
    req_to_token[req_pool_indices.long()[rows], columns] = slots.to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Read the slots of positions [start, end) of each request; the rest of `out_cache_loc` is left as it is."""
    rows, columns = _ragged(start_offset, end_offset - start_offset)
    slots = req_to_token[req_pool_indices.long()[rows], columns]
    out_cache_loc.view(-1)[: rows.numel()] = slots.to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the topk * num_steps slots after each request's tokens into `out_cache_loc`, [bs * topk * num_steps]."""
    columns = seq_lens.long().view(-1, 1) + torch.arange(topk * num_steps)
    slots = req_to_token[req_pool_indices.long().view(-1, 1), columns]
    out_cache_loc.view(slots.shape).copy_(slots)


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """One row of slots for each drafted branch: the request's tokens, then that branch's num_steps slots.

    Branch t's slots lie at seq_len + t * num_steps in the request's row, as
    `assign_draft_cache_locs_contiguous_cpu` laid them out.

    Returns:
        [bs * topk, pool_len], in the dtype of `req_to_token`; only the first seq_len + num_steps entries of a row
        are defined.
    """
    bs = seq_lens.numel()
    lengths = seq_lens.long().view(bs, 1, 1)
    width = min(int(seq_lens.max()) + num_steps, pool_len) if bs else 0
    columns = torch.arange(width)
    branch = torch.arange(topk).view(1, topk, 1)
    source = columns + (columns >= lengths) * branch * num_steps
    rows = req_pool_indices.long().view(bs, 1, 1)
    result = req_to_token.new_empty((bs * topk, pool_len))
    result[:, :width] = req_to_token[rows, source.clamp(max=pool_len - 1)].view(bs * topk, width)
    return result


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """Each request's last accepted token; `accept_lens` counts the bonus token in."""
    last = accept_lens.long().view(-1, 1) - 1
    bonus_tokens.copy_(accept_tokens.reshape(-1, accept_stride).gather(1, last).view(-1))


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Pack the slots of the accepted nodes (entries of `accept_index` that are not -1) to the front, in order."""
    index = accept_index.reshape(-1)
    slots = out_cache_loc.view(-1)[index[index > -1].long()]
    accept_out_cache_loc.view(-1)[: slots.numel()] = slots


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's ids one to the left, and put its new token last or at its `select_index`."""
    _, moved = _ragged(extend_start_loc, extend_seq_lens - 1)
    input_ids[moved] = input_ids[moved + 1]
    filled = extend_seq_lens > 0
    last = extend_start_loc + extend_seq_lens - 1 if select_index is None else select_index
    input_ids[last[filled].long()] = topk_index.reshape(filled.numel(), -1)[filled, 0].to(input_ids.dtype)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copy cache slots `src_loc` to `tgt_loc` in every layer's K and V buffer.

    Args:
        data_ptrs: the buffers' addresses. The caller holds the buffers alive.
        strides: bytes of one slot in each buffer.
        tgt_loc, src_loc: slots; they may overlap, every read comes before the writes.
    """
    if tgt_loc.numel() == 0:
        return
    target = tgt_loc.numpy()
    source = src_loc.numpy()
    slots = int(max(target.max(), source.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        # uint64 addresses above 2**63 come back negative from an int64 tensor
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address % 2**64)
        buffer = numpy.frombuffer(memory, dtype=numpy.uint8).reshape(slots, stride)
        buffer[target] = buffer[source]
