"""Bookkeeping of cache slots and token lists between the steps of a speculative cycle.

`req_to_token` maps (request row, position in the text) to a slot of the K/V cache. Call sites: SGLang's
kernels/ops/speculative/cache_locs.py, eagle.py and multi_layer_eagle.py, kernels/ops/kvcache/cache_move.py,
srt/mem_cache/allocation.py and srt/layers/attention/intel_amx_backend.py.

The tensors are short lists of whole numbers in any integer type. They are handled as NumPy views of the same memory,
because a NumPy call on a few numbers costs a fraction of a torch call.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy
import numpy.typing
import torch

Array = numpy.typing.NDArray[Any]


def _ragged(starts: Array, lengths: Array) -> tuple[Array, Array]:
    """Row number and column of every element of the ranges [start, start + length), in order."""
    lengths = lengths.clip(min=0)
    rows = numpy.arange(len(lengths)).repeat(lengths)
    shift = starts - (lengths.cumsum() - lengths)
    return rows, numpy.arange(len(rows)) + shift[rows]


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write newly allocated slots, one request's after the other's, to positions [start, end) of each request."""
    start = start_offset.numpy()
    rows, columns = _ragged(start, end_offset.numpy() - start)
    slots = out_cache_loc.view(-1).numpy()[: len(rows)]
    req_to_token.numpy()[req_pool_indices.numpy()[rows], columns] = slots


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Read the slots of positions [start, end) of each request; the rest of `out_cache_loc` is left as it is."""
    start = start_offset.numpy()
    rows, columns = _ragged(start, end_offset.numpy() - start)
    slots = req_to_token.numpy()[req_pool_indices.numpy()[rows], columns]
    out_cache_loc.view(-1).numpy()[: len(rows)] = slots


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
    columns = seq_lens.numpy()[:, None] + numpy.arange(topk * num_steps)
    slots = req_to_token.numpy()[req_pool_indices.numpy()[:, None], columns]
    out_cache_loc.view(-1).numpy()[:] = slots.reshape(-1)


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
    table = req_to_token.numpy()
    result = req_to_token.new_empty((seq_lens.numel() * topk, pool_len))
    branches = result.numpy()
    for request, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        own = branches[request * topk : (request + 1) * topk]
        own[:, :length] = table[row, :length]
        drafted = table[row, length : length + topk * num_steps]
        own[:, length : length + num_steps] = drafted.reshape(topk, num_steps)
        # A longer request's columns are read for this one too, and masked: they must be slots.
        own[:, length + num_steps :] = table[row, 0]
    return result


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """Each request's last accepted token; `accept_lens` counts the bonus token in."""
    counts = accept_lens.numpy()
    tokens = accept_tokens.reshape(-1, accept_stride).numpy()
    bonus_tokens.numpy()[:] = tokens[numpy.arange(len(counts)), counts - 1]


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Pack the slots of the accepted nodes (entries of `accept_index` that are not -1) to the front, in order."""
    index = accept_index.reshape(-1).numpy()
    slots = out_cache_loc.view(-1).numpy()[index[index > -1]]
    accept_out_cache_loc.view(-1).numpy()[: len(slots)] = slots


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's ids one to the left, and put its new token last or at its `select_index`."""
    ids, start, count = input_ids.numpy(), extend_start_loc.numpy(), extend_seq_lens.numpy()
    _, moved = _ragged(start, count - 1)
    ids[moved] = ids[moved + 1]
    filled = count > 0
    last = start + count - 1 if select_index is None else select_index.numpy()
    ids[last[filled]] = topk_index.reshape(len(count), -1).numpy()[filled, 0]


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
    target, source = tgt_loc.numpy(), src_loc.numpy()
    slots = int(max(target.max(), source.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        # An address above 2**63 comes back negative from an int64 tensor.
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address % 2**64)
        buffer = numpy.frombuffer(memory, dtype=numpy.uint8).reshape(slots, stride)
        buffer[target] = buffer[source]
