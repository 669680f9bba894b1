"""Values of small tensors, read straight from the file with the standard library (numpy is no dependency)."""

from __future__ import annotations

import sys
from array import array

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
