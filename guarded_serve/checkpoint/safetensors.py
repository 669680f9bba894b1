"""A safetensors header read by hand and checked as the safetensors library checks it, without opening the data.

Layout: 8 bytes little-endian header length N, N bytes of JSON ``{name: {dtype, shape, data_offsets}}``, then the data,
which the tensors must cover without hole, overlap or rest (safetensors 0.4 to 0.6, ``Metadata::validate``).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import add, eq, sub
from pathlib import Path
from typing import Any

from guarded_serve.checkpoint.files import (
    LFS_MAGIC,
    Unreadable,
    lfs_pointer,
    parse_json,
    read_bytes,
    regular_size,
)
from guarded_serve.checkpoint.problem import Problem

HEADER_LIMIT = 8 * 2**20
"""Longest header that is parsed, in bytes (the library's own limit is 100 MB): the largest published ones are far
below 1 MiB, and JSON of this size already unfolds to some 170 MiB."""
MAX_RANK = 16
DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
COPY_REMEDY = "copy or download the file again, and compare its size and sha256 with the source"


@dataclass(frozen=True)
class Tensor:
    """One tensor's place. ``start`` and ``end`` count bytes from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    start: int
    end: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return _product(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return self.end - self.start


Sizes = Mapping[tuple[str, "int | None"], int]
"""Bytes on disk by dtype and by the number of the layer in a tensor's name (None: in no layer)."""


@dataclass(frozen=True)
class Shard:
    """One file: what could be read of it, and what is wrong with it.

    ``tensors`` are all of them, or with `skim_shard` those that were asked for; ``count`` is how many there are and
    ``names`` their `names_sum`. ``sizes`` are of all of them, where the file is right.
    """

    path: Path
    size: int = 0
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    count: int = 0
    names: int = 0
    sizes: Sizes = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def read_shard(path: Path) -> Shard:
    """Read and check one header. Never raises, never reads more than the header."""
    try:
        size = regular_size(path)
        header_length, header = _header(path, size)
        parsed = parse_json(header, path)
    except Unreadable as unreadable:
        return Shard(path, problems=(unreadable.problem,))
    if not isinstance(parsed, dict):
        return Shard(path, size, problems=(Problem("bad-header", f"{path.name}: its header is not an object", path),))
    problems: list[Problem] = []
    metadata = _metadata(parsed.pop("__metadata__", None), path, problems)
    if header.count(b'"data_offsets"') != len(parsed):
        problems += _duplicates(header, path)
    data_start = 8 + header_length
    tensors = {}
    for name, entry in parsed.items():
        tensor = _tensor(name, entry, path, data_start, problems)
        if tensor is not None:
            tensors[name] = tensor
    if len(tensors) == len(parsed):
        problems += _coverage(tensors, path, size, data_start)
    return Shard(
        path,
        size,
        tensors,
        len(parsed),
        names_sum((name.encode("utf-8", "surrogatepass") for name in parsed), path.name.encode()),
        sizes_by_layer(tensors.values()),
        metadata,
        tuple(problems),
    )


_METADATA = re.compile(rb'\{(?:"__metadata__":\{(?:"[^"\\]*":"[^"\\]*",?)*\},)?')
_SHAPE = re.compile(rb":\[((?:\d{1,18}(?:,\d{1,18}){0,15})?)\],")
# What stands between the quotes of `"NAME":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},` besides the values.
_FRAME = {2: b":{", 3: b"dtype", 4: b":", 6: b",", 7: b"shape", 9: b"data_offsets"}
_STRIDE = 10
_CONTROL = bytes(range(32))


def skim_shard(path: Path, wanted: Collection[str]) -> Shard:
    """`read_shard` for a target with hundreds of thousands of tensors: the same checks, but only ``wanted`` are kept.

    Works on the bytes of a header as the safetensors library writes it; any other header, and any fault, is left to
    `read_shard`, which says what is wrong.
    """
    try:
        size = regular_size(path)
        length, header = _header(path, size)
    except Unreadable:
        return read_shard(path)
    return _skimmed(path, size, length, header, wanted) or read_shard(path)


def _skimmed(path: Path, size: int, length: int, header: bytes, wanted: Collection[str]) -> Shard | None:
    """None unless every byte of the header is accounted for and every tensor is right.

    The header is cut at its quotes: ten parts an entry, at C speed, where a JSON parser makes four objects.
    """
    before = _METADATA.match(header)
    if (
        before is None
        or b"\\" in header
        or not header.isascii()
        or len(header.translate(None, _CONTROL)) != len(header)
    ):
        return None
    parts = header[before.end() :].rstrip(b" ").split(b'"')
    if parts[0] or len(parts) == 1 or len(parts) % _STRIDE != 1 or not parts[-1].endswith(b"]}}"):
        return None
    count = len(parts) // _STRIDE
    if any(parts[place::_STRIDE].count(text) != count for place, text in _FRAME.items()):
        return None
    names, dtypes, shapes = parts[1::_STRIDE], parts[5::_STRIDE], parts[8::_STRIDE]
    tails = parts[_STRIDE::_STRIDE]
    tails[-1] = tails[-1][:-1] + b","
    places = b"".join(tails)
    del parts, tails
    if places.count(b":[") != count or places.count(b"]},") != count or places.translate(None, b"0123456789,:[]}"):
        return None
    flat = places.translate(None, b":[]}").split(b",")[:-1]
    starts, ends = flat[0::2], flat[1::2]
    end = b"\0" + path.name.encode()
    joined = (end + b"\n").join(names) + end
    full = joined.split(b"\n")  # each name with its file, as `names_sum` has them
    known = set(full)
    if len(flat) != 2 * count or b"" in ends or max(map(len, ends)) > 18 or len(known) != count:
        return None
    if starts[0] != b"0" or starts[1:] != ends[:-1] or 8 + length + int(ends[-1]) != size:
        return None  # in an order of its own, or wrong
    stops = list(map(int, ends))
    kinds = list(map(add, dtypes, shapes))  # `BF16:[2,3],`: one object, whose hash is worked out once
    sizes = {kind: _entry_size(kind) for kind in set(kinds)}
    if not all(map(eq, map(sub, stops, [0, *stops]), map(sizes.get, kinds))):
        return None
    tensors = {}
    for text in wanted:
        if text.encode() + end in known:
            i = names.index(text.encode())
            shape = _SHAPE.fullmatch(shapes[i])
            tensors[text] = Tensor(
                text,
                dtypes[i].decode(),
                tuple(int(part) for part in shape[1].split(b",") if part) if shape else (),
                path,
                8 + length + int(starts[i]),
                8 + length + stops[i],
            )
    sums: Counter[tuple[bytes, bytes]] = Counter()
    at = 0
    for layer, run in groupby(_layer_texts(names, joined)):  # a layer's tensors stand together, as a rule
        begin, at = at, at + sum(1 for _ in run)
        for kind, times in Counter(kinds[begin:at]).items():
            sums[layer, kind.partition(b":")[0]] += (sizes[kind] or 0) * times
    by_layer = _grouped((layer, dtype.decode(), total) for (layer, dtype), total in sums.items())
    return Shard(path, size, tensors, count, sum(map(hash, full)), by_layer)


_LAYER = re.compile(rb"(\d{1,4})\.")


def sizes_by_layer(tensors: Iterable[Tensor]) -> Sizes:
    """`Sizes` of these tensors."""
    return _grouped(
        (_layer_text(tensor.name.encode("utf-8", "surrogatepass")), tensor.dtype, tensor.nbytes) for tensor in tensors
    )


def _layer_text(name: bytes) -> bytes:
    """The few bytes that a layer's number is in, so that 200,000 names make some hundred groups."""
    return name.partition(b"layers.")[2][:5]


def _layer_texts(names: list[bytes], joined: bytes) -> Iterable[bytes]:
    """`_layer_text` of each; nearly all names of a file share what stands before the number."""
    model = next((name for name in names if b"layers." in name), None)
    if model is None:
        return [b""] * len(names)
    prefix = model[: model.find(b"layers.") + 7]
    begin, end = len(prefix), len(prefix) + 5
    if joined.startswith(prefix) and joined.count(b"\n" + prefix) == len(names) - 1:
        return [name[begin:end] for name in names]
    return [name[begin:end] if name.startswith(prefix) else _layer_text(name) for name in names]


def _grouped(groups: Iterable[tuple[bytes, str, int]]) -> Sizes:
    """Sizes from `_layer_text`, dtype and bytes."""
    found: Counter[tuple[str, int | None]] = Counter()
    for text, dtype, size in groups:
        match = _LAYER.match(text)
        found[dtype, int(match[1]) if match else None] += size
    return found


def _entry_size(kind: bytes) -> int | None:
    """Bytes of a tensor from dtype and shape, `BF16:[2,3],`; None for what is no dtype or no shape."""
    dtype, colon, shape = kind.partition(b":")
    bits, sizes = DTYPE_BITS.get(dtype.decode("ascii", "replace")), _SHAPE.fullmatch(colon + shape)
    if bits is None or sizes is None:
        return None
    return (_product([int(part) for part in sizes[1].split(b",") if part]) * bits + 7) // 8


def names_sum(names: Iterable[bytes], file: bytes) -> int:
    """A sum over hashes of name and file: equal for equal sets within one process, whatever their order.

    Of the joined bytes: sums over hashes of tuples can be equal where two names have changed places.
    """
    end = b"\0" + file
    return sum(hash(name + end) for name in names)


def _header(path: Path, size: int) -> tuple[int, bytes]:
    start = read_bytes(path, limit=512, length=min(size, 512))
    if start.startswith(LFS_MAGIC):
        raise Unreadable(lfs_pointer(path, start))
    if size < 8:
        raise Unreadable(
            Problem("truncated", f"{path.name} has {size} bytes, too few for a header", path, remedy=COPY_REMEDY)
        )
    length = int.from_bytes(start[:8], "little")
    if length > size - 8:
        kind, remedy = ("truncated", COPY_REMEDY)
        message = f"{path.name} promises a header of {length} bytes, but {max(size - 8, 0)} bytes follow"
        if start[8:9] != b"{":
            kind, message = "not-safetensors", f"{path.name} does not begin like a safetensors file"
        raise Unreadable(
            Problem(kind, message, path, expected=f"{length + 8} bytes or more", found=f"{size} bytes", remedy=remedy)
        )
    if length > HEADER_LIMIT:
        raise Unreadable(
            Problem(
                "header-too-long",
                f"{path.name} promises a header of {length} bytes; the guard reads at most {HEADER_LIMIT}",
                path,
            )
        )
    header = read_bytes(path, limit=HEADER_LIMIT, offset=8, length=length)
    if not header.startswith(b"{"):
        raise Unreadable(Problem("not-safetensors", f"{path.name} does not begin like a safetensors file", path))
    return length, header


def _metadata(raw: Any, path: Path, problems: list[Problem]) -> dict[str, str]:
    if raw is None:
        return {}
    if not isinstance(raw, dict) or not all(isinstance(value, str) for value in raw.values()):
        problems.append(Problem("bad-header", f"{path.name}: __metadata__ is not a map of strings", path))
        return {}
    return raw


def _tensor(name: str, entry: Any, path: Path, data_start: int, problems: list[Problem]) -> Tensor | None:
    def bad(message: str, **evidence: str) -> None:
        problems.append(Problem("bad-header", f"{path.name}: {short(name)}: {message}", path, name, **evidence))

    if not isinstance(entry, dict):
        bad("its entry is not an object")
        return None
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        bad(f"unknown dtype {short(repr(dtype))}")
        return None
    if not _is_sizes(shape) or len(shape) > MAX_RANK:
        bad(f"its shape is not a list of at most {MAX_RANK} sizes: {short(repr(shape))}")
        return None
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        bad(f"its data_offsets are not [begin, end]: {short(repr(offsets))}")
        return None
    expected = (_product(shape) * DTYPE_BITS[dtype] + 7) // 8
    if offsets[1] - offsets[0] != expected:
        bad(
            f"{dtype} {list(shape)} needs {expected} bytes, its offsets span {offsets[1] - offsets[0]}",
            expected=f"{expected} bytes",
            found=f"{offsets[1] - offsets[0]} bytes",
        )
        return None
    return Tensor(name, dtype, tuple(shape), path, data_start + offsets[0], data_start + offsets[1])


def _coverage(tensors: Mapping[str, Tensor], path: Path, size: int, data_start: int) -> list[Problem]:
    """The data must be covered from its first byte to the file's last."""
    at = data_start
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != at:
            what = "overlaps the tensor before it" if tensor.start < at else "leaves a hole before it"
            message = f"{path.name}: {short(tensor.name)} {what} (starts at {tensor.start}, expected {at})"
            return [Problem("bad-offsets", message, path, tensor.name, str(at), str(tensor.start), COPY_REMEDY)]
        at = tensor.end
    if size == at:
        return []
    kind = "truncated" if size < at else "trailing-bytes"
    message = (
        f"{path.name} is {at - size} bytes shorter than its header says"
        if size < at
        else f"{path.name} has {size - at} bytes after the last tensor"
    )
    return [Problem(kind, message, path, expected=f"{at} bytes", found=f"{size} bytes", remedy=COPY_REMEDY)]


def _duplicates(header: bytes, path: Path) -> list[Problem]:
    """Names that stand in the header twice (the last one wins in every JSON reader)."""
    twice: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            seen: set[str] = set()
            twice.extend(name for name, _ in items if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        return found

    json.loads(header, object_pairs_hook=pairs)
    return [
        Problem("duplicate-name", f"{path.name}: {short(name)} stands in the header twice", path, name)
        for name in dict.fromkeys(twice)
    ]


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _product(shape: tuple[int, ...] | list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def short(text: str, width: int = 120) -> str:
    """Text from a file, made printable and cut to ``width`` characters."""
    printable = text if text.isprintable() else repr(text)
    return printable if len(printable) <= width else printable[: width - 3] + "..."
