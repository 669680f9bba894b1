"""Vocabularies in every form that models ship; cut ones are problems."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from guarded_serve.checkpoint.tokenizer import read_tokenizer

WORDS = [b"a", b"b", b" the", b"\xf0\x9f\x98\x80", b"\n", b"\xff\x00"]
PRINTABLE = ["a", "b", "Ġthe", "ðŁĺĢ", "Ċ", "ÿĀ"]


def tokenizer_json(folder: Path, **model: object) -> Path:
    document = {
        "version": "1.0",
        "added_tokens": [{"id": 6, "content": "<|end|>", "special": True}, {"id": 7, "content": "<|user|>"}],
        "model": {
            "type": "BPE",
            "vocab": {word: i for i, word in enumerate(PRINTABLE)},
            "merges": [["a", "b"]],
            **model,
        },
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document, ensure_ascii=False))
    return path


def tiktoken(folder: Path, name: str = "tiktoken.model") -> Path:
    path = folder / name
    path.write_bytes(b"".join(base64.b64encode(word) + b" %d\n" % i for i, word in enumerate(WORDS)))
    return path


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def sentencepiece(folder: Path) -> Path:
    def field(number: int, content: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(content)) + content

    body = b"".join(field(1, field(1, word.encode()) + b"\x15\0\0\x80\xbf\x18\x01") for word in PRINTABLE)
    path = folder / "tokenizer.model"
    path.write_bytes(body + field(2, b"\x08\x01"))
    return path


def test_tokenizer_json(tmp_path: Path) -> None:
    tokenizer_json(tmp_path)
    found = read_tokenizer(tmp_path)
    assert found.problems == ()
    assert found.tokens == dict(enumerate(PRINTABLE))
    assert found.special == {6: "<|end|>", 7: "<|user|>"}
    assert found.length == 8


def test_a_vocabulary_as_large_as_gemmas(tmp_path: Path) -> None:
    size = 262_144
    document = {
        "added_tokens": [{"id": i, "content": f"<unused{i}>"} for i in range(6000)],
        "model": {
            "vocab": {"merges" if i == 9 else f"t{i}": i for i in range(size)},
            "merges": [["a", "b"]] * 560_000,
        },
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(document, separators=(",", ":")))
    found = read_tokenizer(tmp_path)
    assert found.problems == ()
    assert (len(found.tokens), len(found.special)) == (size, 6000)


def test_unigram(tmp_path: Path) -> None:
    tokenizer_json(tmp_path, type="Unigram", vocab=[[word, -1.0] for word in PRINTABLE])
    assert read_tokenizer(tmp_path).tokens == dict(enumerate(PRINTABLE))


@pytest.mark.parametrize("name", ["tiktoken.model", "tokenizer.model"])
def test_tiktoken_agrees_with_the_json_made_from_it(tmp_path: Path, name: str) -> None:
    tiktoken(tmp_path, name)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"6": {"content": "[EOS]"}}}))
    found = read_tokenizer(tmp_path)
    assert dict(found.tokens) == dict(enumerate(PRINTABLE))
    assert found.special == {6: "[EOS]"}
    assert found.text(2) == "Ġthe"


@pytest.mark.parametrize("line", [b"YQ== x", b"YQ", b"Y!== 3", b"YQ== 99999999"])
def test_broken_tiktoken_lines(tmp_path: Path, line: bytes) -> None:
    path = tiktoken(tmp_path)
    path.write_bytes(path.read_bytes() + line + b"\n")
    (problem,) = read_tokenizer(tmp_path).problems
    assert "line 7" in problem.message or "ranks" in problem.message


def test_sentencepiece(tmp_path: Path) -> None:
    sentencepiece(tmp_path)
    assert read_tokenizer(tmp_path).tokens == dict(enumerate(PRINTABLE))


def test_vocab_json(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(PRINTABLE)}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|end|>": 6}))
    found = read_tokenizer(tmp_path)
    assert found.tokens == dict(enumerate(PRINTABLE))
    assert found.special == {6: "<|end|>"}


def test_ends_and_template(tmp_path: Path) -> None:
    tokenizer_json(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 6]}')
    (tmp_path / "chat_template.jinja").write_text("<|user|>{{ message }}<|end|>")
    found = read_tokenizer(tmp_path)
    assert found.end_ids == (2, 6)
    assert found.template_ids == (6, 7)


def test_a_folder_without(tmp_path: Path) -> None:
    found = read_tokenizer(tmp_path)
    assert found.source is None
    assert found.length is None
    assert found.problems == ()


@pytest.mark.parametrize("make", [tokenizer_json, tiktoken, sentencepiece])
def test_cut_files(tmp_path: Path, make: object) -> None:
    path = make(tmp_path)  # type: ignore[operator]
    whole = path.read_bytes()
    kinds = set()
    for length in range(1, len(whole), 7):
        path.write_bytes(whole[:length])
        found = read_tokenizer(tmp_path)
        kinds |= {problem.kind for problem in found.problems}
        assert found.problems or found.tokens
    assert "bad-tokenizer" in kinds


def test_agrees_with_the_library(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.BPE({word: i for i, word in enumerate(PRINTABLE)}, [])
    whole = tokenizers.Tokenizer(model)
    whole.add_special_tokens(["<|end|>"])
    whole.save(str(tmp_path / "tokenizer.json"))
    found = read_tokenizer(tmp_path)
    assert {text: i for i, text in {**found.tokens, **found.special}.items()} == whole.get_vocab(with_added_tokens=True)
