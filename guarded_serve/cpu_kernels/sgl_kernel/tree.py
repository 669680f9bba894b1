"""Building, recovering and greedily verifying the tree of drafted tokens.

A request's tree has `n` nodes (the draft tokens), node 0 being the last token already accepted. Nodes come in an
order where a parent precedes its children. Call sites: SGLang's kernels/ops/speculative/spec_tree.py and
reconstruct_tree.py. All results are written into the tensors that the caller gives.
"""

from __future__ import annotations

import functools

import torch

from ._missing import unsupported

FULL_MASK = 0
QLEN_ONLY = 1


def _parents(parent_list: torch.Tensor, selected_index: torch.Tensor, topk: int) -> torch.Tensor:
    """Parent node of each node, [bs, n]; -1 for the root and for a node whose parent was not selected.

    `selected_index[b, i - 1]` is node i's place in the flat list of scored candidates (topk of the first step, then
    topk * topk a step); the candidate's parent is entry `place // topk` of `parent_list`, itself such a place, or
    the root where that entry is 0.
    """
    bs, selected = selected_index.shape
    parents = selected_index.new_full((bs, selected + 1), -1)
    if selected == 0:
        return parents
    entry = selected_index // topk
    if parent_list.shape[1] == 0:  # one step only: every candidate hangs on the root
        parents[:, 1:] = 0
        return parents
    place = parent_list.gather(1, entry)
    found = place.unsqueeze(2) == selected_index.unsqueeze(1)
    hit, position = found.max(dim=2)
    parents[:, 1:] = torch.where(entry == 0, 0, torch.where(hit, position + 1, -1))
    return parents


def _ancestors(parents: torch.Tensor, depth: int) -> torch.Tensor:
    """[bs, n, n] bool: node j is node i, or an ancestor of it."""
    bs, n = parents.shape
    mask = torch.eye(n, dtype=torch.bool).repeat(bs, 1, 1)
    current = parents
    for _ in range(depth):
        known = current.clamp(min=0)
        # A missing ancestor is written to the root's column, which every node attends to anyway.
        mask.scatter_(2, known.unsqueeze(2), True)
        current = torch.where(current > 0, parents.gather(1, known), current)
    mask[:, :, 0] = True
    return mask


def _first_later(candidate: torch.Tensor) -> torch.Tensor:
    """Smallest j with candidate[b, i, j], -1 where there is none; [bs, n] int64 from [bs, n, n] bool."""
    hit, position = candidate.max(dim=2)
    return torch.where(hit, position, -1)


def _links(parents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First child and next sibling of every node, -1 where there is none, [bs, n]."""
    n = parents.shape[1]
    nodes = torch.arange(n)
    children = parents.unsqueeze(1) == nodes.view(1, n, 1)  # [b, i, j]: j is a child of i
    later = nodes.view(1, 1, n) > nodes.view(1, n, 1)
    siblings = (parents.unsqueeze(1) == parents.unsqueeze(2)) & later & (parents >= 0).unsqueeze(2)
    return _first_later(children), _first_later(siblings)


@functools.lru_cache(maxsize=64)
def _chain(bs: int, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ancestors, first child and next sibling where every tree is a chain, which is what topk 1 gives each time."""
    parents = torch.arange(-1, n - 1).repeat(bs, 1)
    return (_ancestors(parents, n), *_links(parents))


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Build the verify tree of each request from the drafter's selected candidates.

    Args:
        parent_list: [bs, topk * (depth - 1) + 1] int64, [bs, 0] for one step.
        selected_index: [bs, draft_token_num - 1] int64, ascending.
        verified_seq_len: [bs], tokens already in the cache.
        tree_mask: bool; QLEN_ONLY: [bs, n, n], whether node i attends to node j; FULL_MASK: rows of
            seq_len + n columns a request, of which only the last n are written.
        positions: [bs * n] int64, a node's position in the text.
        retrive_index, retrive_next_token, retrive_next_sibling: [bs, n] int64, flat place of a node, its first
            child and its next sibling (-1: none).
    """
    bs = verified_seq_len.numel()
    n = draft_token_num
    if topk == 1 and depth == n - 1:
        mask, child, sibling = _chain(bs, n)
    else:
        parents = _parents(parent_list, selected_index, topk)
        mask = _ancestors(parents, depth)
        child, sibling = _links(parents)
    torch.sub(mask.sum(dim=2) + verified_seq_len.view(bs, 1), 1, out=positions.view(bs, n))
    torch.arange(bs * n, out=retrive_index.view(-1))
    retrive_next_token.view(bs, n).copy_(child)
    retrive_next_sibling.view(bs, n).copy_(sibling)
    mode = int(tree_mask_mode)
    if mode == QLEN_ONLY:
        tree_mask.view(-1)[: mask.numel()].copy_(mask.view(-1))
    elif mode == FULL_MASK:
        start = 0
        for request, seq_len in enumerate(verified_seq_len.tolist()):
            size = n * (seq_len + n)
            tree_mask.view(-1)[start : start + size].view(n, seq_len + n)[:, seq_len:] = mask[request]
            start += size
    else:
        raise unsupported("build_tree_kernel_efficient_cpu", f"the packed tree mask (mode {mode})")


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """The positions and links of trees given by their masks (NGRAM), [bs, n, n] bool: node i attends to node j.

    A node's parent is its last strict ancestor. Nodes that attend to themselves alone are further roots: they have
    no parent and no siblings.
    """
    n = draft_token_num
    ancestors = tree_mask.view(-1)[: batch_size * n * n].view(batch_size, n, n).tril(-1)
    positions.view(batch_size, n).copy_(ancestors.sum(dim=2) + verified_seq_len.view(batch_size, 1))
    child, sibling = _links(torch.where(ancestors, torch.arange(n), -1).amax(dim=2))
    torch.arange(batch_size * n, out=retrive_index.view(-1)[: batch_size * n])
    retrive_next_token.view(batch_size, n).copy_(child)
    retrive_next_sibling.view(batch_size, n).copy_(sibling)


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk each tree down as long as a child holds the token that the target chose after its parent.

    Args:
        predicts: [bs * n] int32, gets the target's token at each accepted node (the last one is the bonus token).
        accept_index: [bs, depth] int32, gets the flat places of the accepted nodes, the root first; the rest keeps
            what the caller put there (-1).
        accept_token_num: [bs] int32, gets the number of accepted draft tokens, the root not counted.
        candidates: [bs, n], the draft tokens.
        target_predict: [bs, n], the target's greedy choice after each node.

    The walk is in Python over lists: at most depth * topk comparisons a request, less than one tensor operation
    costs at the batch sizes of a CPU.
    """
    bs, n = candidates.shape
    depth = accept_index.shape[1]
    tokens = candidates.reshape(-1).tolist()
    places = retrive_index.reshape(-1).tolist()
    child = retrive_next_token.reshape(-1).tolist()
    sibling = retrive_next_sibling.reshape(-1).tolist()
    choice = target_predict.reshape(-1).tolist()
    chosen, rows, counts = predicts.view(-1).numpy(), accept_index.numpy(), accept_token_num.numpy()
    for request in range(bs):
        base = request * n
        node = 0
        last = places[base]
        path = [last]
        while len(path) < depth:
            node = child[base + node]
            while node != -1 and tokens[base + node] != choice[last]:
                node = sibling[base + node]
            if node == -1:
                break
            last = places[base + node]
            path.append(last)
        rows[request, : len(path)] = path
        counts[request] = len(path) - 1
        for place in path:
            chosen[place] = choice[place]
