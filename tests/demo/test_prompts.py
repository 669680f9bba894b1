"""The prompts follow the rule that demo/prompts.py writes down."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from tokenizers import Tokenizer

from demo.corpus import Document, part_of
from demo.prompts import FEWEST_TOKENS, MOST_PER_FILE, MOST_TOKENS, Prompt, candidates, choose, read_prompts

DEMO = Path(__file__).parents[2] / "demo"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO / "target" / "tokenizer.json"))


def test_prompts_are_enough_and_of_the_right_length(tokenizer):
    prompts = read_prompts(DEMO / "prompts.jsonl")
    assert len(prompts) >= 30
    assert len({prompt.text for prompt in prompts}) == len(prompts)
    for prompt in prompts:
        size = len(tokenizer.encode(prompt.text, add_special_tokens=False).ids)
        assert FEWEST_TOKENS <= size <= MOST_TOKENS
        assert prompt.text.lstrip().startswith(("def ", "async def ", "class ", '"""'))


def test_prompts_come_from_held_out_files_alone():
    prompts = read_prompts(DEMO / "prompts.jsonl")
    assert {part_of(prompt.file) for prompt in prompts} == {"held-out"}
    assert part_of("argparse.py") == "train"
    assert {part_of(f"test/test_{name}.py") for name in ("json", "os", "re", "ssl", "set")} == {"train", "sibling"}


def test_a_candidate_that_stands_in_training_text_is_dropped(tokenizer):
    fresh = "def gather_all(first, second, third):\n    return [first, second, third]\n"
    known = "def scatter_all(first, second, third):\n    return (first, second, third)\n"
    documents = [Document("a.py", fresh + "\n" + known, "held-out"), Document("b.py", "\n" + known, "train")]
    found = {prompt.text for seed in range(20) for prompt in candidates(documents, tokenizer, seed)}
    assert found
    assert all("gather_all" in text for text in found)


def test_choice_keeps_order_skips_the_unusable_and_spreads_over_files():
    pool = [Prompt(f"def f{i}():\n", "one.py", i) for i in range(8)] + [Prompt("def g():\n", "two.py", 1)]
    taken = choose(pool, [False] + [True] * 8, 40)
    assert [prompt.text for prompt in taken] == [
        "def f1():\n",
        "def f2():\n",
        "def f3():\n",
        "def f4():\n",
        "def g():\n",
    ]
    assert len(taken) == MOST_PER_FILE + 1
