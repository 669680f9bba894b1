"""Origin: what is told without refusing, and the pin that must hold."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.support.checkpoints import Data, drafter, kept_ids, maps, target
from tests.support.grid import IDS, build, started_from_target
from tests.support.verdicts import deployment, errors, judge, message


def test_every_difference_from_the_reference(tmp_path: Path) -> None:
    target().write(tmp_path / "target")
    drafter().write(tmp_path / "reference")
    new = drafter(rope_theta=1e6, intermediate=64)
    new.tensors |= maps([*kept_ids()[:-1], 94])
    new.tensors["confidence.bias"] = Data("BF16", (1,))
    new.write(tmp_path / "new")
    profile = {"drafter": {"reference": str(tmp_path / "reference")}, "preflight": {"ignore": ["drafter.unused"]}}
    report = judge(deployment(tmp_path / "target", tmp_path / "new", profile=profile))
    assert errors(report) == []
    told = message(report, "drafter.reference").splitlines()
    assert told == [
        "config.json: intermediate_size differs from the reference",
        "config.json: rope_theta differs from the reference",
        "confidence.bias is in this drafter only",
        "midlayer.mlp.down_proj.weight differs from the reference",
        "midlayer.mlp.gate_proj.weight differs from the reference",
        "midlayer.mlp.up_proj.weight differs from the reference",
        "the draft vocabularies share 39 of 40 tokens with the reference",
    ]


def test_the_pinned_file_passes(tmp_path: Path) -> None:
    target().write(tmp_path / "target")
    folder = drafter().write(tmp_path / "drafter")
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    report = judge(deployment(tmp_path / "target", folder, profile={"drafter": {"sha256": digest}}))
    assert errors(report) == []
    raw = bytearray((folder / "model.safetensors").read_bytes())
    raw[-500] ^= 1  # one bit of lm_head
    (folder / "model.safetensors").write_bytes(raw)
    report = judge(deployment(tmp_path / "target", folder, profile={"drafter": {"sha256": digest}}))
    assert errors(report) == ["drafter.sha256"]


def test_head_rows_as_evidence(tmp_path: Path) -> None:
    target().write(tmp_path / "target")
    report = judge(deployment(tmp_path / "target", started_from_target(IDS).write(tmp_path / "started")))
    assert "look like the target's rows that the map names" in message(report, "drafter.head_rows")
    report = judge(deployment(tmp_path / "target", drafter().write(tmp_path / "own")))
    assert "no evidence for or against the map" in message(report, "drafter.head_rows")
    wrong = started_from_target(IDS)
    wrong.tensors |= maps(list(range(40)))
    wrong.tensors["d2t"] = Data("I64", (40,), IDS)
    del wrong.tensors["t2d"]
    report = judge(deployment(tmp_path / "target", wrong.write(tmp_path / "absolute")))
    assert errors(report) == ["drafter.map_values"]


def test_ten_tokens_are_shown(tmp_path: Path) -> None:
    built = build("V another tokenizer", tmp_path)
    report = judge(deployment(built.target, built.drafter))
    (finding,) = [finding for finding in report.findings if finding.check == "drafter.tokenizer"]
    assert finding.found is not None
    assert finding.found.count(" against ") == 10
    assert finding.found.endswith("; ...")
    assert errors(report) == []


def test_tokens_that_one_tokenizer_lacks_are_told(tmp_path: Path) -> None:
    for name, owner in (("target", "the target alone"), ("drafter", "the drafter's own tokenizer alone")):
        built = build(f"V STANDALONE, tokens of the {name} alone", tmp_path / name)
        report = judge(deployment(built.target, built.drafter, **built.settings))
        assert f"6 tokens that can be drafted are in the tokenizer of {owner}" in message(report, "drafter.tokenizer")


def test_numbers_that_are_not_looked_through_are_named(tmp_path: Path) -> None:
    head = drafter(quantization_config={"quant_method": "fp8"})
    head.tensors["fc.weight"] = Data("F8_E4M3", (32, 96))
    target().write(tmp_path / "target")
    path = head.write(tmp_path / "fp4") / "model.safetensors"
    raw = path.read_bytes()
    length = 8 + int.from_bytes(raw[:8], "little")
    eight = b'"dtype": "F8_E4M3", "shape": [32, 96]'
    assert eight in raw[:length]
    header = raw[:length].replace(eight, b'"dtype": "F4", "shape": [32, 192]').ljust(length)
    path.write_bytes(header + raw[length:])
    report = judge(deployment(tmp_path / "target", path.parent), deep=True)
    assert "tensors of F4 are not looked through for NaN and Inf" in message(report, "drafter.numbers")
    report = judge(deployment(tmp_path / "target", drafter().write(tmp_path / "bf16")), deep=True)
    assert "not looked through" not in message(report, "drafter.numbers")
