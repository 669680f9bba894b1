"""d2t: each way of being wrong is told apart, in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from guarded_serve.checkpoint.vocab_map import Meaning, judge_map
from tests.support.checkpoints import DRAFT_VOCABULARY, TARGET_VOCABULARY, Data, drafter, kept_ids, maps, target
from tests.support.verdicts import deployment, errors, judge, message, warnings

IDS = kept_ids()
OFFSETS = [token - i for i, token in enumerate(IDS)]


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target().write(tmp_path_factory.mktemp("target"))


def test_a_right_map(tmp_path: Path, target_folder: Path) -> None:
    report = judge(deployment(target_folder, drafter().write(tmp_path / "drafter")))
    assert errors(report) == []
    assert warnings(report) == []


@pytest.mark.parametrize(
    ("d2t", "check", "says"),
    [
        (Data("I64", (40,), IDS), "drafter.map_values", "absolute token ids"),
        (Data("I64", (40,), list(range(40))), "drafter.map_values", "0, 1, 2, ..."),
        (Data("I64", (40,), [0] * 40), "drafter.map_values", "all zero with 40 of 96"),
        (Data("I64", (40,), [*OFFSETS[:-1], 200]), "drafter.map_values", "draft token 39 becomes 239"),
        (Data("I64", (40,), [*OFFSETS[:-1], -50]), "drafter.map_values", "draft token 39 becomes -11"),
        (Data("I64", (40,), [OFFSETS[0], -1, *OFFSETS[2:]]), "drafter.map_values", "1 of 40 ids are there twice"),
        (Data("I64", (39,), OFFSETS[:-1]), "drafter.map", "39 entries, draft_vocab_size is 40"),
        (Data("I64", (40, 1), OFFSETS), "drafter.map", "expected a vector"),
        (Data("F32", (40,), OFFSETS), "drafter.map", "d2t is F32"),
        (Data("BF16", (40,), OFFSETS), "drafter.map", "d2t is BF16"),
    ],
)
def test_wrong_maps(tmp_path: Path, target_folder: Path, d2t: Data, check: str, says: str) -> None:
    head = drafter()
    head.tensors["d2t"] = d2t
    report = judge(deployment(target_folder, head.write(tmp_path / "drafter")))
    assert errors(report) == [check]
    assert says in message(report, check)


def test_absolute_ids_without_a_mask(tmp_path: Path, target_folder: Path) -> None:
    head = drafter()
    del head.tensors["t2d"]
    head.tensors["d2t"] = Data("I64", (40,), IDS)
    report = judge(deployment(target_folder, head.write(tmp_path / "drafter")))
    assert errors(report) == ["drafter.map_values"]
    assert "absolute token ids" in message(report, "drafter.map_values")


def test_int32_is_a_warning(tmp_path: Path, target_folder: Path) -> None:
    head = drafter()
    head.tensors["d2t"] = Data("I32", (40,), OFFSETS)
    report = judge(deployment(target_folder, head.write(tmp_path / "drafter")))
    assert errors(report) == []
    assert warnings(report) == ["drafter.map"]


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (maps(IDS[:-1])["t2d"], "marks 39 tokens, d2t has 40"),
        (maps([*IDS[1:], next(i for i in range(96) if i not in IDS)])["t2d"], "differ in"),
    ],
)
def test_wrong_masks(tmp_path: Path, target_folder: Path, mask: Data, says: str) -> None:
    head = drafter()
    head.tensors["t2d"] = mask
    report = judge(deployment(target_folder, head.write(tmp_path / "drafter")))
    assert errors(report) == ["drafter.map_mask"]
    assert says in message(report, "drafter.map_mask")


def test_a_missing_map(tmp_path: Path, target_folder: Path) -> None:
    head = drafter()
    del head.tensors["d2t"], head.tensors["t2d"]
    report = judge(deployment(target_folder, head.write(tmp_path / "drafter")))
    assert errors(report) == ["drafter.map"]


def test_the_full_identity_is_right(tmp_path: Path, target_folder: Path) -> None:
    head = drafter(draft=TARGET_VOCABULARY)
    head.tensors["d2t"] = Data("I64", (TARGET_VOCABULARY,), [0] * TARGET_VOCABULARY)
    report = judge(deployment(target_folder, head.write(tmp_path / "drafter")))
    assert errors(report) == []
    assert warnings(report) == []


@pytest.mark.parametrize("seed", range(20))
def test_no_map_of_token_counts_reads_as_absolute(seed: int) -> None:
    ids = kept_ids(200 + seed, 1200)
    offsets = [token - i for i, token in enumerate(ids)]
    assert judge_map(offsets, 1200).meaning is Meaning.OFFSETS
    assert judge_map(ids, 1200).meaning is Meaning.ABSOLUTE
    assert DRAFT_VOCABULARY < 200
