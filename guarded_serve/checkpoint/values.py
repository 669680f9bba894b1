"""Values of small tensors, read straight from the file with the standard library (numpy is no dependency)."""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Sequence
from functools import cache
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
    """Little-endian numbers of a dtype in `FLOATS` as an array of single floats; of F64 or `EIGHT_BIT` as doubles."""
    if dtype in EIGHT_BIT:
        return array("d", map(eight_bit_values(dtype).__getitem__, raw))
    if dtype == "F16":
        return array("f", struct.unpack(f"<{len(raw) // 2}e", raw))
    if dtype == "BF16":
        wide = bytearray(2 * len(raw))
        wide[2::4] = raw[0::2]
        wide[3::4] = raw[1::2]
        raw = bytes(wide)
    values: array[float] = array("d" if dtype == "F64" else "f")
    values.frombytes(raw)
    if sys.byteorder == "big":
        values.byteswap()
    return values


EIGHT_BIT = {"F8_E4M3": (3, 7), "F8_E5M2": (2, 15), "F8_E4M3FNUZ": (3, 8), "F8_E5M2FNUZ": (2, 16), "F8_E8M0": (0, 127)}
"""Bits of the mantissa and bias of the exponent (OCP 8-bit Floating Point and Microscaling; FNUZ: as in ONNX)."""


@cache
def eight_bit_values(dtype: str) -> tuple[float, ...]:
    """The value of each byte."""
    mantissa, bias = EIGHT_BIT[dtype]
    if dtype == "F8_E8M0":  # a power of two without sign
        return (*(2.0 ** (byte - bias) for byte in range(255)), math.nan)
    return tuple(_eight_bit(byte, dtype, mantissa, bias) for byte in range(256))


def _eight_bit(byte: int, dtype: str, mantissa: int, bias: int) -> float:
    if dtype.endswith("FNUZ"):  # what would be -0 is NaN
        special = math.nan if byte == 0x80 else None
    elif dtype == "F8_E4M3":  # no Inf; all ones are NaN
        special = math.nan if byte & 0x7F == 0x7F else None
    else:
        special = (math.nan if byte & 3 else math.inf) if byte & 0x7C == 0x7C else None
    exponent, fraction = (byte & 0x7F) >> mantissa, (byte & ((1 << mantissa) - 1)) / (1 << mantissa)
    value = special
    if value is None:
        value = (1 + fraction) * 2.0 ** (exponent - bias) if exponent else fraction * 2.0 ** (1 - bias)
    return -value if byte & 0x80 else value


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    """Cosine of two vectors of one length; 0 where either is zero or not finite."""
    product = sum(map(mul, left, right))
    norms = sum(map(mul, left, left)) * sum(map(mul, right, right))
    return product / math.sqrt(norms) if 0 < norms < math.inf and math.isfinite(product) else 0.0
