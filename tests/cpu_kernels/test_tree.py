"""Tree building and verification against a reference that follows each path of a tree, node by node."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sgl_kernel import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu
from sgl_kernel.speculative import reconstruct_indices_from_tree_mask

FULL_MASK, QLEN_ONLY, PACKED = 0, 1, 2


@dataclass
class Tree:
    """A request's draft tree as plain numbers: `parent[i]` for each node, -1 for the root, node 0."""

    parent: list[int]

    def path(self, node: int) -> list[int]:
        """From the root to the node."""
        path = [node]
        while self.parent[path[-1]] >= 0:
            path.append(self.parent[path[-1]])
        return path[::-1]

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parent) if parent == node]


def draft(topk: int, steps: int, nodes: int, source: random.Random) -> tuple[Tree, list[int], list[int]]:
    """Play an EAGLE drafter: topk candidates from the root, then the topk best of topk * topk each step.

    Returns the tree of the best `nodes` - 1 candidates, and the parent list and selected indices as SGLang gives them.
    """
    above: list[int] = []  # candidate -> candidate it hangs on, -1 the root
    score: list[float] = []
    frontier = [-1]
    parent_list: list[int] = []
    for _ in range(steps):
        parent_list += frontier
        first = len(above)
        for stem in frontier:
            for _ in range(topk):
                above.append(stem)
                score.append((score[stem] if stem >= 0 else 1.0) * source.uniform(0.05, 0.95))
        frontier = sorted(range(first, len(above)), key=lambda c: -score[c])[:topk]
    selected = sorted(sorted(range(len(score)), key=lambda c: -score[c])[: nodes - 1])
    parent = [-1] + [0 if above[c] == -1 else selected.index(above[c]) + 1 for c in selected]
    return Tree(parent), parent_list if steps > 1 else [], selected


@st.composite
def drafts(draw: st.DrawFn) -> tuple[int, int, int, list[Tree], torch.Tensor, torch.Tensor, torch.Tensor]:
    topk = draw(st.integers(1, 5))
    steps = draw(st.integers(1, 5))
    most = topk + (steps - 1) * topk * topk
    nodes = steps + 1 if topk == 1 else draw(st.integers(1, min(most, 24))) + 1
    bs = draw(st.integers(1, 9))
    source = random.Random(draw(st.integers(0, 2**32)))
    made = [draft(topk, steps, nodes, source) for _ in range(bs)]
    lengths = torch.tensor([source.randrange(0, 40) for _ in range(bs)])
    return (
        topk,
        steps,
        nodes,
        [tree for tree, _, _ in made],
        torch.tensor([parents for _, parents, _ in made], dtype=torch.int64).view(bs, -1),
        torch.tensor([selected for _, _, selected in made], dtype=torch.int64).view(bs, nodes - 1),
        lengths,
    )


def _expect_links(tree: Tree, request: int, index: torch.Tensor, child: torch.Tensor, sibling: torch.Tensor) -> None:
    nodes = len(tree.parent)
    assert index[request].tolist() == [request * nodes + node for node in range(nodes)]
    for node in range(nodes):
        found = []
        step = int(child[request, node])
        while step != -1:
            found.append(step)
            step = int(sibling[request, step])
        assert found == tree.children(node)


@given(drafts(), st.sampled_from([QLEN_ONLY, FULL_MASK]))
def test_a_tree_has_the_paths_of_its_drafts(
    case: tuple[int, int, int, list[Tree], torch.Tensor, torch.Tensor, torch.Tensor], mode: int
) -> None:
    topk, steps, nodes, trees, parent_list, selected, lengths = case
    bs = len(trees)
    links = torch.full((3, bs, nodes), -1)
    positions = torch.empty(bs * nodes, dtype=torch.int64)
    size = bs * nodes * nodes if mode == QLEN_ONLY else int((lengths + nodes).sum()) * nodes
    mask = torch.ones(size, dtype=torch.bool)
    build_tree_kernel_efficient_cpu(parent_list, selected, lengths, mask, positions, *links, topk, steps, nodes, mode)
    start = 0
    for request, tree in enumerate(trees):
        length = int(lengths[request])
        width = nodes if mode == QLEN_ONLY else length + nodes
        rows = mask[start : start + nodes * width].view(nodes, width)
        start += nodes * width
        assert rows[:, : width - nodes].all()
        for node in range(nodes):
            path = tree.path(node)
            assert rows[node, width - nodes :].nonzero().flatten().tolist() == sorted(path)
            assert positions[request * nodes + node] == length + len(path) - 1
        _expect_links(tree, request, *links)


def test_a_packed_mask_is_refused_by_name() -> None:
    one = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(NotImplementedError, match=r"build_tree_kernel_efficient_cpu .* packed tree mask \(mode 2\)"):
        build_tree_kernel_efficient_cpu(
            one[:, :0], one[:, :0], one[0], one[0].bool(), one[0], one, one, one, 1, 1, 1, PACKED
        )


@st.composite
def forests(draw: st.DrawFn) -> list[Tree]:
    """Irregular trees of one size, parents before children."""
    nodes = draw(st.integers(1, 12))
    bs = draw(st.integers(1, 5))
    return [Tree([-1] + [draw(st.integers(0, node - 1)) for node in range(1, nodes)]) for _ in range(bs)]


@given(forests(), st.data())
def test_a_tree_is_recovered_from_its_mask(trees: list[Tree], data: st.DataObject) -> None:
    bs, nodes = len(trees), len(trees[0].parent)
    lengths = torch.tensor([data.draw(st.integers(0, 50)) for _ in trees])
    mask = torch.zeros(bs, nodes, nodes, dtype=torch.bool)
    for request, tree in enumerate(trees):
        for node in range(nodes):
            mask[request, node, tree.path(node)] = True
    positions = torch.empty(bs * nodes, dtype=torch.int64)
    links = torch.full((3, bs, nodes), -7)
    reconstruct_indices_from_tree_mask(mask.flatten(), lengths, positions, *links, bs, nodes)
    for request, tree in enumerate(trees):
        expected = [int(lengths[request]) + len(tree.path(node)) - 1 for node in range(nodes)]
        assert positions.view(bs, nodes)[request].tolist() == expected
        _expect_links(tree, request, *links)


def test_further_roots_of_a_mask_have_no_family() -> None:
    """NGRAM pads its trees with nodes that attend to themselves alone."""
    mask = torch.eye(3, dtype=torch.bool)
    links = torch.zeros(3, 1, 3, dtype=torch.int64)
    positions = torch.zeros(3, dtype=torch.int64)
    reconstruct_indices_from_tree_mask(mask.flatten(), torch.tensor([5]), positions, *links, 1, 3)
    assert positions.tolist() == [5, 5, 5]
    assert links[1:].eq(-1).all()


def _longest_agreeing_path(tree: Tree, tokens: list[int], choice: list[int], most: int) -> list[int]:
    """Of all paths from the root whose every token is the target's choice before it, the one a walk takes.

    Siblings with equal tokens: the first one is taken, and there is no way back.
    """
    path = [0]
    while len(path) < most:
        agreeing = [child for child in tree.children(path[-1]) if tokens[child] == choice[path[-1]]]
        if not agreeing:
            break
        path.append(agreeing[0])
    return path


@given(forests(), st.data())
def test_verification_accepts_the_path_that_the_target_agrees_with(trees: list[Tree], data: st.DataObject) -> None:
    bs, nodes = len(trees), len(trees[0].parent)
    depth = data.draw(st.integers(1, nodes + 1), label="depth")
    few = st.lists(st.integers(0, 2), min_size=nodes, max_size=nodes)
    tokens = [data.draw(few) for _ in trees]
    choice = [data.draw(few) for _ in trees]
    mask = torch.zeros(bs, nodes, nodes, dtype=torch.bool)
    for request, tree in enumerate(trees):
        for node in range(nodes):
            mask[request, node, tree.path(node)] = True
    links = torch.full((3, bs, nodes), -1)
    lengths = torch.zeros(bs, dtype=torch.int64)
    reconstruct_indices_from_tree_mask(mask, lengths, torch.empty(bs * nodes), *links, bs, nodes)

    predicts = torch.full((bs * nodes,), -5, dtype=torch.int32)
    accept_index = torch.full((bs, depth), -1, dtype=torch.int32)
    accepted = torch.full((bs,), -5, dtype=torch.int32)
    verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accepted,
        candidates=torch.tensor(tokens),
        retrive_index=links[0],
        retrive_next_token=links[1],
        retrive_next_sibling=links[2],
        target_predict=torch.tensor(choice),
    )
    for request, tree in enumerate(trees):
        path = _longest_agreeing_path(tree, tokens[request], choice[request], depth)
        row = [request * nodes + node for node in path]
        assert accept_index[request].tolist() == row + [-1] * (depth - len(path))
        assert accepted[request] == len(path) - 1
        for node in range(nodes):
            expected = choice[request][node] if node in path else -5
            assert predicts[request * nodes + node] == expected
