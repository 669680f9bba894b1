"""Attention over SGLang's paged K/V cache, on torch's scaled_dot_product_attention.

Call site: SGLang's srt/layers/attention/intel_amx_backend.py. Shapes: H query heads, G of them share one of the H // G
key heads; a cache buffer is [slots, key heads, head size]; `req_to_token[row, position]` is the slot of a token.
`sliding_window_size` counts the keys a query sees, itself included; 0 or less: all of them.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from ._missing import unsupported

# Query tokens of one request handled at a time in a prefill: bounds the mask and the scores.
_QUERY_BLOCK = 512


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor | None,
    scale: float,
    logit_cap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """[bs, tokens, H, value size] from query [bs, tokens, H, size], key and value [bs, keys, key heads, size].

    `visible` is bool [bs or 1, 1, tokens * G, keys], None where every query sees every key. The query heads that share
    a key head are handled as further query rows of it, so keys are never repeated in memory.
    """
    bs, tokens, heads, size = query.shape
    key_heads, value_size = value.shape[2], value.shape[3]
    group = heads // key_heads
    rows = query.view(bs, tokens, key_heads, group, size).transpose(1, 2).reshape(bs, key_heads, tokens * group, size)
    key, value = key.transpose(1, 2), value.transpose(1, 2)
    if logit_cap > 0 or sinks is not None:
        out = _attend_by_hand(rows, key, value, visible, scale, logit_cap, sinks)
    else:
        out = F.scaled_dot_product_attention(rows, key, value, attn_mask=visible, scale=scale)
    return out.view(bs, key_heads, tokens, group, value_size).transpose(1, 2).reshape(bs, tokens, heads, value_size)


def _attend_by_hand(
    rows: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor | None,
    scale: float,
    logit_cap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """What scaled_dot_product_attention cannot do: capped logits, and sinks (a logit a head that takes weight only)."""
    scores = (rows.float() @ key.float().transpose(2, 3)) * scale
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        bs, key_heads, count, _ = scores.shape
        group = sinks.numel() // key_heads
        column = sinks.float().view(1, key_heads, 1, group).expand(bs, key_heads, count // group, group)
        scores = torch.cat([scores, column.reshape(bs, key_heads, count, 1)], dim=3)
    weights = scores.softmax(dim=3)[..., : key.shape[2]]
    return (weights @ value.float()).to(rows.dtype)


def _read(buffer: torch.Tensor, slots: torch.Tensor, like: torch.Tensor, scale: float) -> torch.Tensor:
    """[bs, keys, key heads, size] from a cache buffer at slots [bs, keys], in the dtype of `like`."""
    found = buffer.index_select(0, slots.reshape(-1))
    if found.dtype != like.dtype:  # a cache in 8 bits holds values divided by the scale
        found = found.to(like.dtype)
        if scale != 1.0:
            found = found * scale
    return found.view(*slots.shape, *buffer.shape[1:])


@functools.lru_cache(maxsize=16)
def _decode_mask(
    lengths: tuple[int, ...], window: int, group: int
) -> tuple[int, torch.Tensor | None, torch.Tensor | None]:
    """First position that any request sees, and what each sees from there on, [bs, keys] and as `_attend` takes it.

    None where all see all. Kept between calls, because every layer of a model asks for the same.
    """
    longest, shortest = max(lengths), min(lengths)
    first = max(0, shortest - window) if window > 0 else 0
    if shortest == longest:
        return first, None, None
    column = torch.arange(first, longest)
    end = torch.tensor(lengths).view(-1, 1)
    visible = column < end
    if window > 0:
        visible &= column >= end - window
    return first, visible, visible.view(len(lengths), 1, 1, -1).repeat(1, 1, group, 1)


@functools.lru_cache(maxsize=16)
def _extend_mask(
    cached: tuple[int, ...],
    new: int,
    rows: tuple[int, int],
    window: int,
    causal: bool,
    tree: bytes | None,
    group: int,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What new tokens `rows[0]` to `rows[1]` of each request see.

    Args:
        cached: cached tokens of each request.
        new: new tokens of each request.
        tree: the tree mask's memory, so that equal masks of one forward pass meet.

    Returns:
        [bs, longest cached], which cached tokens the first of the rows sees (no later row sees one more), None for
        all of them; and the whole, cached and new keys, as `_attend` takes it, None where all see all. Kept between
        calls, because every layer of a model asks for the same.
    """
    bs, longest = len(cached), max(cached)
    token = torch.arange(new)
    row = token[slice(*rows)].view(-1, 1)
    if tree is not None:
        # A copy: a mask read from bytes cannot be written to, which torch warns about.
        among = torch.frombuffer(bytearray(tree), dtype=torch.bool).view(bs, new, new)[:, slice(*rows)]
    elif causal:
        among = (token <= row).unsqueeze(0)
    else:
        among = torch.ones(1, len(row), new, dtype=torch.bool)
    column, end = torch.arange(longest), torch.tensor(cached).view(bs, 1, 1)
    before = (column < end).expand(bs, len(row), longest)
    if window > 0:
        among = among & (token > row - window)
        before = before & (column > end + row - window)
    whole = torch.cat([before, among.expand(bs, len(row), new)], dim=2)
    attended = None if whole.all() else whole.unsqueeze(1).repeat_interleave(group, dim=2)
    seen = before[:, 0]
    return None if seen.all() else seen, attended


def _refuse(operator: str, is_cross_attn: bool, encoder_lens: torch.Tensor | None) -> None:
    if is_cross_attn or encoder_lens is not None:
        raise unsupported(operator, "cross attention")


def decode_attention_cpu(
    query: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    output: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """Attention of one new token a request, after storing its key and value (where given) in the cache.

    Args:
        query, output: [bs, H, size]; `output` is written.
        key, value: [bs, key heads, size], or None where SGLang has stored them already.
        loc: [bs], the new tokens' slots.
        attn_logits: scratch space of SGLang's own kernel, unused here.
        seq_lens: [bs], tokens in the cache, the new one included.
    """
    _refuse("decode_attention_cpu", is_cross_attn, encoder_lens)
    bs = query.shape[0]
    if bs == 0:
        return
    if key is not None and value is not None:
        loc = loc.long()
        k_buffer[loc] = key.view(bs, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = value.view(bs, *v_buffer.shape[1:]).to(v_buffer.dtype)
    lengths = tuple(seq_lens.tolist())
    first, visible, row_visible = _decode_mask(lengths, sliding_window_size, query.shape[1] // k_buffer.shape[1])
    slots = req_to_token[req_pool_indices, first : max(lengths)]
    if visible is not None:
        # What a row does not see may be anything, NaN too, and NaN survives a mask: read its own newest token there.
        slots = torch.where(visible, slots, slots.gather(1, seq_lens.view(bs, 1) - 1 - first))
    keys = _read(k_buffer, slots, query, k_scale)
    values = _read(v_buffer, slots, query, v_scale)
    output.copy_(_attend(query.unsqueeze(1), keys, values, row_visible, sm_scale, logit_cap, sinks).squeeze(1))


def extend_attention_cpu(
    q_extend: torch.Tensor,
    k_extend: torch.Tensor | None,
    v_extend: torch.Tensor | None,
    o_extend: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree_mask: torch.Tensor | None,
    is_causal: bool,
) -> None:
    """Attention of several new tokens a request to its cached tokens and to each other.

    Args:
        q_extend, o_extend: [tokens, H, size], the requests one after the other; `o_extend` is written.
        k_extend, v_extend: [tokens, key heads, size] of the new tokens; None: read them from the cache.
        seq_lens: [bs], cached and new tokens together.
        extend_seq_lens, extend_start_loc: [bs], how many new tokens, and where a request's first one lies.
        tree_mask: flat bool [bs, new, new] (every request the same number): whether new token i attends to new
            token j. None: each attends to those before it, or to all where not `is_causal`.
    """
    _refuse("extend_attention_cpu", is_cross_attn, encoder_lens)
    counts = extend_seq_lens.tolist()
    starts = extend_start_loc.tolist()
    bs = len(counts)
    if bs == 0 or q_extend.shape[0] == 0:
        return
    count = counts[0]
    even = all(c == count for c in counts) and starts == list(range(0, bs * count, count))
    if tree_mask is not None and not even:
        raise unsupported("extend_attention_cpu", "a tree mask over requests with different numbers of new tokens")
    # A batch of equal parts (verify, draft-extend) is one call; a prefill has few requests and long ones.
    parts = [(0, bs, 0, count)] if even else [(i, i + 1, starts[i], counts[i]) for i in range(bs) if counts[i]]
    for first, last, start, tokens in parts:
        size = last - first
        span = slice(start, start + size * tokens)
        prefix = seq_lens[first:last].long() - tokens
        prefix_list = prefix.tolist()
        longest = max(prefix_list)
        slots = req_to_token[req_pool_indices[first:last], : longest + tokens]
        if k_extend is None or v_extend is None:
            new_slots = slots.gather(1, prefix.view(size, 1) + torch.arange(tokens))
            new_keys = _read(k_buffer, new_slots, q_extend, k_scale)
            new_values = _read(v_buffer, new_slots, q_extend, v_scale)
        else:
            new_keys = k_extend[span].view(size, tokens, *k_buffer.shape[1:])
            new_values = v_extend[span].view(size, tokens, *v_buffer.shape[1:])
        mask = functools.partial(
            _extend_mask,
            tuple(prefix_list),
            tokens,
            window=max(0, sliding_window_size),
            causal=is_causal,
            tree=None if tree_mask is None else tree_mask.view(-1)[: size * tokens * tokens].numpy().tobytes(),
            group=q_extend.shape[1] // k_buffer.shape[1],
        )
        seen, _ = mask((0, min(_QUERY_BLOCK, tokens)))
        if seen is not None:
            # As in decode: what no new token of the request sees is read from its last cached token.
            own = slots.gather(1, (prefix.view(size, 1) - 1).clamp(min=0))
            slots = torch.where(seen, slots[:, :longest], own)
        else:
            slots = slots[:, :longest]
        if longest:
            old_keys = _read(k_buffer, slots, q_extend, k_scale)
            old_values = _read(v_buffer, slots, q_extend, v_scale)
            if 0 in prefix_list:  # nothing of such a request need be in the cache yet
                old_keys[prefix == 0] = 0
                old_values[prefix == 0] = 0
            keys = torch.cat([old_keys, new_keys], dim=1)
            values = torch.cat([old_values, new_values], dim=1)
        else:
            keys, values = new_keys, new_values
        queries = q_extend[span].view(size, tokens, *q_extend.shape[1:])
        output = o_extend[span].view(size, tokens, *o_extend.shape[1:])
        for begin in range(0, tokens, _QUERY_BLOCK):
            end = min(begin + _QUERY_BLOCK, tokens)
            _, visible = mask((begin, end))
            result = _attend(queries[:, begin:end], keys, values, visible, sm_scale, logit_cap, sinks)
            output[:, begin:end] = result
