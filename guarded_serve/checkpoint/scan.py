"""Every byte of a checkpoint, once, in bounded memory: sha256, and what the numbers of each tensor look like.

Standard library alone, at C speed: NaN and Inf are looked for in the bytes that hold the exponent (one strided slice
and a search a chunk), a constant tensor by comparing it with its own first number, and hashing runs beside it in a
thread.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Literal

from guarded_serve.checkpoint.files import Unreadable, open_regular
from guarded_serve.checkpoint.safetensors import DTYPE_BITS, Shard, Tensor
from guarded_serve.checkpoint.values import EIGHT_BIT, decode_floats, eight_bit_values
from guarded_serve.checkpoint.weights import Weights

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

CHUNK = 8 * 2**20
"""Bytes held at a time; two chunks are in use at once."""
SAMPLE = 65536
"""Numbers of a tensor that its statistics are taken from, spread over it."""

Progress = Callable[[int], None]
"""Called with the number of bytes done since the last call."""


def file_digest(file: BinaryIO) -> str:
    """SHA-256 of a file from its current place, as 64 hexadecimal digits (the hub's LFS oid)."""
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


@dataclass(frozen=True)
class Numbers:
    """What the numbers of one float tensor look like. Spread and tails are of a sample, without NaN and Inf."""

    nan: int = 0
    inf: int = 0
    constant: float | None = None  # the one value that every number has
    spread: float = 0.0  # standard deviation
    tails: float = 0.0  # kurtosis: 3 for a normal distribution, 1.8 for a uniform one
    largest: float = 0.0
    sampled: int = 0


@dataclass(frozen=True)
class DeepScan:
    """What the scan found."""

    sha256: Mapping[str, str] = field(default_factory=dict)  # by file name
    numbers: Mapping[str, Numbers] = field(default_factory=dict)  # by tensor name, float tensors only
    unread: tuple[str, ...] = ()  # a sentence a file that could not be read to its end
    bytes_read: int = 0


def scan(weights: Weights, progress: Progress | None = None) -> DeepScan:
    """Read every weight file once. Never raises for what a file holds."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - 20 ms that other checks need not pay

    digests: dict[str, str] = {}
    numbers: dict[str, Numbers] = {}
    unread: list[str] = []
    total = 0
    with ThreadPoolExecutor(1) as hasher:
        for shard in weights.shards:
            try:
                digest, found, size = _scan_file(shard, hasher, progress or (lambda done: None))
            except Unreadable as unreadable:
                unread.append(unreadable.problem.message)
                continue
            except (OSError, ValueError) as error:
                unread.append(f"{shard.path.name} could not be read to its end: {error}")
                continue
            digests[shard.path.name] = digest
            numbers.update(found)
            total += size
    return DeepScan(digests, numbers, tuple(unread), total)


def _scan_file(shard: Shard, hasher: ThreadPoolExecutor, progress: Progress) -> tuple[str, dict[str, Numbers], int]:
    digest, pending, total = hashlib.sha256(), None, 0
    numbers: dict[str, Numbers] = {}
    with open_regular(shard.path) as file:
        for tensor, chunks in _pieces(shard, file):
            tally = _Tally(tensor) if tensor is not None and tensor.dtype in _NOT_FINITE and tensor.count else None
            for chunk in chunks:
                if pending is not None:
                    pending.result()
                pending: Future[None] | None = hasher.submit(digest.update, chunk)  # type: ignore[no-redef]
                if tally is not None:
                    tally.add(chunk)
                total += len(chunk)
                progress(len(chunk))
            if tally is not None and tensor is not None:
                numbers[tensor.name] = tally.result()
        if pending is not None:
            pending.result()
    return digest.hexdigest(), numbers, total


def _pieces(shard: Shard, file: BinaryIO) -> Iterator[tuple[Tensor | None, Iterator[bytes]]]:
    """The file from first byte to last: header, tensors in file order, and whatever lies between and after."""
    at = 0
    whole = [] if shard.problems else sorted(shard.tensors.values(), key=lambda tensor: (tensor.start, tensor.end))
    for tensor in whole:
        if tensor.start > at:
            yield None, _chunks(file, tensor.start - at)
        yield tensor, _chunks(file, tensor.nbytes)
        at = tensor.end
    yield None, _chunks(file, None)


def _chunks(file: BinaryIO, count: int | None) -> Iterator[bytes]:
    while count is None or count > 0:
        chunk = file.read(CHUNK if count is None else min(CHUNK, count))
        if not chunk:
            if count is not None:
                raise ValueError(f"{count} bytes are missing")
            return
        if count is not None:
            count -= len(chunk)
        yield chunk


class _Tally:
    """Counts over one tensor, chunk by chunk. Chunks hold whole numbers."""

    def __init__(self, tensor: Tensor) -> None:
        self.dtype = tensor.dtype
        self.size = DTYPE_BITS[tensor.dtype] // 8
        self.step = max(tensor.count // SAMPLE, 1)
        self.nan = self.inf = 0
        self.first: bytes | None = None
        self.is_constant = True
        self.sample = bytearray()

    def add(self, chunk: bytes) -> None:
        if self.first is None:
            self.first = chunk[: self.size]
        if self.is_constant:
            self.is_constant = chunk == self.first * (len(chunk) // self.size)
        if _may_be_not_finite(chunk, self.dtype):
            nan, inf = count_not_finite(chunk, self.dtype)
            self.nan += nan
            self.inf += inf
        wide = memoryview(chunk).cast(_CODES[self.size])
        self.sample += wide[:: self.step].tobytes()

    def result(self) -> Numbers:
        values = [value for value in decode_floats(bytes(self.sample), self.dtype) if math.isfinite(value)]
        constant = None
        if self.is_constant and self.first is not None:
            constant = decode_floats(self.first, self.dtype)[0]
        if not values:
            return Numbers(self.nan, self.inf, constant)
        mean = math.fsum(values) / len(values)
        squares = [(value - mean) ** 2 for value in values]
        variance = math.fsum(squares) / len(values)
        fourth = math.fsum(square * square for square in squares) / len(values)
        return Numbers(
            self.nan,
            self.inf,
            constant,
            spread=math.sqrt(variance),
            tails=fourth / variance**2 if variance > 1e-30 else 0.0,
            largest=max(map(abs, values)),
            sampled=len(values),
        )


_CODES: Mapping[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


def _bytes_where(dtype: str, test: Callable[[float], bool]) -> bytes:
    return bytes(byte for byte, value in enumerate(eight_bit_values(dtype)) if test(value))


_ANY = bytes(range(256))
# Bytes of a number, most significant first, and for each the values that all NaN and Inf have there, and Inf alone.
_NOT_FINITE: Mapping[str, tuple[tuple[int, bytes, bytes], ...]] = {
    "F16": ((1, b"\x7c\x7d\x7e\x7f\xfc\xfd\xfe\xff", b"\x7c\xfc"), (0, _ANY, b"\0")),
    "BF16": ((1, b"\x7f\xff", b"\x7f\xff"), (0, bytes(range(0x80, 0x100)), b"\x80")),
    "F32": (
        (3, b"\x7f\xff", b"\x7f\xff"),
        (2, bytes(range(0x80, 0x100)), b"\x80"),
        (1, _ANY, b"\0"),
        (0, _ANY, b"\0"),
    ),
    "F64": (
        (7, b"\x7f\xff", b"\x7f\xff"),
        (6, bytes(range(0xF0, 0x100)), b"\xf0"),
        *((place, _ANY, b"\0") for place in range(5, -1, -1)),
    ),
    **{
        dtype: ((0, _bytes_where(dtype, lambda value: not math.isfinite(value)), _bytes_where(dtype, math.isinf)),)
        for dtype in EIGHT_BIT
    },
}


def _may_be_not_finite(chunk: bytes, dtype: str) -> bool:
    """Whether some number's highest byte is one that NaN and Inf have."""
    place, values, _ = _NOT_FINITE[dtype][0]
    high = chunk[place :: len(_NOT_FINITE[dtype])]
    return any(value in high for value in values)


def count_not_finite(chunk: bytes, dtype: str) -> tuple[int, int]:
    """(NaN, Inf) among the numbers of a chunk: its bytes are made 0 or 1 and laid over each other as large integers."""
    size = len(_NOT_FINITE[dtype])
    either = infinite = -1
    for place, all_values, inf_values in _NOT_FINITE[dtype]:
        part = chunk[place::size]
        either &= int.from_bytes(part.translate(_ones(all_values)), "big")
        infinite &= int.from_bytes(part.translate(_ones(inf_values)), "big")
    inf = infinite.bit_count()
    return either.bit_count() - inf, inf


def _ones(values: bytes) -> bytes:
    return bytes(byte in values for byte in range(256))
