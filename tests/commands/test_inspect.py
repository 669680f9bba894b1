"""`guarded-serve inspect`: nothing is cut off, two drafters stand side by side, a missing one is 66."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkpoints import Data, drafter, kept_ids, target

PROGRAM = [sys.executable, "-c", "from guarded_serve.cli import run; run()", "inspect"]


def inspect(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("drafters")
    target().write(root / "target")
    drafter().write(root / "good")
    other = drafter()
    other.tensors["d2t"] = Data("I64", (40,), kept_ids())
    long = "a_very_long_name." * 40 + "weight"
    other.tensors[long] = Data("BF16", (2, 3))
    other.tensors["bad\x1b[31m\nname"] = Data("BF16", (1,))
    other.config["rope_theta"] = 5e5
    other.write(root / "other")
    return root


def test_every_tensor_in_full(folder: Path) -> None:
    done = inspect(folder / "other", "--sglang", "0.5.23")
    assert done.returncode == 0
    assert "a_very_long_name." * 40 + "weight" in done.stdout
    for name in ("fc.weight", "midlayer.self_attn.q_proj.weight", "d2t", "t2d"):
        assert f" {name} " in done.stdout
    assert "..." not in done.stdout
    assert "\x1b" not in done.stdout
    assert "bad\\x1b[31m\\nname" in done.stdout


def test_layers_need_a_target(folder: Path) -> None:
    alone = json.loads(inspect(folder / "good", "--format", "json").stdout)
    assert alone["layers"]["captured"] is None
    told = json.loads(inspect(folder / "good", "--target", folder / "target", "--format", "json").stdout)
    assert told["layers"]["nested_ids"] == [1, 3, 4]
    assert told["layers"]["captured"] == [2, 4, 5]
    assert told["map"]["reads_as"] == "offsets"
    assert {entry["name"]: entry["use"] for entry in told["tensors"]}["d2t"] == "the map"
    assert told["parameters"] == sum(
        entry["bytes"] // {"BF16": 2, "I64": 8, "BOOL": 1}[entry["dtype"]] for entry in told["tensors"]
    )


def test_layers_under_another_name_are_layers(tmp_path: Path) -> None:
    model = target(architectures=["LongcatFlashForCausalLM"])
    model.config["num_layers"] = model.config.pop("num_hidden_layers")
    model.write(tmp_path / "longcat")
    drafter().write(tmp_path / "drafter")
    told = json.loads(inspect(tmp_path / "drafter", "--target", tmp_path / "longcat", "--format", "json").stdout)
    assert told["layers"]["target_layers"] == 8


def test_two_side_by_side(folder: Path) -> None:
    done = inspect(folder / "good", "--against", folder / "other", "--target", folder / "target")
    marked = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("* ")]
    assert "rope_theta" in marked
    assert "reads_as" in marked
    assert "hidden_size" not in marked
    assert "fc.weight" not in marked


def test_missing_and_broken(folder: Path, tmp_path: Path) -> None:
    assert inspect(tmp_path / "nowhere").returncode == 66
    path = drafter().write(tmp_path / "cut") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    broken = inspect(tmp_path / "cut")
    assert broken.returncode == 65
    assert "5 bytes shorter than its header says" in broken.stdout


def test_what_check_only_warns_about_is_no_refusal(tmp_path: Path) -> None:
    folder = drafter().write(tmp_path / "drafter", shards=3)
    drafter().write(folder)  # one more file, which the index does not name
    done = inspect(folder)
    assert done.returncode == 0, done.stderr
    assert "model.safetensors is in the folder but not in model.safetensors.index.json" in done.stdout
