"""Memory of the host and of control groups, v2 and v1, on made-up trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guarded_serve.facts.memory import read_system_memory
from tests.support.fake_proc import FakeProc

GIB = 2**30


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def _group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def _own(proc: FakeProc, text: str) -> None:
    (proc.root / str(os.getpid()) / "cgroup").write_text(text)


def test_no_limit(proc: FakeProc, tmp_path: Path) -> None:
    found = read_system_memory(proc.root, tmp_path / "none")
    assert (found.total, found.available, found.limit) == (128 * GIB, 120 * GIB, None)
    assert found.room == 120 * GIB


def test_the_tightest_group_of_v2_counts_page_cache_does_not(proc: FakeProc, tmp_path: Path) -> None:
    _own(proc, "0::/system.slice/llm.service\n")
    groups = tmp_path / "cgroup"
    _group(groups / "system.slice", memory__max="max", memory__current="1")
    _group(
        groups / "system.slice" / "llm.service",
        memory__max=str(64 * GIB),
        memory__current=str(40 * GIB),
        memory__stat=f"anon 1\ninactive_file {30 * GIB}",
    )
    found = read_system_memory(proc.root, groups)
    assert (found.limit, found.limit_used, found.room) == (64 * GIB, 10 * GIB, 54 * GIB)
    assert found.limit_path is not None
    assert found.limit_path.endswith("llm.service")


def test_a_parent_may_be_tighter(proc: FakeProc, tmp_path: Path) -> None:
    _own(proc, "0::/a/b\n")
    groups = tmp_path / "cgroup"
    _group(groups / "a", memory__max=str(8 * GIB), memory__current="0")
    _group(groups / "a" / "b", memory__max=str(64 * GIB), memory__current="0")
    assert read_system_memory(proc.root, groups).limit == 8 * GIB


def test_v1_and_its_number_for_no_limit(proc: FakeProc, tmp_path: Path) -> None:
    _own(proc, "4:memory:/box\n3:cpuset:/\n0::/\n")
    groups = tmp_path / "cgroup"
    _group(groups / "memory", memory__limit_in_bytes="9223372036854771712", memory__usage_in_bytes="5")
    _group(groups / "memory" / "box", memory__limit_in_bytes=str(16 * GIB), memory__usage_in_bytes=str(GIB))
    found = read_system_memory(proc.root, groups)
    assert (found.limit, found.room) == (16 * GIB, 15 * GIB)


def test_this_machine() -> None:
    found = read_system_memory()
    assert found.total is not None
    assert found.room is not None
    assert 0 < found.room <= found.total
