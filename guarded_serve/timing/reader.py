"""From cycle files to a `Summary`, streaming: a few MiB at a time, by as many processes as the machine has cores.

A last line without its newline is what a crash leaves: it is counted and left out. A whole line that is no record is
counted as bad and left out, so that one broken line does not hide a day.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from guarded_serve.timing.columns import absorb
from guarded_serve.timing.record import FILE_NAME, Cycle
from guarded_serve.timing.summary import Summary

BLOCK = 4 << 20  # bytes parsed at a time
PART = 64 << 20  # bytes a process takes at a time; less than two of them are read in this process


class NoCycles(Exception):
    """What was named holds no cycle file; the text says so, with the path."""


@dataclass(frozen=True)
class _Part:
    """The lines that start in [start, stop) of a file."""

    path: Path
    start: int
    stop: int


def find_files(paths: Iterable[Path]) -> list[Path]:
    """Cycle files: those named, and ``cycles-*.jsonl`` in the folders named, oldest first within a rank.

    Raises FileNotFoundError for a path that does not exist, and NoCycles for a folder without any.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inside = [entry for entry in path.iterdir() if FILE_NAME.match(entry.name)]
            if not inside:
                raise NoCycles(f"{path} holds no cycle file (cycles-RANK-NUMBER.jsonl)")
            found.update(dict.fromkeys(sorted(inside, key=_rank_and_sequence)))
        else:
            path.stat()
            found[path] = None
    return list(found)


def summarise(files: list[Path]) -> Summary:
    """Read all files. Raises OSError when one cannot be read."""
    parts = [
        _Part(path, start, start + PART) for path in files for start in range(0, max(path.stat().st_size, 1), PART)
    ]
    whole = Summary()
    processes = min(os.cpu_count() or 1, len(parts))
    if processes < 2 or sum(path.stat().st_size for path in files) < 2 * PART:
        for part in parts:
            whole.merge(_summarise_part(part))
        return whole
    with ProcessPoolExecutor(processes) as pool:
        for summary in pool.map(_summarise_part, parts):
            whole.merge(summary)
    return whole


def cycles(path: Path) -> Iterator[Cycle]:
    """The records of one file, one by one, as typed values; broken lines are left out."""
    for block, _ in _blocks(_Part(path, 0, 1 << 62)):
        for line in block.splitlines():
            try:
                yield Cycle.from_line(line)
            except ValueError:
                continue


def _rank_and_sequence(path: Path) -> tuple[int, int]:
    match = FILE_NAME.match(path.name)
    assert match is not None
    return int(match["rank"]), int(match["sequence"])


def _summarise_part(part: _Part) -> Summary:
    summary = Summary()
    for block, cut in _blocks(part):
        absorb(summary, block)
        summary.cut_lines += cut
    return summary


def _blocks(part: _Part) -> Iterator[tuple[bytes, int]]:
    """Whole lines in blocks, and how many lines (0 or 1) the end of the file cut off."""
    with part.path.open("rb") as stream:
        if part.start:
            stream.seek(part.start - 1)
            stream.readline()  # the line that began before this part is the part before's
        position = stream.tell()
        while position < part.stop:
            block = stream.read(min(BLOCK, part.stop - position))
            if not block:
                return
            if not block.endswith(b"\n"):
                block += stream.readline()
            position += len(block)
            whole, newline, rest = block.rpartition(b"\n")
            yield whole + newline, int(bool(rest))
