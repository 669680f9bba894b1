"""The dump of SGLang's parser: a child once, a file afterwards; and what happens when SGLang is broken or absent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile import sglang_parser as module
from guarded_serve.profile.resolve import resolve

needs_sglang = pytest.mark.skipif(module.installed_version() is None, reason="SGLang is not installed")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "guarded-serve"


@needs_sglang
def test_a_child_builds_it_once_and_then_it_is_read_in_milliseconds(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = module.installed_parser()
    assert first is not None
    assert first.installed
    assert first.version == module.installed_version()
    assert [path.suffix for path in own_cache.iterdir()] == [".json"]

    def no_child(*_: object) -> None:
        raise AssertionError("a child was started although the answer is cached")

    monkeypatch.setattr(module, "_build", no_child)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        again = module.installed_parser()
        seconds.append(time.perf_counter() - started)
        assert again == first
    assert min(seconds) < 0.1


@needs_sglang
def test_it_is_built_anew_for_other_plugins_and_for_a_broken_cache(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def record(output: Path, version: str) -> None:
        built.append(version)
        output.write_text(module.SNAPSHOT.read_text())

    monkeypatch.setattr(module, "_build", record)
    module.installed_parser()
    module.installed_parser()
    assert len(built) == 1
    monkeypatch.setenv("SGLANG_PLUGINS", "another")
    module.installed_parser()
    assert len(built) == 2
    for path in own_cache.iterdir():
        path.write_text("{")
    module.installed_parser()
    assert len(built) == 3


@needs_sglang
@pytest.mark.skipif(os.geteuid() != 0, reason="a cache folder that cannot be made, even by root, is a file's child")
def test_no_cache_folder_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(module, "_build", lambda output, version: output.write_text(module.SNAPSHOT.read_text()))
    assert module.installed_parser() is not None


@needs_sglang
def test_a_broken_sglang_is_said_and_ends_the_launch(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "child.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')")
    monkeypatch.setattr(module, "_CHILD", tmp_path / "child.py")
    resolution = resolve(None, ["--model-path", "m"], environ={})
    assert resolution.exit_code() is ExitCode.SERVER
    assert "libcuda.so.1" in resolution.findings[0].message


@needs_sglang
def test_a_child_that_hangs_is_ended(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "child.py").write_text("import time; time.sleep(600)")
    monkeypatch.setattr(module, "_CHILD", tmp_path / "child.py")
    monkeypatch.setattr(module, "CHILD_DEADLINE_S", 0.5)
    with pytest.raises(module.ParserUnavailable, match="did not answer within"):
        module.installed_parser()


def test_without_sglang_the_snapshot_names_its_version() -> None:
    snapshot = module.snapshot()
    assert not snapshot.installed
    assert snapshot.version.count(".") >= 2
    assert {"model_path", "tp_size", "speculative_num_steps"} <= set(snapshot.by_name)


@needs_sglang
def test_the_snapshot_is_what_its_version_s_parser_says() -> None:
    installed, snapshot = module.installed_parser(), module.snapshot()
    assert installed is not None
    if installed.version != snapshot.version:
        pytest.skip(f"SGLang {installed.version} is installed, the snapshot is of {snapshot.version}")
    assert [action.options for action in installed.actions] == [action.options for action in snapshot.actions]
    assert installed.actions == snapshot.actions


def test_resolving_a_profile_takes_less_than_150_ms(tmp_path: Path) -> None:
    """Our own time after imports, with a warm cache; the design's bound."""
    path = tmp_path / "x.toml"
    path.write_text('[server]\nmodel_path = "m"\ntp_size = 8\nspeculative_algorithm = "EAGLE3"\n')
    resolve(path, [])
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        resolve(path, ["--port", "1234"])
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.15


def test_neither_torch_nor_sglang_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[server]\nmodel_path = "m"\n')
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "import guarded_serve.cli, guarded_serve.commands.profile.show\n"
        "from guarded_serve.profile.resolve import resolve\n"
        f"resolve(Path({str(path)!r}), ['--tp-size', '2'])\n"
        "heavy = [name for name in ('torch', 'sglang', 'transformers', 'numpy') if name in sys.modules]\n"
        "sys.exit(','.join(heavy) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")
