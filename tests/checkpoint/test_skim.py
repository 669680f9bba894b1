"""The quick reading of large targets says exactly what the full one says, on whole and on broken files."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guarded_serve.checkpoint import safetensors, weights
from guarded_serve.checkpoint.safetensors import read_shard, skim_shard
from guarded_serve.checkpoint.weights import read_weights
from tests.support.checkpoints import Data, compact, target, write_safetensors

KEPT = frozenset({"model.embed_tokens.weight", "lm_head.weight"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = target(layers=4, hidden=16).write(tmp_path_factory.mktemp("target"), shards=5)
    for path in root.glob("*.safetensors"):
        compact(path)
    return root


def test_a_whole_folder_is_never_read_in_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = read_weights(folder)

    def refuse(path: Path) -> None:
        raise AssertionError(path)

    monkeypatch.setattr(safetensors, "read_shard", refuse)
    monkeypatch.setattr(weights, "read_shard", refuse)
    quick = read_weights(folder, KEPT)
    assert quick.problems == full.problems == ()
    assert quick.tensors == {name: full.tensors[name] for name in KEPT}
    assert sum(shard.count for shard in quick.shards) == len(full.tensors)
    assert quick.sizes == full.sizes
    assert sum(quick.sizes.values()) == sum(tensor.nbytes for tensor in full.tensors.values())


def test_the_library_writes_such_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("safetensors")
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file  # noqa: PLC0415

    path = tmp_path / "model.safetensors"
    save_file(
        {"b": torch.zeros(3, 2), "a": torch.zeros(4, dtype=torch.bfloat16), "c": torch.zeros(())},
        path,
        {"format": "pt"},
    )
    expected = read_shard(path)
    monkeypatch.setattr(safetensors, "read_shard", None)
    quick = skim_shard(path, ["a", "b", "c"])
    assert quick.tensors == expected.tensors
    assert (quick.count, quick.names) == (expected.count, expected.names)


@settings(max_examples=400, deadline=None, derandomize=True, database=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(seed=st.integers(0, 2**32), flips=st.integers(1, 3), digits=st.booleans())
def test_agrees_on_mutated_headers(tmp_path: Path, seed: int, flips: int, digits: bool) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": Data("BF16", (4, 6)), "lm_head.weight": Data("F32", (2, 3)), "c": Data("I64", (5,))})
    compact(path)
    noise = random.Random(seed)
    raw = bytearray(path.read_bytes())
    size = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(flips):
        place = noise.randrange(8, size)
        if digits:
            place = noise.choice([i for i in range(8, size) if chr(raw[i]).isdigit()] or [place])
            raw[place] = noise.choice(b"0123456789 ,]")
        else:
            raw[place] = noise.randrange(256)
    path.write_bytes(raw)
    full, quick = read_shard(path), skim_shard(path, KEPT)
    assert quick.problems == full.problems
    assert dict(quick.tensors).keys() & KEPT == full.tensors.keys() & KEPT
    assert all(quick.tensors[name] == full.tensors[name] for name in quick.tensors)


@pytest.mark.parametrize(
    "change", ["missing shard", "extra tensor", "tensor of another shard", "cut", "unlisted", "odd json"]
)
def test_faults_of_a_folder_are_named_as_ever(folder: Path, tmp_path: Path, change: str) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    shards = sorted(tmp_path.glob("*.safetensors"))
    index = tmp_path / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    names = document["weight_map"]
    if change == "missing shard":
        shards[2].unlink()
    elif change == "extra tensor":
        names["model.norm.bias"] = shards[0].name
    elif change == "tensor of another shard":
        first, second = (next(name for name in names if names[name] == shard.name) for shard in shards[:2])
        names[first], names[second] = names[second], names[first]
    elif change == "cut":
        shards[1].write_bytes(shards[1].read_bytes()[:-2])
    elif change == "unlisted":
        (tmp_path / "other.safetensors").write_bytes(shards[0].read_bytes())
    index.write_text(json.dumps(document))
    if change == "odd json":
        index.write_text(index.read_text().replace('"weight_map"', '"weight_map":7,"x"'))
    full, quick = read_weights(tmp_path), read_weights(tmp_path, KEPT)
    assert full.problems
    assert quick.problems == full.problems
