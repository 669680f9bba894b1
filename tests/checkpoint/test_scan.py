"""Every byte once: digests as sha256sum's, NaN and Inf counted as struct counts them, memory bounded."""

from __future__ import annotations

import hashlib
import json
import math
import random
import struct
import sys
import tracemalloc
from pathlib import Path

import pytest

from guarded_serve.checkpoint.scan import CHUNK, count_not_finite, scan
from guarded_serve.checkpoint.values import EIGHT_BIT, decode_floats
from guarded_serve.checkpoint.weights import read_weights
from tests.support.checkpoints import Data, Model, write_safetensors


@pytest.mark.parametrize("dtype", [*EIGHT_BIT, "F16", "BF16", "F32", "F64"])
def test_counts_are_those_of_the_numbers(dtype: str) -> None:
    noise = random.Random(dtype)
    size = 1 if dtype in EIGHT_BIT else {"F32": 4, "F64": 8}.get(dtype, 2)
    special = [0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x7F7FFFFF]
    raw = noise.randbytes(40_000 * size)
    if dtype == "F32":
        raw += struct.pack(f"<{len(special)}I", *special)
    elif dtype == "F64":
        raw += struct.pack("<4d", math.inf, -math.inf, math.nan, sys.float_info.max)
        raw += struct.pack("<2Q", 0x7FF0000000000001, 0xFFF8000000000000)
    elif size == 2:
        raw += struct.pack("<8H", 0x7C00, 0xFC00, 0x7C01, 0x7F80, 0xFF80, 0x7F81, 0x7BFF, 0x7F7F)
    values = decode_floats(raw, dtype)
    nan = sum(math.isnan(value) for value in values)
    inf = sum(math.isinf(value) for value in values)
    assert (inf > 0) is (dtype not in ("F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"))
    assert nan > 0
    assert count_not_finite(raw, dtype) == (nan, inf)


@pytest.mark.parametrize(
    ("dtype", "theirs"),
    [
        ("F8_E4M3", "float8_e4m3fn"),
        ("F8_E5M2", "float8_e5m2"),
        ("F8_E4M3FNUZ", "float8_e4m3fnuz"),
        ("F8_E5M2FNUZ", "float8_e5m2fnuz"),
        ("F8_E8M0", "float8_e8m0fnu"),
    ],
)
def test_eight_bit_values_are_torchs(dtype: str, theirs: str) -> None:
    torch = pytest.importorskip("torch")
    real = torch.arange(256, dtype=torch.uint8).view(getattr(torch, theirs)).double().tolist()
    assert list(map(repr, decode_floats(bytes(range(256)), dtype))) == [repr(v).replace("-nan", "nan") for v in real]


@pytest.mark.parametrize("dtype", ["F64", "F8_E4M3", "F8_E5M2"])
def test_other_floats_are_looked_through(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "model.safetensors"
    size = 8 if dtype == "F64" else 1
    raw = bytearray(random.Random(1).randbytes(size * 1000).translate(bytes(i & 0x3F for i in range(256))))
    raw[7 * size : 8 * size] = struct.pack("<d", math.nan) if dtype == "F64" else b"\x7f"
    header = json.dumps({"a": {"dtype": dtype, "shape": [1000], "data_offsets": [0, len(raw)]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw)
    found = scan(read_weights(tmp_path)).numbers["a"]
    assert (found.nan, found.inf, found.constant) == (1, 0, None)
    assert found.sampled == 999


def test_digest_and_statistics(tmp_path: Path) -> None:
    noise = random.Random(1)
    values = [noise.gauss(0.5, 2) for _ in range(20_000)]
    path = tmp_path / "model.safetensors"
    write_safetensors(
        path, {"a": Data("F32", (200, 100), values), "b": Data("BF16", (4,), [2.0] * 4), "c": Data("I64", (3,))}
    )
    found = scan(read_weights(tmp_path))
    assert found.sha256 == {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
    assert found.bytes_read == path.stat().st_size
    assert found.numbers["a"].spread == pytest.approx(2, rel=0.02)
    assert found.numbers["a"].tails == pytest.approx(3, rel=0.1)
    assert found.numbers["a"].constant is None
    assert found.numbers["b"].constant == 2
    assert "c" not in found.numbers


def test_a_broken_file_is_still_hashed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": Data("F32", (4,))})
    path.write_bytes(path.read_bytes()[:-3])
    found = scan(read_weights(tmp_path))
    assert found.sha256 == {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
    assert found.numbers == {}


def test_memory_is_bounded(tmp_path: Path) -> None:
    Model({}, {"a": Data("I64", (1,))}).write(tmp_path)
    path = tmp_path / "model.safetensors"
    count = 40 * CHUNK // 2
    header = f'{{"a":{{"dtype":"BF16","shape":[{count}],"data_offsets":[0,{2 * count}]}}}}'.encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * count)
    tracemalloc.start()
    try:
        found = scan(read_weights(tmp_path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.numbers["a"].constant == 0
    assert peak < 64 * 2**20
