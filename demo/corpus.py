"""The text of the demo pair: the running Python's own standard library, and the split into what is trained on.

Source and documentation of the standard library are under the PSF licence. A file's part is decided by its path
alone, so the same Python gives the same split:

- "train": the library and its documentation topics, and half of its test suite;
- "held-out": about one library file in sixteen; the prompts come from here;
- "sibling": the other half of the test suite, which only the sibling target sees.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Part = Literal["train", "held-out", "sibling"]

HELD_OUT_ONE_IN = 16
"""One library file in so many is held out."""

LARGEST_FILE = 200_000
"""Characters; longer files are tables or generated."""

SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "pydoc_data", "encodings", "lib-dynload"})
TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
TEST_DATA = re.compile(r"(^|/)(bad|badsyntax|data)[^/]*(/|\.py$)|encoded_modules|cjkencodings")
NEVER_HELD_OUT = frozenset({"pgen2", "distutils", "_pyio.py", "_pydecimal.py", "sre_parse.py", "sre_compile.py"})
"""Files with a near-twin elsewhere in the library."""


@dataclass(frozen=True)
class Document:
    """One file (or documentation topic): path below the library, text, and the part it belongs to."""

    path: str
    text: str
    part: Part


def _bucket(path: str, buckets: int) -> int:
    return int(hashlib.sha256(path.encode()).hexdigest(), 16) % buckets


def part_of(path: str) -> Part:
    """Which part a file belongs to, from its path below the library folder (with forward slashes)."""
    pieces = path.split("/")
    if TEST_FOLDERS.intersection(pieces[:-1]):
        return "sibling" if _bucket(path, 2) else "train"
    if _bucket(path, HELD_OUT_ONE_IN) == 0 and not NEVER_HELD_OUT.intersection(pieces):
        return "held-out"
    return "train"


def _sources(library: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(library.rglob("*.py")):
        path = file.relative_to(library).as_posix()
        if SKIPPED_FOLDERS.intersection(path.split("/")) or file.name.startswith("_sysconfigdata"):
            continue
        if "test" in path and TEST_DATA.search(path):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if 200 <= len(text) <= LARGEST_FILE:
            yield path, text.replace("\t", "        ").replace("\f", "")


def _topics() -> Iterator[tuple[str, str]]:
    from pydoc_data.topics import topics  # noqa: PLC0415 - a large module, needed here alone

    for name, text in sorted(topics.items()):
        yield f"pydoc_data/topics/{name}", text


def standard_library(library: Path | None = None) -> list[Document]:
    """Every usable file of a standard library (default: the running Python's), in path order."""
    folder = library or Path(sysconfig.get_path("stdlib"))
    documents = [Document(path, text, part_of(path)) for path, text in _sources(folder)]
    documents += [Document(path, text, "train") for path, text in _topics()]
    return documents


def pack(documents: list[Document], file: Path) -> None:
    """Write documents as xz-compressed JSON lines, to train elsewhere on the same text."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(file, "wt", encoding="utf-8") as stream:
        for document in documents:
            stream.write(json.dumps(asdict(document)) + "\n")


def unpack(file: Path) -> list[Document]:
    """Read what `pack` wrote."""
    with lzma.open(file, "rt", encoding="utf-8") as stream:
        return [Document(**json.loads(line)) for line in stream]
