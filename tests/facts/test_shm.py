"""/dev/shm: what is in use, what is left behind, and what cannot be told, in a made-up folder and /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guarded_serve.facts.shm import SharedMemory, read_shared_memory
from tests.support.fake_proc import FakeProc


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    made = FakeProc(tmp_path / "proc")
    made.add(100, "sglang::scheduler")
    return made


def _read(proc: FakeProc, tmp_path: Path, *names: str) -> SharedMemory:
    folder = tmp_path / "shm"
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"x" * 8192)
    return read_shared_memory(folder, proc.root)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("sgl_shm_mm_100_ab12", True),  # its maker lives
        ("sgl_shm_mm_999_ab12", False),
        ("sem.loky-100-x1y2", True),
        ("sem.loky-999-x1y2", False),
        ("multi_tokenizer_args_999", False),
        ("sglang_loads_0d7204b8b71d_c6da7779.shm", False),  # no PID in the name, and nobody has it mapped
        ("psm_5f3a", False),
        ("nccl-Ab3dEf", False),
    ],
)
def test_leftovers(proc: FakeProc, tmp_path: Path, name: str, use: bool) -> None:
    (segment,) = _read(proc, tmp_path, name).segments
    assert segment.in_use is use
    assert segment.size >= 8192


def test_what_somebody_has_mapped_is_in_use(proc: FakeProc, tmp_path: Path) -> None:
    maps = f"7f00-7f10 rw-s 00000000 00:17 5 {tmp_path / 'shm' / 'psm_1'}\n7f20-7f30 rw-p 00000000 00:00 0\n"
    (proc.root / "100" / "maps").write_text(maps)
    found = _read(proc, tmp_path, "psm_1", "psm_2")
    assert [segment.in_use for segment in found.segments] == [True, False]
    assert [segment.name for segment in found.leftovers] == ["psm_2"]


def test_other_programs_files_are_not_looked_at(proc: FakeProc, tmp_path: Path) -> None:
    assert _read(proc, tmp_path, "my-precious-999", "PostgreSQL.1234").segments == ()


def test_the_hosts_shm_in_a_container_proves_nothing(proc: FakeProc, tmp_path: Path) -> None:
    own = proc.root / str(os.getpid()) / "ns"
    (own / "pid").unlink()
    (own / "pid").symlink_to("pid:[4026532999]")
    (own / "ipc").symlink_to("ipc:[4026531839]")
    (segment,) = _read(proc, tmp_path, "sem.loky-999-x1y2").segments
    assert segment.in_use is None


def test_no_shm_at_all(tmp_path: Path) -> None:
    assert read_shared_memory(tmp_path / "none").total is None


def test_this_machine(tmp_path: Path) -> None:
    found = read_shared_memory()
    assert found.total is not None
    assert found.free is not None
    assert 0 < found.free <= found.total
