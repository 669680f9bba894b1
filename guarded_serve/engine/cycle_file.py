"""Cycle lines on disk: a thread of its own, rotation by size, and no way for a bad disk to reach the engine.

Lines come in batches through a bounded queue. A full, slow or vanished disk drops records and counts them. A write
that fails halfway is cut back to the last whole line. Nothing is synced: the kernel has the line within the second, a
power cut may lose it.
"""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path

from guarded_serve.timing.record import FILE_NAME, file_name

QUEUE_BATCHES = 64


class CycleFile:
    """The files ``cycles-RANK-SEQUENCE.jsonl`` of one rank in ``directory``; the newest ``keep`` are kept."""

    def __init__(self, directory: Path, rank: int, *, rotate_bytes: int, keep: int) -> None:
        self.dropped = 0  # records
        self.problem = ""  # the last error, in words; empty when the last write went well
        self._directory = directory
        self._rank = rank
        self._rotate_bytes = rotate_bytes
        self._keep = max(keep, 1)
        self._queue: queue.Queue[tuple[bytes, int] | None] = queue.Queue(QUEUE_BATCHES)
        self._descriptor: int | None = None
        self._path: Path | None = None
        self._size = 0
        self._thread = threading.Thread(target=self._run, name="guarded-serve-cycles", daemon=True)
        self._thread.start()

    def put(self, lines: bytes, records: int) -> None:
        """Queue whole lines; dropped and counted when the disk does not keep up. Never blocks."""
        try:
            self._queue.put_nowait((lines, records))
        except queue.Full:
            self.dropped += records
            self.problem = "the disk does not keep up"

    def close(self, timeout: float) -> None:
        """Write what is queued, for at most ``timeout`` seconds."""
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            lines, records = batch
            try:
                self._write(lines)
                self.problem = ""
            except OSError as error:
                self.dropped += records
                self.problem = f"{self._path or self._directory}: {error.strerror or error}"
                self._forget()
        self._forget()

    def _write(self, lines: bytes) -> None:
        if self._descriptor is not None and (self._size >= self._rotate_bytes or self._vanished()):
            self._forget()
        if self._descriptor is None:
            self._open()
        assert self._descriptor is not None
        view = memoryview(lines)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            try:
                os.ftruncate(self._descriptor, self._size)
            except OSError:
                pass
            raise
        self._size += len(lines)

    def _open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        mine = self._files()
        sequence = mine[-1][0] + 1 if mine else 1
        self._path = self._directory / file_name(self._rank, sequence)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._size = 0
        for _, old in mine[: max(len(mine) + 1 - self._keep, 0)]:
            old.unlink(missing_ok=True)

    def _files(self) -> list[tuple[int, Path]]:
        """This rank's files by sequence number."""
        found = []
        for path in self._directory.iterdir():
            match = FILE_NAME.match(path.name)
            if match and int(match["rank"]) == self._rank:
                found.append((int(match["sequence"]), path))
        return sorted(found)

    def _vanished(self) -> bool:
        assert self._descriptor is not None
        assert self._path is not None
        try:
            return os.fstat(self._descriptor).st_ino != self._path.stat().st_ino
        except OSError:
            return True

    def _forget(self) -> None:
        if self._descriptor is not None:
            try:
                os.close(self._descriptor)
            except OSError:
                pass
            self._descriptor = None
