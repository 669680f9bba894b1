"""Paths and hub ids to folders: what is there, what is half there, and what has to be fetched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.checkpoint.hub import locate
from tests.support.checkpoints import drafter, target
from tests.support.verdicts import deployment, errors, judge

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ID = "owner/model"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub's cache with one model of three shards in it."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    model = tmp_path / "models--owner--model"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    return target().write(model / "snapshots" / COMMIT, shards=3)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch, cache: Path) -> list[bool]:
    """A network that completes the cache; whether weights were asked for, each time that it was used."""
    calls: list[bool] = []
    real: Callable[..., str] = huggingface_hub.snapshot_download

    def snapshot_download(*args: Any, local_files_only: bool, **options: Any) -> str:
        if local_files_only:
            return real(*args, local_files_only=True, **options)
        calls.append("*.safetensors" in options["allow_patterns"])
        if calls[-1]:
            for path in cache.glob("*.safetensors"):
                path.unlink()
            target().write(cache, shards=3)
        return str(cache)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def test_a_whole_cache_is_taken_without_asking(cache: Path, fetched: list[bool]) -> None:
    found = locate(ID, None, fetch_weights=True)
    assert (found.directory, found.hub_id, found.complete) == (cache, ID, True)
    assert fetched == []


def _shard_missing(folder: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()


def _link_to_nowhere(folder: Path) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    path.unlink()
    path.symlink_to("../../blobs/gone")


def _no_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    _shard_missing(folder)


def _no_weights(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        path.unlink()


@pytest.mark.parametrize("spoil", [_shard_missing, _link_to_nowhere, _no_index, _no_weights])
def test_a_part_of_a_model_is_completed(cache: Path, fetched: list[bool], spoil: Callable[[Path], None]) -> None:
    spoil(cache)
    found = locate(ID, None, fetch_weights=True)
    assert (found.directory, found.complete) == (cache, True)
    assert fetched == [True]


def test_a_targets_weights_are_left_to_sglang(cache: Path, fetched: list[bool]) -> None:
    _shard_missing(cache)
    found = locate(ID, None, fetch_weights=False)
    assert (found.directory, found.complete) == (cache, False)
    assert fetched == [False]
    assert errors(judge(deployment(Path(ID), algorithm=None))) == []


def test_offline_a_part_is_told_as_it_is(cache: Path, fetched: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    _shard_missing(cache)
    assert locate(ID, None, fetch_weights=True).directory == cache
    assert fetched == []
    report = judge(deployment(Path(ID), algorithm=None))
    assert errors(report) == ["target.weights"]
    _no_weights(cache)
    found = locate(ID, None, fetch_weights=True)
    assert found.directory is None
    assert found.problem is not None
    assert "HF_HUB_OFFLINE forbids" in found.problem.message


def test_a_folder_is_a_path_whatever_the_cache_holds(
    tmp_path: Path, fetched: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = target().write(tmp_path / "owner" / "model")
    monkeypatch.chdir(tmp_path)
    assert locate(ID, None, fetch_weights=True).directory == Path(ID)
    assert folder.is_dir()
    assert fetched == []


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "a/b/c"])
def test_what_is_no_hub_id_is_missing(tmp_path: Path, fetched: list[bool], name: str) -> None:
    found = locate(name, None, fetch_weights=True)
    assert found.directory is None
    assert found.problem is not None
    assert found.problem.kind == "missing"
    assert fetched == []


LATER = COMMIT[::-1]


@pytest.fixture
def hub(tmp_path: Path) -> dict[str, str]:
    """A cache as `hf download` leaves it, with two revisions of a drafter, the later one cut short: the environment."""
    for name, model in (("target", target()), ("drafter", drafter())):
        folder = tmp_path / "hub" / f"models--owner--{name}"
        model.write(folder / "snapshots" / COMMIT)
        later = model.write(folder / "snapshots" / LATER) / "model.safetensors"
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(COMMIT)
        (folder / "refs" / "v2").write_text(LATER)
        if name == "drafter":
            later.write_bytes(later.read_bytes()[:-7])
    return {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}


def command(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "guarded_serve.cli", *arguments]
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=False)


def check(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    flags = ["--only", "target,drafter", "--speculative-algorithm", "EAGLE3"]
    return command(environment, "check", *flags, *arguments)


PAIR = ("--model-path", "owner/target", "--speculative-draft-model-path", "owner/drafter")


def test_ids_are_judged_from_the_cache(hub: dict[str, str]) -> None:
    done = check(hub, *PAIR)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "[2, 4, 5] of 8 layers" in done.stdout


def test_the_revision_is_the_one_that_is_judged(hub: dict[str, str]) -> None:
    for revision in ("v2", LATER):
        done = check(hub, *PAIR, "--speculative-draft-model-revision", revision)
        assert (done.returncode, done.stderr) == (65, "")
        assert "7 bytes shorter than its header says" in done.stdout
    assert command(hub, "inspect", "owner/drafter").returncode == 0
    assert command(hub, "inspect", "owner/drafter", "--revision", "v2").returncode == 65


def test_a_revision_that_is_not_in_the_cache(hub: dict[str, str]) -> None:
    done = check(hub, *PAIR, "--speculative-draft-model-revision", "v9")
    assert (done.returncode, done.stderr) == (66, "")
    assert "owner/drafter at revision v9 is neither a folder nor in the hub's cache" in done.stdout
    assert "hf download owner/drafter --revision v9" in done.stdout


def test_an_id_that_is_not_in_the_cache(hub: dict[str, str]) -> None:
    names = ("--model-path", "owner/gone", "--speculative-draft-model-path", "owner/none")
    done = check(hub, *names)
    assert (done.returncode, done.stderr) == (66, "")
    for flag, name in (names[:2], names[2:]):
        assert f"{name} is neither a folder nor in the hub's cache ({hub['HF_HUB_CACHE']})" in done.stdout
        assert (
            f"found:    {name}\n    where:    {flag} on the command line\n    remedy:   correct the name" in done.stdout
        )
    seen = command(hub, "inspect", "owner/none")
    assert (seen.returncode, seen.stdout) == (66, "")
    assert "remedy:   correct the name, or run `hf download owner/none`" in seen.stderr
    assert "Traceback" not in seen.stderr
