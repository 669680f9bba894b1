"""Which GPUs: CUDA's reading of its variable, SGLang's arithmetic, and the environment that the server gets."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.environment import server_view
from guarded_serve.facts.gather import gather
from guarded_serve.facts.gpu_choice import Card, GpuChoice, choose_gpus, other_device, ranks_here
from guarded_serve.profile.deployment import Setting
from guarded_serve.profile.model import Profile
from tests.support.gpu_deployments import deployment

CARDS = tuple(Card(index, f"GPU-{letter * 4}0000-{index}", "NVIDIA H200") for index, letter in enumerate("abcdefgh"))
TWINS = (Card(0, "GPU-aaaa1111"), Card(1, "GPU-aaaa2222"))
SPLIT = (Card(0, "GPU-aaaa", mig=("MIG-1111", "MIG-2222")),)


def _choose(
    variables: Mapping[str, str] | None = None,
    cards: Sequence[Card] = CARDS,
    devices: Any = "visible",
    **server: Any,
) -> GpuChoice:
    return choose_gpus(deployment({"devices": devices}, **server), cards, variables or {})


def _indices(choice: GpuChoice) -> list[int]:
    assert not choice.problems, choice.problems
    return [rank.device.index for rank in choice.ranks]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("2", [2]),
        ("GPU-cccc0000-2", [2]),
        ("GPU-c", [2]),
        ("gpu-CCCC", [2]),
        (" 3 ,1", [3]),
        ("5,-1,0", [5]),
    ],
)
def test_entries_of_the_variable(variable: str, expected: list[int]) -> None:
    assert _indices(_choose({"CUDA_VISIBLE_DEVICES": variable})) == expected


def test_order_of_the_variable_is_the_order_of_the_ranks() -> None:
    choice = _choose({"CUDA_VISIBLE_DEVICES": "7,GPU-b,3"}, tp_size=3)
    assert _indices(choice) == [7, 1, 3]
    assert choice.environment == {"CUDA_VISIBLE_DEVICES": "7,1,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("variable", "cards", "says"),
    [
        ("", CARDS, "hides every GPU"),
        ("-1", CARDS, "hides every GPU"),
        ("NoDevFiles", CARDS, "hides every GPU"),
        ("9", CARDS, "there is no GPU 9"),
        ("0,,1", CARDS, "(empty entry)"),
        ("0,x", CARDS, "there is no GPU x"),
        ("GPU-zz", CARDS, "there is no GPU GPU-zz"),
        ("GPU-aaaa", TWINS, "beginning of 2 UUIDs"),
        ("1,1", CARDS, "twice"),
        ("1,GPU-b", CARDS, "twice"),
        ("MIG-9", SPLIT, "there is no GPU MIG-9"),
    ],
)
def test_what_cuda_would_hide_in_silence_is_refused(variable: str, cards: Sequence[Card], says: str) -> None:
    choice = _choose({"CUDA_VISIBLE_DEVICES": variable}, cards)
    (problem,) = choice.problems
    assert says in problem.message
    assert problem.exit_code == ExitCode.USAGE
    assert not choice.ranks


def test_one_rank_gets_uuids_that_no_order_can_change() -> None:
    choice = _choose({"CUDA_VISIBLE_DEVICES": "3,4"})
    assert choice.environment["CUDA_VISIBLE_DEVICES"] == f"{CARDS[3].uuid},{CARDS[4].uuid}"


def test_the_profile_chooses_among_what_is_visible() -> None:
    assert _indices(_choose(devices=[6, "GPU-b"], tp_size=2)) == [6, 1]
    assert _indices(_choose({"CUDA_VISIBLE_DEVICES": "5,6"}, devices=[6])) == [6]
    (problem,) = _choose({"CUDA_VISIBLE_DEVICES": "5,6"}, devices=[0]).problems
    assert "hides" in problem.message
    assert problem.exit_code == ExitCode.PROFILE
    (problem,) = _choose(devices=[0, 12]).problems
    assert problem.exit_code == ExitCode.PROFILE


def test_base_and_step() -> None:
    assert _indices(_choose(tp_size=2, base_gpu_id=4)) == [4, 5]
    assert _indices(_choose(tp_size=4, gpu_id_step=2)) == [0, 2, 4, 6]
    assert _choose(tp_size=4, gpu_id_step=2, base_gpu_id=2).problems


def test_replicas_stand_one_after_another() -> None:
    choice = _choose(tp_size=2, dp_size=3)
    assert _indices(choice) == [0, 1, 2, 3, 4, 5]
    assert [rank.dp_rank for rank in choice.ranks] == [0, 0, 1, 1, 2, 2]


def test_data_parallel_attention_lives_inside_tensor_parallelism() -> None:
    assert _indices(_choose(tp_size=8, dp_size=8, enable_dp_attention=True)) == list(range(8))
    assert _indices(_choose(tp_size=8, attn_dp_size=8)) == list(range(8))


def test_each_node_has_its_own_part() -> None:
    assert _indices(_choose(tp_size=16, nnodes=2, node_rank=1)) == list(range(8))
    assert [rank.tp_rank for rank in _choose(tp_size=16, nnodes=2, node_rank=1).ranks] == list(range(8, 16))


@pytest.mark.parametrize(
    "server",
    [
        {"tp_size": 16},
        {"tp_size": 0},
        {"tp_size": 3, "nnodes": 2, "node_rank": 0},
        {"tp_size": 2, "nnodes": 2, "node_rank": 2},
        {"tp_size": 2, "pp_size": 2, "gpu_id_step": 2},  # SGLang's arithmetic puts two ranks on one card
    ],
)
def test_impossible_combinations_are_refused(server: dict[str, int]) -> None:
    (problem,) = _choose(**server).problems
    assert problem.exit_code == ExitCode.USAGE


def test_indices_with_different_cards_and_no_order_are_said() -> None:
    mixed = (Card(0, "GPU-a", "RTX 3080"), Card(1, "GPU-b", "RTX 3090"))
    assert "PCI order" in _choose({"CUDA_VISIBLE_DEVICES": "0"}, mixed).notes[0]
    assert not _choose({"CUDA_VISIBLE_DEVICES": "GPU-a"}, mixed).notes
    assert not _choose({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, mixed).notes


@pytest.mark.parametrize(("device", "other"), [("cpu", "cpu"), ("npu", "npu"), ("cuda", None), (None, None)])
def test_only_cuda_is_looked_at(device: str | None, other: str | None) -> None:
    assert other_device(deployment(device=device), {}) == other


def test_cpu_kernels_mean_the_cpu() -> None:
    asked = deployment()
    assert other_device(replace(asked, profile=Profile.model_validate({"engine": {"cpu_kernels": True}})), {}) == "cpu"


@pytest.mark.parametrize(
    ("ours", "profile", "other"),
    [
        ("1", None, "cpu"),
        (None, "1", "cpu"),
        ("1", "0", None),
        (None, "0", None),
        ("0", None, None),
        (None, None, None),
    ],
)
def test_the_cpu_engine_is_asked_for_in_the_environment(
    ours: str | None, profile: str | None, other: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    if ours is not None:
        monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", ours)
    asked = deployment()
    if profile is not None:
        asked = replace(asked, environment={"SGLANG_USE_CPU_ENGINE": Setting(profile, "profile")})
    assert gather(asked, ()).other_device == other
    assert other_device(replace(asked, server=deployment(device="cuda").server), server_view(asked)) is None


@pytest.mark.parametrize(
    ("server", "ranks"),
    [
        ({}, 1),
        ({"tp_size": 4, "pp_size": 2}, 8),
        ({"tp_size": 2, "dp_size": 3}, 6),
        ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, 8),
        ({"tp_size": 16, "nnodes": 2, "node_rank": 1}, 8),
        ({"tp_size": 3, "nnodes": 2}, 1),  # impossible
    ],
)
def test_ranks_here(server: dict[str, Any], ranks: int) -> None:
    assert ranks_here(deployment(**server)) == ranks


PLACED = [
    {"tp_size": 8},
    {"tp_size": 4, "pp_size": 2},
    {"tp_size": 2, "pp_size": 4},
    {"tp_size": 4, "gpu_id_step": 2},
    {"tp_size": 2, "base_gpu_id": 5},
    {"tp_size": 8, "nnodes": 2, "node_rank": 1},
    {"tp_size": 4, "pp_size": 4, "nnodes": 2, "node_rank": 1},
    {"tp_size": 8, "pp_size": 2, "nnodes": 4, "node_rank": 3},
]


def _installed() -> Path:
    """SGLang's folder, found without importing it."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        pytest.skip("SGLang is not installed")
    return Path(spec.origin).parent / "srt"


def _rank_ranges(source: str, parallel: SimpleNamespace) -> tuple[range, range, int, int]:
    """Run the installed `_calculate_rank_ranges`, cut out of its module."""
    tree = ast.parse(source)
    (function,) = (
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "_calculate_rank_ranges"
    )
    names: dict[str, Any] = {"get_parallel": lambda: parallel, "Tuple": tuple}
    exec(compile(ast.Module([function], []), "engine.py", "exec"), names)
    found: tuple[range, range, int, int] = names["_calculate_rank_ranges"](parallel.node_rank)
    return found


@pytest.mark.parametrize("sizes", PLACED, ids=str)
def test_places_are_those_of_the_installed_sglang(sizes: dict[str, int]) -> None:
    """Held against `_calculate_rank_ranges` and the expression for gpu_id in the installed engine.py."""
    source = (_installed() / "entrypoints" / "engine.py").read_text()
    expression = re.search(r"gpu_id = (\(\n +get_device\(\)\.base_gpu_id.*?\n +\))\n", source, re.DOTALL)
    assert expression is not None
    parallel = SimpleNamespace(**{"tp_size": 1, "pp_size": 1, "nnodes": 1, "node_rank": 0, **sizes})
    device = SimpleNamespace(base_gpu_id=sizes.get("base_gpu_id", 0), gpu_id_step=sizes.get("gpu_id_step", 1))
    stages, ranks, pp_size_per_node, tp_size_per_node = _rank_ranges(source, parallel)
    names = {"get_device": lambda: device, "pp_size_per_node": pp_size_per_node, "tp_size_per_node": tp_size_per_node}
    theirs = [
        (eval(expression.group(1), {**names, "pp_rank": stage, "tp_rank": rank}), rank, stage)
        for stage in stages
        for rank in ranks
    ]
    many = [Card(index, f"GPU-{index:02d}") for index in range(16)]
    ours = [(rank.device.index, rank.tp_rank, rank.pp_rank) for rank in _choose(None, many, **sizes).ranks]
    assert ours == theirs


def test_the_installed_sglang_still_needs_indices_for_several_ranks() -> None:
    """The reason for indices instead of UUIDs; when this fails, UUIDs can be given to all."""
    source = (_installed() / "distributed" / "device_communicators" / "custom_all_reduce_utils.py").read_text()
    assert 'map(int, cuda_visible_devices.split(","))' in source


def test_the_balance_rule_is_that_of_the_installed_sglang() -> None:
    source = (_installed() / "distributed" / "bootstrap.py").read_text()
    assert "pre_model_load_memory < local_gpu_memory * 0.9" in source
    assert "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK" in source
