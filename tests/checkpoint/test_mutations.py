"""Mutated folders by the thousand: no traceback, no hang over 2 s, no allocation over 256 MiB.

Each kind writes a target and a drafter, spoils one file and judges both as `check --deep` and `inspect` do. The counts
add up to more than 2,000 inputs (`test_enough_inputs`).
"""

from __future__ import annotations

import json
import random
import shutil
import string
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guarded_serve.checkpoint.tokenizer import read_tokenizer
from guarded_serve.commands.inspect import text, view
from guarded_serve.facts.model import read_checkpoint
from guarded_serve.findings import Status
from tests.support.checkpoints import Data, drafter, target
from tests.support.grid import tokenizer
from tests.support.verdicts import deployment, judge

SECONDS = 2.0
MEMORY = 256 * 2**20
COUNTS = {
    "header": 500,
    "shape": 250,
    "offset": 250,
    "name": 200,
    "length": 150,
    "config": 300,
    "rope": 80,
    "index": 200,
    "tokenizer": 200,
    "map": 150,
}
FILE = "model.safetensors"


def test_enough_inputs() -> None:
    assert sum(COUNTS.values()) >= 2000


def mutations(kind: str) -> Callable[[Any], Any]:
    return settings(
        max_examples=COUNTS[kind],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mutations")
    for model, name in (
        (target(layers=7, hidden=16), "target"),
        (drafter(hidden=16, head_dim=4, intermediate=8), "whole"),
    ):
        model.files |= tokenizer()
        model.write(root / name)
    drafter(hidden=16, head_dim=4, intermediate=8).write(root / "sharded", shards=3)
    return root


def fresh(models: Path, source: str = "whole") -> Path:
    """A folder to be spoilt."""
    folder = models / "spoilt"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(models / source, folder)
    return folder


def survive(models: Path, folder: Path) -> None:
    """Judge it: every check says something, in time and within memory."""
    before, started = start_of_peak(), time.process_time()  # of this process: others do not count
    report = judge(deployment(models / "target", folder), deep=True)
    found = read_checkpoint("drafter", str(folder))
    "\n".join(text([view(found, read_checkpoint("target", str(models / "target")), "0.5.23")])).encode()
    spent = time.process_time() - started
    crashed = [outcome.reason for outcome in report.outcomes if outcome.status is Status.CRASHED]
    assert crashed == []
    assert spent < SECONDS
    assert peak() - before < MEMORY


def start_of_peak() -> int:
    """Let the kernel begin its high-water mark anew (proc(5): clear_refs); bytes resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """Largest resident size since, bytes (the process's own maximum, `ru_maxrss`, never goes down)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def test_the_peak_is_of_the_case_alone() -> None:
    size = 2**26
    start_of_peak()
    bytearray(size)
    assert peak() - start_of_peak() > size // 2
    before = start_of_peak()
    bytearray(size // 4)
    assert 0 < peak() - before < size // 2


def split(path: Path) -> tuple[bytes, bytes]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return raw[8 : 8 + length], raw[8 + length :]


def joined(path: Path, header: bytes, body: bytes, length: int | None = None) -> None:
    path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + body)


def reworked(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    header, body = split(folder / FILE)
    document = json.loads(header)
    change(document)
    joined(folder / FILE, json.dumps(document).encode(), body)


@mutations("header")
@given(seed=st.integers(0, 2**32), flips=st.integers(1, 20), keep=st.integers(0, 100))
def test_header_bytes_flipped_and_cut(models: Path, seed: int, flips: int, keep: int) -> None:
    folder = fresh(models)
    noise = random.Random(seed)
    raw = bytearray((folder / FILE).read_bytes())
    size = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(flips):
        raw[noise.randrange(size)] = noise.randrange(256)
    if keep > 60:
        del raw[size * (100 - keep) // 40 :]
    (folder / FILE).write_bytes(raw)
    survive(models, folder)


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, -1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**18]),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=5),
)


@mutations("shape")
@given(which=st.integers(0, 14), shape=st.one_of(st.lists(NUMBERS, max_size=20), NUMBERS), dtype=st.sampled_from(
    ["BF16", "F32", "I64", "BOOL", "F4", "F8_E4M3", "C64", "X9", "", "bf16"]))  # fmt: skip
def test_shapes(models: Path, which: int, shape: Any, dtype: str) -> None:
    folder = fresh(models)

    def change(document: dict[str, Any]) -> None:
        entry = document[[name for name in document if name != "__metadata__"][which]]
        entry["shape"], entry["dtype"] = shape, dtype

    reworked(folder, change)
    survive(models, folder)


@mutations("offset")
@given(which=st.integers(0, 14), offsets=st.one_of(st.lists(NUMBERS, max_size=4), NUMBERS), boundary=st.integers(-9, 9),
       end=st.booleans())  # fmt: skip
def test_offsets(models: Path, which: int, offsets: Any, boundary: int, end: bool) -> None:
    folder = fresh(models)

    def change(document: dict[str, Any]) -> None:
        entry = document[[name for name in document if name != "__metadata__"][which]]
        if boundary:
            entry["data_offsets"][int(end)] += boundary
        else:
            entry["data_offsets"] = offsets

    reworked(folder, change)
    survive(models, folder)


FILLERS = (b"[", b"{", b'{"a":', b"[],", b"1,", b'"', b"\0", b"9")
NAMES = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["", ".", "d2t", "x.d2t.y", "t2d", "__metadata__", "a" * 5000, "midlayer", "model.", "lm_head.weight"]
    ),
    st.text(alphabet=string.whitespace + "\x00\x1b\u202e\\\"'", max_size=9),
)


@mutations("name")
@given(which=st.integers(0, 14), name=NAMES)
def test_names(models: Path, which: int, name: str) -> None:
    folder = fresh(models)

    def change(document: dict[str, Any]) -> None:
        old = [key for key in document if key != "__metadata__"][which]
        document[name] = document.pop(old)

    reworked(folder, change)
    survive(models, folder)


@mutations("length")
@given(length=st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 3000)), body=st.integers(0, 200),
       filler=st.sampled_from(FILLERS), depth=st.integers(0, 200_000))  # fmt: skip
def test_lengths_and_depths(models: Path, length: int, body: int, filler: bytes, depth: int) -> None:
    folder = fresh(models)
    header = filler * depth
    joined(folder / FILE, b'{"fc.weight":' + header, b"\0" * body, length if length % 2 else None)
    survive(models, folder)


VALUES = st.recursive(
    NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
SHARDS = (*(f"model-0000{i}-of-00003.safetensors" for i in range(1, 5)), "../x", "/etc/passwd", "", ".")
KEYS = (
    "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "draft_vocab_size", "target_hidden_size",
    "max_position_embeddings", "rope_theta", "rope_scaling",
    "rope_parameters", "tie_word_embeddings", "torch_dtype", "dtype", "eagle_config",
    "eagle_aux_hidden_state_layer_ids", "text_config", "transformer_layer_config", "speculators_config", "bias",
    "quantization_config", "num_aux_hidden_states", "norm_before_fc", "fc_norm", "eos_token_id", "initializer_range",
)  # fmt: skip


@mutations("config")
@given(
    changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=4),
    nested=st.sampled_from([None, None, "eagle_config", "rope_scaling", "rope_parameters"]),
    where=st.booleans(),
)
def test_configs(models: Path, changes: dict[str, Any], nested: str | None, where: bool) -> None:
    folder = fresh(models)
    config = json.loads((folder / "config.json").read_text())
    config = {**config, nested: changes} if nested else {**config, **changes}
    if where and not nested:
        config = {"text_config": config, "architectures": config["architectures"]}
    (folder / "config.json").write_text(json.dumps(config))
    survive(models, folder)


FACTORS = st.one_of(
    st.floats(), st.integers(-(10**400), 10**400), st.sampled_from([float("inf"), float("nan"), 1e300, 1e999]), VALUES
)


@mutations("rope")
@given(place=st.sampled_from(["rope_scaling", "rope_parameters"]), factor=FACTORS, kind=st.one_of(
    st.sampled_from(["linear", "dynamic", "yarn", "llama3", "longrope"]), VALUES), whose=st.booleans())  # fmt: skip
def test_rope_factors(models: Path, place: str, factor: Any, kind: Any, whose: bool) -> None:
    folder = fresh(models)
    path = models / "target" / "config.json" if whose else folder / "config.json"
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), place: {"rope_type": kind, "factor": factor}}))
    try:
        survive(models, folder)
    finally:
        path.write_text(before)


@mutations("index")
@given(entries=st.dictionaries(
    st.one_of(st.sampled_from(["fc.weight", "norm.weight", "d2t"]), st.text(max_size=9)),
    st.one_of(st.sampled_from(SHARDS), NUMBERS),
    max_size=6), replace=st.booleans(), whole=st.one_of(st.none(), VALUES))  # fmt: skip
def test_indices(models: Path, entries: dict[str, Any], replace: bool, whole: Any) -> None:
    folder = fresh(models, "sharded")
    path = folder / "model.safetensors.index.json"
    document = json.loads(path.read_text())
    document["weight_map"] = entries if replace else {**document["weight_map"], **entries}
    path.write_text(json.dumps(document if whole is None else whole))
    survive(models, folder)


@mutations("tokenizer")
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(["tokenizer.json", "tokenizer_config.json", "tokenizer.model",
       "tiktoken.model", "vocab.json", "added_tokens.json", "generation_config.json", "chat_template.json"]),
       cut=st.booleans(), value=VALUES)  # fmt: skip
def test_tokenizers(models: Path, seed: int, kind: str, cut: bool, value: Any) -> None:
    folder = fresh(models)
    noise = random.Random(seed)
    path = folder / kind
    if path.exists():
        raw = bytearray(path.read_bytes())
        for _ in range(5):
            raw[noise.randrange(len(raw))] = noise.randrange(256)
        path.write_bytes(raw[: noise.randrange(len(raw))] if cut else raw)
    elif kind.endswith(".json"):
        path.write_text(json.dumps(value))
    else:
        (folder / "tokenizer.json").unlink()
        path.write_bytes(noise.randbytes(noise.randrange(400)))
    read_tokenizer(folder)
    survive(models, folder)


@mutations("map")
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=40, max_size=40),
       dtype=st.sampled_from(["I64", "I32", "F32", "U8"]),
       mask=st.lists(st.integers(0, 255), min_size=96, max_size=96))  # fmt: skip
def test_maps(models: Path, values: list[int], dtype: str, mask: list[int]) -> None:
    folder = models / "spoilt"
    shutil.rmtree(folder, ignore_errors=True)
    model = drafter(hidden=16, head_dim=4, intermediate=8)
    bits = {"I64": 64, "I32": 32, "F32": 24, "U8": 8}[dtype]
    signed = 0 if dtype == "U8" else 2 ** (bits - 1)
    model.tensors["d2t"] = Data(dtype, (40,), [(value + signed) % 2**bits - signed for value in values])
    model.tensors["t2d"] = Data("U8", (96,), mask)
    model.write(folder)
    survive(models, folder)


def test_what_unfolds_in_memory_is_refused(tmp_path: Path, models: Path) -> None:
    """JSON of brackets takes twenty times its size once parsed."""
    folder = fresh(models)
    before = peak()
    joined(folder / FILE, b'{"a":[' + b"[]," * (7 * 2**20 // 3) + b"[]]}", b"")
    (folder / "tokenizer.json").write_bytes(b'{"model":{"vocab":[' + b"[]," * (20 * 2**20) + b"[]]}}")
    (folder / "config.json").write_bytes(b'{"a":[' + b"[]," * (2**20) + b"[]]}")
    started = time.perf_counter()
    report = judge(deployment(models / "target", folder))
    assert time.perf_counter() - started < SECONDS
    assert [outcome.reason for outcome in report.outcomes if outcome.status is Status.CRASHED] == []
    assert peak() - before < MEMORY
