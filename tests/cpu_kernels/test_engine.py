"""The unmodified SGLang on the CPU operators: the text with a drafter is the text without it, token for token."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.bare_sglang import Server, eagle3_flags, serve, version
from tests.support.toy import ToyPair, make_pair

NEW_TOKENS = 48
BATCH = 8

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not version(), reason="SGLang is not installed"),
]


@dataclass(frozen=True)
class Plain:
    """What SGLang writes without a drafter: the prompts' continuations, one request at a time."""

    prompts: list[list[int]]
    texts: list[list[int]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> ToyPair:
    return make_pair(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def plain(pair: ToyPair, tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """20 prompts of 3 to 90 tokens, two of them with a common start of 40."""
    source = random.Random(7)
    prompts = [[source.randrange(256) for _ in range(source.randrange(3, 50))] for _ in range(18)]
    common = [source.randrange(256) for _ in range(40)]
    prompts += [common + [source.randrange(256) for _ in range(50)] for _ in range(2)]
    with serve(pair.target, [], tmp_path_factory.mktemp("plain") / "log") as server:
        texts = [server.generate(prompt, NEW_TOKENS)["output_ids"] for prompt in prompts]
        together = server.generate_at_once(prompts[:BATCH], NEW_TOKENS)
    assert [answer["output_ids"] for answer in together] == texts[:BATCH]
    assert all(len(text) == NEW_TOKENS for text in texts)
    assert len({tuple(text) for text in texts}) == len(texts)
    return Plain(prompts, texts)


def _same_text(server: Server, plain: Plain, least_accept_length: float) -> None:
    """One at a time, in batches of 8 and over the prefix cache; accept lengths add up."""
    answers = [server.generate(prompt, NEW_TOKENS) for prompt in plain.prompts]
    assert [answer["output_ids"] for answer in answers] == plain.texts
    cached = [answer["meta_info"]["cached_tokens"] for answer in answers]
    assert cached[-1] >= 39, "the last prompt begins as the one before it"  # EAGLE keys its cache by pairs of tokens

    verified = sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)
    for answer in answers:
        meta = answer["meta_info"]
        assert meta["spec_accept_length"] == pytest.approx(meta["completion_tokens"] / meta["spec_verify_ct"])
    assert len(answers) * NEW_TOKENS / verified > least_accept_length

    again = server.generate(plain.prompts[0], NEW_TOKENS)
    assert again["meta_info"]["cached_tokens"] > 0
    assert again["output_ids"] == plain.texts[0]

    server.flush_cache()
    together = server.generate_at_once(plain.prompts[:BATCH], NEW_TOKENS)
    assert [answer["output_ids"] for answer in together] == plain.texts[:BATCH]
    assert server.metric("sglang:spec_accept_length") > 1


@pytest.fixture(scope="module")
def chain(pair: ToyPair, plain: Plain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    assert plain.texts  # written before this server starts: two cores are for one server at a time
    flags = eagle3_flags(pair.drafter, steps=3, topk=1, draft_tokens=4)
    with serve(pair.target, flags, tmp_path_factory.mktemp("chain") / "log") as server:
        yield server


def test_a_chain_gives_the_same_text(chain: Server, plain: Plain) -> None:
    _same_text(chain, plain, 1.5)


def test_a_chain_answers_a_chat(chain: Server) -> None:
    body = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 16}
    answer = httpx.post(f"{chain.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == httpx.codes.OK
    assert answer.json()["choices"][0]["message"]["content"]
    assert answer.json()["usage"]["prompt_tokens"] == 5  # user, h, i, end, assistant


def test_a_tree_gives_the_same_text(pair: ToyPair, plain: Plain, tmp_path: Path) -> None:
    flags = eagle3_flags(pair.drafter, steps=3, topk=4, draft_tokens=12)
    with serve(pair.target, flags, tmp_path / "log") as server:
        _same_text(server, plain, 1.9)


@pytest.mark.skipif(version() < (0, 5, 18), reason="the n-gram corpus of old SGLangs does not compile with new g++")
def test_n_grams_give_the_same_text(pair: ToyPair, plain: Plain, tmp_path: Path) -> None:
    flags = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"]
    with serve(pair.target, flags, tmp_path / "log") as server:
        _same_text(server, plain, 1.1)


@pytest.mark.soak
@pytest.mark.parametrize(("steps", "topk", "draft_tokens"), [(1, 1, 2), (5, 1, 6), (1, 4, 4), (5, 4, 16)])
def test_other_shapes_give_the_same_text(
    pair: ToyPair, plain: Plain, tmp_path: Path, steps: int, topk: int, draft_tokens: int
) -> None:
    flags = eagle3_flags(pair.drafter, steps, topk, draft_tokens)
    with serve(pair.target, flags, tmp_path / "log") as server:
        _same_text(server, plain, 1.3)
