"""Values of small tensors, read straight from the file with the standard library (numpy is no dependency)."""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Sequence
from operator import mul

from guarded_serve.checkpoint.files import read_bytes
from guarded_serve.checkpoint.safetensors import Tensor

INTEGER_CODES = {"I64": "q", "I32": "i", "I16": "h", "I8": "b", "U64": "Q", "U32": "I", "U16": "H", "U8": "B"}
MAX_BYTES = 64 * 2**20
"""Longest vector that is read whole, in bytes: eight times the map of a million tokens."""


def read_integers(tensor: Tensor) -> array[int]:
    """All elements of an integer or BOOL tensor in file order; raises `Unreadable` or ValueError (another dtype)."""
    code = "B" if tensor.dtype == "BOOL" else INTEGER_CODES.get(tensor.dtype)
    if code is None:
        raise ValueError(f"{tensor.name} is {tensor.dtype}, not integer")
    values: array[int] = array(code)
    values.frombytes(read_bytes(tensor.path, limit=MAX_BYTES, offset=tensor.start, length=tensor.nbytes))
    if sys.byteorder == "big":
        values.byteswap()
    return values


FLOATS = ("F16", "BF16", "F32")


def read_row(tensor: Tensor, row: int, columns: int) -> array[float]:
    """The first ``columns`` numbers of one row of a float matrix; raises `Unreadable` or ValueError (another dtype)."""
    if tensor.dtype not in FLOATS or len(tensor.shape) != 2 or not 0 <= row < tensor.shape[0]:
        raise ValueError(f"{tensor.name} is {tensor.dtype} {list(tensor.shape)}: no row {row} of floats")
    size = 4 if tensor.dtype == "F32" else 2
    columns = min(columns, tensor.shape[1])
    offset = tensor.start + row * tensor.shape[1] * size
    return decode_floats(read_bytes(tensor.path, limit=MAX_BYTES, offset=offset, length=columns * size), tensor.dtype)


def decode_floats(raw: bytes, dtype: str) -> array[float]:
    """Little-endian F16, BF16 or F32 as an array of single floats."""
    if dtype == "F16":
        return array("f", struct.unpack(f"<{len(raw) // 2}e", raw))
    if dtype == "BF16":
        wide = bytearray(2 * len(raw))
        wide[2::4] = raw[0::2]
        wide[3::4] = raw[1::2]
        raw = bytes(wide)
    values: array[float] = array("f")
    values.frombytes(raw)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    """Cosine of two vectors of one length; 0 where either is zero or not finite."""
    product = sum(map(mul, left, right))
    norms = sum(map(mul, left, left)) * sum(map(mul, right, right))
    return product / math.sqrt(norms) if 0 < norms < math.inf and math.isfinite(product) else 0.0
