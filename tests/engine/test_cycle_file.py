"""Cycle lines on disk: rotation, and disks that are full, slow or gone."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from guarded_serve.engine import cycle_file
from guarded_serve.engine.cycle_file import QUEUE_BATCHES, CycleFile

LINE = b'{"t":1}\n'


def _wait(condition: object, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_lines_are_on_disk_within_a_second(tmp_path: Path) -> None:
    file = CycleFile(tmp_path / "deep" / "log", 3, rotate_bytes=1 << 20, keep=2)
    file.put(LINE * 2, 2)
    path = tmp_path / "deep" / "log" / "cycles-3-000001.jsonl"
    _wait(lambda: path.exists() and path.read_bytes() == LINE * 2, 1.0)
    file.close(1.0)


def test_rotation_keeps_the_newest(tmp_path: Path) -> None:
    (tmp_path / "cycles-1-000001.jsonl").write_bytes(LINE)  # another rank's
    file = CycleFile(tmp_path, 0, rotate_bytes=2 * len(LINE), keep=2)
    for _ in range(7):
        file.put(LINE, 1)
    file.close(5.0)
    assert _names(tmp_path) == ["cycles-0-000003.jsonl", "cycles-0-000004.jsonl", "cycles-1-000001.jsonl"]
    assert (tmp_path / "cycles-0-000004.jsonl").read_bytes() == LINE
    assert file.dropped == 0


def test_a_new_start_begins_a_new_file_and_touches_no_old_one(tmp_path: Path) -> None:
    (tmp_path / "cycles-0-000009.jsonl").write_bytes(b'{"cut')
    file = CycleFile(tmp_path, 0, rotate_bytes=1 << 20, keep=5)
    file.put(LINE, 1)
    file.close(5.0)
    assert _names(tmp_path) == ["cycles-0-000009.jsonl", "cycles-0-000010.jsonl"]
    assert (tmp_path / "cycles-0-000009.jsonl").read_bytes() == b'{"cut'


def test_a_server_without_a_cycle_leaves_no_file(tmp_path: Path) -> None:
    CycleFile(tmp_path, 0, rotate_bytes=1 << 20, keep=5).close(5.0)
    assert _names(tmp_path) == []


def test_a_full_disk_drops_counts_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The half of a line that the disk still took is cut back, so that no later line is glued to it."""
    file = CycleFile(tmp_path, 0, rotate_bytes=1 << 20, keep=5)
    file.put(LINE, 1)
    _wait(lambda: _names(tmp_path))
    really, full = os.write, threading.Event()
    full.set()

    def write(descriptor: int, data: memoryview) -> int:
        if full.is_set():
            if len(data) > 3:
                return really(descriptor, data[: len(data) - 3])
            raise OSError(errno.ENOSPC, "No space left on device")
        return really(descriptor, data)

    monkeypatch.setattr(cycle_file.os, "write", write)
    file.put(LINE * 5, 5)
    _wait(lambda: file.dropped == 5)
    assert "No space left on device" in file.problem
    full.clear()
    file.put(LINE, 1)
    file.close(5.0)
    assert file.problem == ""
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [LINE, LINE]


def test_a_really_full_disk() -> None:
    """/dev/full refuses every byte, as the kernel does."""
    file = CycleFile(Path("/dev/full/no"), 0, rotate_bytes=1, keep=1)
    file.put(LINE, 4)
    _wait(lambda: file.dropped == 4)
    assert "/dev/full" in file.problem
    file.close(1.0)


def test_a_slow_disk_never_blocks_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    really = os.write
    monkeypatch.setattr(cycle_file.os, "write", lambda fd, data: (gate.wait(), really(fd, data))[1])
    file = CycleFile(tmp_path, 0, rotate_bytes=1 << 20, keep=1)
    started = time.monotonic()
    for _ in range(QUEUE_BATCHES + 11):
        file.put(LINE * 2, 2)
    assert time.monotonic() - started < 1.0
    assert 20 <= file.dropped <= 22, "one batch may be in the writer's hands"
    assert file.problem == "the disk does not keep up"
    gate.set()
    file.close(5.0)


def test_a_vanished_directory_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    file = CycleFile(folder, 0, rotate_bytes=1 << 20, keep=5)
    file.put(LINE, 1)
    _wait(lambda: folder.is_dir() and _names(folder))
    shutil.rmtree(folder)
    file.put(LINE, 1)
    _wait(lambda: folder.is_dir() and _names(folder))
    file.close(5.0)
    assert file.dropped == 0
    assert (folder / "cycles-0-000001.jsonl").read_bytes() == LINE
