"""A tokenizer's vocabulary from whatever files a model ships, without a tokenizer library.

Forms: tokenizer.json (any model), tiktoken's lines of base64 and rank (Kimi), a sentencepiece model, GPT-2's
vocab.json; added tokens from tokenizer.json, tokenizer_config.json or added_tokens.json; the chat template from
tokenizer_config.json, chat_template.jinja or chat_template.json. Tokens of the byte-level forms are compared in
GPT-2's printable alphabet, so that a tiktoken file and the tokenizer.json made from it agree.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from guarded_serve.checkpoint.files import MAX_CONTAINERS, MAX_ITEMS, Unreadable, parse_json, read_bytes, read_json
from guarded_serve.checkpoint.problem import Problem

FILE_LIMIT = 64 * 2**20
"""Longest tokenizer file that is read, in bytes; the longest published tokenizer.json is some 33 MB."""
VOCAB_LIMIT = 24 * 2**20
"""Longest vocabulary part that is parsed, in bytes."""
MAX_TOKENS = 2**20
_SMALL = 4 * 2**20


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary. ``tokens`` maps id to token; ``special`` the ids of added tokens to their text."""

    directory: Path
    source: str | None  # the file that the vocabulary came from
    tokens: Mapping[int, str] = field(default_factory=dict)
    special: Mapping[int, str] = field(default_factory=dict)
    end_ids: tuple[int, ...] = ()
    template: str | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def length(self) -> int | None:
        """Largest id + 1, or None without a vocabulary."""
        return max(max(self.tokens, default=-1), max(self.special, default=-1)) + 1 if self.tokens else None

    @property
    def template_ids(self) -> tuple[int, ...]:
        """Ids of the special tokens that the chat template writes."""
        if self.template is None:
            return ()
        return tuple(sorted(token for token, text in self.special.items() if text and text in self.template))

    def text(self, token: int) -> str | None:
        """The token at an id, or None."""
        return self.special.get(token, self.tokens.get(token))


def read_tokenizer(directory: Path) -> Tokenizer:
    """Read a folder's tokenizer. Never raises; a folder without one has no ``source``."""
    problems: list[Problem] = []
    settings = _json(directory / "tokenizer_config.json", problems)
    special = _decoder_tokens(settings.get("added_tokens_decoder"))
    source: str | None = None
    tokens: Mapping[int, str] = {}
    for name, read in _FORMS:
        path = directory / name
        if not path.is_file():
            continue
        try:
            found, added = read(path)
        except Unreadable as unreadable:
            problems.append(unreadable.problem)
            continue
        source, tokens = name, found
        special = {**special, **added}
        break
    extra = _json(directory / "added_tokens.json", problems)
    special.update({token: text for text, token in extra.items() if type(token) is int and 0 <= token < MAX_TOKENS})
    return Tokenizer(
        directory,
        source,
        tokens,
        special,
        _end_ids(directory, settings, special, problems),
        _template(directory, settings, problems),
        tuple(problems),
    )


def _json(path: Path, problems: list[Problem]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = read_json(path, limit=_SMALL)
    except Unreadable as unreadable:
        problems.append(unreadable.problem)
        return {}
    return value if isinstance(value, dict) else {}


def _decoder_tokens(raw: Any) -> dict[int, str]:
    """`added_tokens_decoder`: {"163584": {"content": "[BOS]"}}."""
    found = {}
    for key, entry in raw.items() if isinstance(raw, dict) else ():
        text = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(text, str) and key.isascii() and key.isdigit() and len(key) < 8:
            found[int(key)] = text
    return found


# --- forms ------------------------------------------------------------------------------------------------------------

_VOCAB = re.compile(rb'"vocab"\s*:\s*(?=[{\[])')
_ADDED = re.compile(rb'"added_tokens"\s*:\s*(?=\[)')
_MERGES = re.compile(rb'"merges"\s*:\s*(?=\[)')  # the word is a token of many vocabularies, with a number behind it


def _tokenizer_json(path: Path) -> tuple[dict[int, str], dict[int, str]]:
    raw = read_bytes(path, limit=FILE_LIMIT)
    if not raw.rstrip().endswith(b"}") or not raw.lstrip().startswith(b"{"):
        raise Unreadable(Problem("bad-tokenizer", f"{path.name} is cut off or no JSON object", path))
    found = _VOCAB.search(raw)
    if found is None:
        raise Unreadable(Problem("bad-tokenizer", f"{path.name} has no vocabulary", path))
    merges = _MERGES.search(raw, found.end())
    vocabulary = _part(raw[found.end() : merges.start() if merges else len(raw)], path)
    tokens = dict[int, str]()
    if isinstance(vocabulary, dict):
        tokens = _ids(vocabulary)
    elif isinstance(vocabulary, list):  # Unigram: [[piece, score], ...]
        tokens = {
            i: entry[0]
            for i, entry in enumerate(vocabulary)
            if isinstance(entry, list) and entry and isinstance(entry[0], str)
        }
    added = _ADDED.search(raw)
    stop = found.start() if added and added.end() < found.start() else len(raw)  # else the vocabulary would count too
    entries = _part(raw[added.end() : stop], path) if added else []
    special = {}
    for entry in entries if isinstance(entries, list) else ():
        token, text = (entry.get("id"), entry.get("content")) if isinstance(entry, dict) else (None, None)
        if type(token) is int and 0 <= token < MAX_TOKENS and isinstance(text, str):
            special[token] = text
    return _checked(tokens, path), special


def _part(raw: bytes, path: Path) -> Any:
    """The JSON value at the start of ``raw``; what follows it is not read."""
    if len(raw) > VOCAB_LIMIT:
        raw = raw[:VOCAB_LIMIT]
    if raw.count(b"{") + raw.count(b"[") > MAX_CONTAINERS or raw.count(b",") > MAX_ITEMS:
        raise Unreadable(Problem("too-large", f"{path.name} has a vocabulary of too many parts to be read", path))
    try:
        return json.JSONDecoder().raw_decode(raw.decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError) as error:
        reason = str(error)[:200]
        raise Unreadable(Problem("bad-tokenizer", f"{path.name} has a broken vocabulary: {reason}", path)) from error


def _vocab_json(path: Path) -> tuple[dict[int, str], dict[int, str]]:
    raw = read_bytes(path, limit=VOCAB_LIMIT)
    value = parse_json(raw, path)
    if not isinstance(value, dict):
        raise Unreadable(Problem("bad-tokenizer", f"{path.name} is not a map of tokens to ids", path))
    return _checked(_ids(value), path), {}


def _ids(vocabulary: Mapping[str, Any]) -> dict[int, str]:
    return {token: text for text, token in vocabulary.items() if type(token) is int and 0 <= token < MAX_TOKENS}


def _checked(tokens: dict[int, str], path: Path) -> dict[int, str]:
    if not tokens:
        raise Unreadable(Problem("bad-tokenizer", f"{path.name} holds no token", path))
    return tokens


_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_LINE = re.compile(rb"\s*[A-Za-z0-9+/]+={0,2}\s+\d{1,9}\s*|\s*")


def _tiktoken(path: Path) -> tuple[Mapping[int, str], dict[int, str]]:
    """Lines of base64 and rank; a token is decoded when it is asked for."""
    raw = read_bytes(path, limit=FILE_LIMIT)
    if raw.count(b"\n") > MAX_TOKENS:
        raise Unreadable(Problem("too-large", f"{path.name} has more than {MAX_TOKENS} tokens", path))
    parts = raw.split()
    encoded, ranks = parts[0::2], parts[1::2]
    whole = len(encoded) == len(ranks) > 0 and all(map(bytes.isdigit, ranks)) and max(map(len, ranks)) < 10
    if not whole or b"".join(encoded).translate(None, _ALPHABET) or any(size % 4 for size in set(map(len, encoded))):
        raise Unreadable(Problem("bad-tokenizer", _broken_line(raw, path), path))
    tokens = _Encoded(zip(map(int, ranks), encoded, strict=True))
    if max(tokens) >= MAX_TOKENS:
        raise Unreadable(Problem("bad-tokenizer", f"{path.name} has ranks of {MAX_TOKENS} and more", path))
    return tokens, {}


def _broken_line(raw: bytes, path: Path) -> str:
    lines = enumerate(raw.splitlines(), 1)
    number = next((number for number, line in lines if not _LINE.fullmatch(line) or _odd(line)), 1)
    return f"{path.name}, line {number}: expected base64 and a rank"


def _odd(line: bytes) -> bool:
    return bool(line.strip()) and len(line.split()[0]) % 4 != 0


class _Encoded(Mapping[int, str]):
    """Ids to tokens that stand there in base64."""

    def __init__(self, pairs: Iterable[tuple[int, bytes]]) -> None:
        self._raw = dict(pairs)

    def __getitem__(self, token: int) -> str:
        try:
            return base64.b64decode(self._raw[token]).decode("latin-1").translate(byte_alphabet())
        except ValueError:  # padding in the middle
            return repr(self._raw[token])

    def __iter__(self) -> Iterator[int]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)


@cache
def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable character for each byte, for `str.translate` on Latin-1 text."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in plain}
    for extra, byte in enumerate(byte for byte in range(256) if byte not in table):
        table[byte] = chr(256 + extra)
    return table


def _sentencepiece(path: Path) -> tuple[dict[int, str], dict[int, str]]:
    """ModelProto: field 1 is a piece, whose field 1 is its text."""
    raw = read_bytes(path, limit=FILE_LIMIT)
    tokens: dict[int, str] = {}
    try:
        for number, value in _fields(raw):
            if number == 1 and isinstance(value, bytes):
                piece = next((text for inner, text in _fields(value) if inner == 1 and isinstance(text, bytes)), b"")
                tokens[len(tokens)] = piece.decode("utf-8", "replace")
                if len(tokens) > MAX_TOKENS:
                    raise ValueError("too many pieces")
    except ValueError as error:
        raise Unreadable(Problem("bad-tokenizer", f"{path.name} is no sentencepiece model: {error}", path)) from error
    return _checked(tokens, path), {}


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Protobuf fields of one message; raises ValueError where it is cut off."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(raw, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(raw, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if at + size > len(raw):
            raise ValueError(f"cut off at byte {at}")
        yield key >> 3, raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw) and shift < 64:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"cut off at byte {at}")


_FORMS: tuple[tuple[str, Callable[[Path], tuple[Mapping[int, str], dict[int, str]]]], ...] = (
    ("tokenizer.json", _tokenizer_json),
    ("tiktoken.model", _tiktoken),
    ("tokenizer.model", lambda path: _tiktoken(path) if _is_tiktoken(path) else _sentencepiece(path)),
    ("vocab.json", _vocab_json),
)


def _is_tiktoken(path: Path) -> bool:
    """Llama 3 calls its tiktoken file tokenizer.model."""
    start = read_bytes(path, limit=64, length=64)
    return re.match(rb"[A-Za-z0-9+/]+=* \d+\r?\n", start) is not None


# --- around it --------------------------------------------------------------------------------------------------------


def _end_ids(
    directory: Path, settings: Mapping[str, Any], special: Mapping[int, str], problems: list[Problem]
) -> tuple[int, ...]:
    """Ids that end a generation: generation_config.json, config.json, and tokenizer_config.json's eos_token."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        raw = _json(directory / name, problems if name != "config.json" else [])
        value = raw.get("eos_token_id")
        found += [item for item in (value if isinstance(value, list) else [value]) if type(item) is int]
    text = settings.get("eos_token")
    text = text.get("content") if isinstance(text, dict) else text
    found += [token for token, other in special.items() if isinstance(text, str) and other == text]
    return tuple(dict.fromkeys(token for token in found if 0 <= token < MAX_TOKENS))


def _template(directory: Path, settings: Mapping[str, Any], problems: list[Problem]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            return read_bytes(path, limit=_SMALL).decode("utf-8", "replace")
        except Unreadable as unreadable:
            problems.append(unreadable.problem)
    value = settings.get("chat_template") or _json(directory / "chat_template.json", problems).get("chat_template")
    if isinstance(value, list):  # named templates
        texts = [entry.get("template") for entry in value if isinstance(entry, dict)]
        return "\n".join(text for text in texts if isinstance(text, str)) or None
    return value if isinstance(value, str) else None
