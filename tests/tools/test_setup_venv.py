"""The clone's environment: what goes of the shared cache, and what stays."""

from __future__ import annotations

import importlib.util
import mmap
import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def setup_venv(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_venv", root / "tools/setup_venv.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _made(folder: Path, days: float) -> Path:
    (folder / "lib").mkdir(parents=True)
    stamp = folder / ".complete"
    stamp.touch()
    then = time.time() - days * 86400
    os.utime(stamp, (then, then))
    return folder


def test_removes_what_other_requirements_made_long_ago(setup_venv: ModuleType, tmp_path: Path) -> None:
    wanted = _made(tmp_path / "packages-engine-new", 9)
    old = _made(tmp_path / "packages-engine-old", 9)
    recent = _made(tmp_path / "packages-engine-recent", 0.1)
    other = _made(tmp_path / "packages-docs-old", 9)
    half = tmp_path / "packages-engine-half"
    half.mkdir()
    setup_venv._remove_old(wanted, "packages-engine-")
    assert not old.exists()
    assert not half.exists()
    assert wanted.exists()
    assert recent.exists()
    assert other.exists()


def test_keeps_what_a_program_uses(setup_venv: ModuleType, tmp_path: Path) -> None:
    wanted = _made(tmp_path / "packages-engine-new", 0)
    used = _made(tmp_path / "packages-engine-used", 9)
    library = used / "lib/library.so"
    library.write_bytes(b"x" * 4096)
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        setup_venv._remove_old(wanted, "packages-engine-")
        assert used.exists()
    setup_venv._remove_old(wanted, "packages-engine-")
    assert not used.exists()


def test_an_activated_environment_gives_the_same_key(setup_venv: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make` with the clone's own .venv activated neither installs again nor runs a Python that it removes."""
    assert Path(setup_venv._python()).resolve() == Path(sys.executable).resolve()
    assert not Path(setup_venv._python()).is_relative_to(sys.prefix) or sys.prefix == sys.base_prefix
