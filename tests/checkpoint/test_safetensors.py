"""Headers: whole ones are read, and every way of being broken is a problem with its own name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from guarded_serve.checkpoint.safetensors import HEADER_LIMIT, read_shard
from tests.support.checkpoints import Data, write_safetensors

ROOT = Path(__file__).resolve().parents[2]


def write(path: Path, header: object, body: bytes = b"", *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + body)
    return path


def kinds(path: Path) -> list[str]:
    return [problem.kind for problem in read_shard(path).problems]


def entry(dtype: str = "F32", shape: tuple[int, ...] = (2,), offsets: tuple[int, int] = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": Data("F32", (2, 3)), "b": Data("I64", (4,))}, {"format": "pt"})
    shard = read_shard(path)
    assert shard.problems == ()
    assert shard.tensors["a"].shape == (2, 3)
    assert shard.tensors["b"].end == path.stat().st_size
    assert shard.metadata == {"format": "pt"}


def test_agrees_with_the_library(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": Data("BF16", (3,)), "empty": Data("F32", (0, 4)), "scalar": Data("F64", ())})
    ours = read_shard(path)
    with safetensors.safe_open(path, framework="np") as theirs:
        assert set(theirs.keys()) == set(ours.tensors)
        for name, tensor in ours.tensors.items():
            assert tuple(theirs.get_slice(name).get_shape()) == tensor.shape


@pytest.mark.parametrize(
    ("header", "body", "kind"),
    [
        ({"a": entry()}, b"\0" * 7, "truncated"),
        ({"a": entry()}, b"\0" * 9, "trailing-bytes"),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, b"\0" * 12, "bad-offsets"),
        ({"a": entry(offsets=(4, 12))}, b"\0" * 12, "bad-offsets"),
        ({"a": entry(offsets=(8, 0))}, b"\0" * 8, "bad-header"),
        ({"a": entry(offsets=(0, 4))}, b"\0" * 4, "bad-header"),
        ({"a": entry("F128")}, b"\0" * 8, "bad-header"),
        ({"a": {**entry(), "shape": [-2]}}, b"\0" * 8, "bad-header"),
        ({"a": {**entry(), "shape": [2.0]}}, b"\0" * 8, "bad-header"),
        ({"a": {**entry(), "shape": [True, 2]}}, b"\0" * 8, "bad-header"),
        ({"a": {**entry(), "shape": [10**18] * 17}}, b"\0" * 8, "bad-header"),
        ({"a": 7}, b"", "bad-header"),
        ({"__metadata__": 3}, b"", "bad-header"),
        ([], b"", "not-safetensors"),
        (b'{"a": ', b"", "bad-json"),
        (b'{"a":' + b"[" * 100_000, b"", "bad-json"),
        (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
         b"\0" * 8, "duplicate-name"),
    ],
)  # fmt: skip
def test_broken_headers(tmp_path: Path, header: object, body: bytes, kind: str) -> None:
    assert kinds(write(tmp_path / "x.safetensors", header, body)) == [kind]


def test_out_of_order_entries_are_right(tmp_path: Path) -> None:
    assert kinds(write(tmp_path / "x.safetensors", {"b": entry(offsets=(8, 16)), "a": entry()}, b"\0" * 16)) == []


@pytest.mark.parametrize("length", [2**63, 2**40, HEADER_LIMIT + 1, 1000])
def test_absurd_header_lengths(tmp_path: Path, length: int) -> None:
    path = write(tmp_path / "x.safetensors", b"{}", length=length)
    assert kinds(path) == ["truncated"]
    with path.open("r+b") as file:
        file.truncate(HEADER_LIMIT + 100)
    assert kinds(path)[0] in ("truncated", "header-too-long", "bad-json")


def test_files_that_are_no_files(tmp_path: Path) -> None:
    pointer = tmp_path / "lfs"
    pointer.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 2373654528\n")
    (problem,) = read_shard(pointer).problems
    assert problem.kind == "lfs-pointer"
    assert "2373654528" in problem.message
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "empty").touch()
    assert kinds(tmp_path / "loop") == ["link-loop"]
    assert kinds(tmp_path / "pipe") == ["not-a-file"]
    assert kinds(tmp_path / "folder") == ["not-a-file"]
    assert kinds(tmp_path / "dangling") == ["missing"]
    assert kinds(tmp_path / "empty") == ["truncated"]


def test_a_file_of_somebody_else(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", b"{}")
    path.chmod(0)
    if os.geteuid() != 0:
        assert kinds(path) == ["no-permission"]
        return
    with tempfile.TemporaryDirectory() as open_to_all:  # root reads everything: ask as nobody
        Path(open_to_all).chmod(0o755)
        path = path.rename(Path(open_to_all) / path.name)
        code = f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        code += "from pathlib import Path; from guarded_serve.checkpoint.safetensors import read_shard\n"
        code += "os.setuid(65534)\n"
        code += f"print(read_shard(Path({str(path)!r})).problems[0].kind)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.stdout.strip() == "no-permission", done.stderr
