"""Odd files at the command line: each is a finding with its code; nothing waits, nothing is read without end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints import drafter, target

WEIGHTS = "model.safetensors"
SECONDS = 20.0  # on a busy machine; half a second alone


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target().write(tmp_path / "target")
    drafter().write(tmp_path / "drafter")
    return tmp_path


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "guarded_serve.cli", *arguments]
    return subprocess.run(program, capture_output=True, text=True, timeout=SECONDS, check=False)


def check(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    names = ["--model-path", str(folder / "target"), "--speculative-draft-model-path", str(folder / "drafter")]
    done = command("check", "--only", "target,drafter", "--deep", *names, "--speculative-algorithm", "EAGLE3", *more)
    assert done.stderr == ""
    return done


def instead(name: str, make: Callable[[Path], None]) -> Callable[[Path], None]:
    """A change that puts something else in a file's place."""

    def change(place: Path) -> None:
        (place / name).unlink(missing_ok=True)
        make(place / name)

    return change


def rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """A change of config.json's bytes."""

    def write(place: Path) -> None:
        path = place / "config.json"
        path.write_bytes(change(path.read_bytes()))

    return write


def keys(**values: Any) -> Callable[[Path], None]:
    """A change of config.json's keys; NaN and Inf are written as Python writes them."""
    return rewritten(lambda raw: json.dumps({**json.loads(raw), **values}).encode())


ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "FIFO as weights": (instead(WEIGHTS, os.mkfifo), f"{WEIGHTS} is not a regular file"),
    "device as weights": (instead(WEIGHTS, lambda path: path.symlink_to("/dev/zero")), "is not a regular file"),
    "folder as weights": (instead(WEIGHTS, Path.mkdir), f"{WEIGHTS} is not a regular file"),
    "FIFO as index": (instead(f"{WEIGHTS}.index.json", os.mkfifo), "index.json is not a regular file"),
    "FIFO as config": (instead("config.json", os.mkfifo), "config.json is not a regular file"),
    "folder as config": (instead("config.json", Path.mkdir), "config.json is not a regular file"),
    "link to itself": (instead("config.json", lambda path: path.symlink_to(path.name)), "ends in itself"),
    "endless config": (lambda place: os.truncate(place / "config.json", 2**40), "the guard reads at most"),
    "byte order mark": (rewritten(lambda raw: b"\xef\xbb\xbf" + raw), "not valid JSON: Unexpected UTF-8 BOM"),
    "UTF-16": (rewritten(lambda raw: raw.decode().encode("utf-16")), "not valid JSON: 'utf-8' codec"),
    "nested deeply": (rewritten(lambda raw: b"[" * 90_000 + b"]" * 90_000), "nested too deeply"),
    "5,000 digits": (rewritten(lambda raw: raw.replace(b"{", b'{"a": ' + b"9" * 5000 + b",", 1)), "4300 digits"),
    "rope base NaN": (keys(rope_theta=float("nan")), "rope_theta is nan, expected a positive number"),
    "nested rope base Inf": (
        keys(rope_parameters={"rope_theta": float("inf")}), "rope_parameters.rope_theta is inf, expected"
    ),
    "norm epsilon NaN": (keys(rms_norm_eps=float("nan")), "rms_norm_eps is nan"),
    "a thousand million layers": (keys(num_hidden_layers=10**9), "num_hidden_layers 1000000000, the file holds one"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_each_is_a_finding(folder: Path, name: str) -> None:
    change, says = ODD[name]
    change(folder / "drafter")
    done = check(folder)
    assert done.returncode == 65, done.stdout
    assert says in done.stdout


def test_line_ends_of_windows_are_json(folder: Path) -> None:
    rewritten(lambda raw: raw.replace(b"\n", b"\r\n"))(folder / "drafter")
    assert check(folder).returncode == 0


def test_a_pinned_drafter_that_is_a_fifo(folder: Path) -> None:
    """Hashing does not wait for a writer either."""
    instead(WEIGHTS, os.mkfifo)(folder / "drafter")
    profile = folder / "profile.toml"
    profile.write_text(f'[server]\nmodel_path = "{folder / "target"}"\n[drafter]\nsha256 = "{"0" * 64}"\n')
    assert check(folder, "--profile", str(profile)).returncode == 65


@pytest.mark.parametrize("name", ["x" * 5000, "/" + "x" * 5000])
def test_a_name_too_long_is_a_missing_one(folder: Path, name: str) -> None:
    done = command("inspect", name)
    assert (done.returncode, done.stdout) == (66, "")
    assert "Traceback" not in done.stderr


def test_what_inspect_prints_as_json_is_json(folder: Path) -> None:
    keys(rope_theta=float("nan"), other=[float("-inf")])(folder / "drafter")
    told = json.loads(
        command("inspect", str(folder / "drafter"), "--format", "json").stdout,
        parse_constant=lambda word: pytest.fail(f"{word} is no JSON"),
    )
    assert (told["config"]["rope_theta"], told["config"]["other"]) == ("nan", ["-inf"])


def test_inspect_says_what_is_wrong_with_the_target(folder: Path) -> None:
    instead("config.json", os.mkfifo)(folder / "target")
    done = command("inspect", str(folder / "drafter"), "--target", str(folder / "target"))
    assert done.returncode == 0
    assert "the target: config.json is not a regular file" in done.stderr
