"""Acceptance without an engine: the one-pass count against drafting, verifying and extending one step at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from tokenizers import Tokenizer  # noqa: E402

from demo.checkpoint import load_drafter, load_target  # noqa: E402
from demo.generate import generate, most_repeats, repeating_rows, repeats_itself  # noqa: E402
from demo.prompts import read_prompts  # noqa: E402
from demo.simulate import acceptance, speculate  # noqa: E402

DEMO = Path(__file__).parents[2] / "demo"


@pytest.fixture(scope="module")
def pair():
    torch.set_num_threads(1)  # so small that a second thread only waits for the first
    return load_target(DEMO / "target"), load_drafter(DEMO / "drafter")


@pytest.fixture(scope="module")
def ids():
    tokenizer = Tokenizer.from_file(str(DEMO / "target" / "tokenizer.json"))
    return [tokenizer.encode(prompt.text).ids for prompt in read_prompts(DEMO / "prompts.jsonl")]


def test_one_pass_and_step_by_step_agree_on_text_and_counts(pair, ids):
    target, drafter = pair
    for prompt in ids[:3]:
        completion, stepwise = speculate(target, drafter, prompt, 48)
        plain = generate(target, [prompt], len(prompt) + 48)[0].tolist()
        assert plain[len(prompt) :] == completion
        assert stepwise == acceptance(target, drafter, [plain], [len(prompt)])


def test_demo_drafter_earns_its_keep_and_a_map_of_absolute_ids_does_not(pair, ids):
    target, drafter = pair
    some = ids[:8]
    rows = generate(target, some, max(map(len, some)) + 64).tolist()
    texts = [row[: len(prompt) + 64] for row, prompt in zip(rows, some, strict=True)]
    sizes = [len(prompt) for prompt in some]
    assert acceptance(target, drafter, texts, sizes).accept_length >= 2.2
    right = drafter.d2t.clone()
    try:
        drafter.d2t.copy_((drafter.token_ids % drafter.shape.vocab) - 0)
        assert acceptance(target, drafter, texts, sizes).accept_length < 1.5
    finally:
        drafter.d2t.copy_(right)


def test_repeats_are_counted_by_span():
    once = list(range(40))
    assert most_repeats(once) == 1
    assert not repeats_itself(once + once[:25])
    assert repeats_itself(once[:20] * 3)
    assert most_repeats([1, 2, 3]) == 0
    rows = torch.tensor([list(range(100, 160)), [5, 6, 7] * 20])
    assert repeating_rows(rows).tolist() == [False, True]


def test_committed_summary_is_of_these_prompts(ids):
    summary = json.loads((DEMO / "training.json").read_text(encoding="utf-8"))
    found = summary["accept_length_on_prompts"]
    assert found["target"] >= 2.2
    assert found["target"] - found["sibling"] >= 0.4
