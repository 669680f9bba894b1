"""How much the weights need, by tensor parallelism, and the check that refuses before anything loads."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.checks.gpu_fit import weights as check
from guarded_serve.checks.runner import run_checks
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.bag import Facts
from guarded_serve.facts.gather import gather
from guarded_serve.facts.gpu import Driver, Gpu, Memory
from guarded_serve.facts.gpu_choice import Device, GpuChoice, Rank
from guarded_serve.facts.gpu_weights import Part, WeightNeed, weight_need
from guarded_serve.facts.gpus import GpuFacts
from guarded_serve.facts.reading import Reading
from guarded_serve.findings import Outcome, Status
from tests.support.checkpoints import Data, compact, drafter, target
from tests.support.gpu_deployments import deployment

GIB = 2**30
WIDTHS = {"BF16": 2, "F32": 4, "F8_E4M3": 1}


def _model(folder: Path, tensors: dict[str, tuple[str, int]], **config: Any) -> str:
    """A folder with a sparse safetensors file of the given tensors (dtype, elements): no bytes are written."""
    folder.mkdir(exist_ok=True)
    header, at = {}, 0
    for name, (dtype, count) in tensors.items():
        end = at + count * WIDTHS[dtype]
        header[name] = {"dtype": dtype, "shape": [count], "data_offsets": [at, end]}
        at = end
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + at)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_target_and_drafter_are_shared_out(tmp_path: Path) -> None:
    target = _model(tmp_path / "target", {"a": ("BF16", 4 * GIB), "b": ("F8_E4M3", 4 * GIB)})
    drafter = _model(tmp_path / "drafter", {"fc.weight": ("BF16", GIB)})
    need = weight_need(
        deployment(
            model_path=target,
            speculative_algorithm="EAGLE3",
            speculative_draft_model_path=drafter,
            tp_size=4,
            pp_size=2,
        )
    )
    assert [(part.what, part.total // GIB, part.ranks) for part in need.parts] == [("target", 12, 8), ("drafter", 2, 4)]
    assert need.per_rank == 2 * GIB


def test_no_drafter_unless_there_is_an_algorithm(tmp_path: Path) -> None:
    target = _model(tmp_path / "target", {"a": ("BF16", GIB)})
    need = weight_need(deployment(model_path=target, speculative_draft_model_path="/no/such"))
    assert [part.what for part in need.parts] == ["target"]


@pytest.mark.parametrize(("dtype", "size"), [("auto", 2), ("bfloat16", 2), ("float32", 4)])
def test_a_wide_checkpoint_counts_as_it_is_served(tmp_path: Path, dtype: str, size: int) -> None:
    target = _model(tmp_path / "target", {"a": ("F32", GIB)})
    assert weight_need(deployment(model_path=target, dtype=dtype)).per_rank == size * GIB


def test_prediction_layers_are_not_loaded_by_the_target(tmp_path: Path) -> None:
    tensors = {"model.layers.60.w": ("BF16", GIB), "model.layers.61.w": ("BF16", GIB)}
    target = _model(tmp_path / "target", tensors, num_hidden_layers=61)
    assert weight_need(deployment(model_path=target)).per_rank == 2 * GIB


@pytest.mark.parametrize("compactly", [True, False], ids=["shards skimmed", "shards read in full"])
def test_a_sharded_target_counts_all_its_tensors(tmp_path: Path, compactly: bool) -> None:
    model = target(layers=8)
    whole = sum(math.prod(entry.shape) * 2 for entry in model.tensors.values())
    model.tensors |= {f"model.layers.{layer}.mtp.weight": Data("BF16", (1000,)) for layer in (8, 9)}
    model.tensors["model.wide.weight"] = Data("F32", (50,))
    folder = model.write(tmp_path / "target", shards=3)
    if compactly:
        for path in folder.glob("*.safetensors"):
            compact(path)
    drafts = drafter()
    head = drafts.write(tmp_path / "drafter")
    settings = deployment(
        model_path=str(folder), speculative_algorithm="EAGLE3", speculative_draft_model_path=str(head), tp_size=2
    )
    facts = gather(settings, ("target", "drafter"))
    assert facts.model is not None
    assert facts.model.target.weights is not None
    assert len(facts.model.target.weights.tensors) == 2  # the embedding and the head alone
    for need in (weight_need(settings, facts.model), weight_need(settings)):
        assert (need.parts[0].what, need.parts[0].total) == ("target", whole + 50 * 2)


def test_the_sizes_of_a_nested_config_count(tmp_path: Path) -> None:
    tensors = {"language_model.model.layers.1.w": ("BF16", GIB), "language_model.model.layers.2.w": ("BF16", GIB)}
    found = _model(tmp_path / "target", tensors, llm_config={"num_hidden_layers": 2})
    assert weight_need(deployment(model_path=found)).per_rank == 2 * GIB


def test_quantized_by_model_optimizer_is_quantized_already(tmp_path: Path) -> None:
    found = _model(tmp_path / "target", {"a": ("F8_E4M3", GIB)})
    (tmp_path / "target" / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": null}}')
    assert weight_need(deployment(model_path=found, quantization="modelopt")).shrinks is not None
    (tmp_path / "target" / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    assert weight_need(deployment(model_path=found, quantization="modelopt")).per_rank == GIB


def test_quantization_while_loading_makes_it_unknown(tmp_path: Path) -> None:
    plain = _model(tmp_path / "plain", {"a": ("BF16", GIB)})
    done = _model(tmp_path / "done", {"a": ("F8_E4M3", GIB)}, quantization_config={"quant_method": "fp8"})
    assert weight_need(deployment(model_path=plain, quantization="fp8")).shrinks == "--quantization fp8"
    assert weight_need(deployment(model_path=done, quantization="fp8")).per_rank == GIB
    assert weight_need(deployment(model_path=plain, load_format="dummy")).shrinks == "--load-format dummy"


def test_what_is_not_on_disk_is_said(tmp_path: Path) -> None:
    need = weight_need(deployment(model_path="meta-llama/Llama-3.1-8B-Instruct"))
    assert need.parts == ()
    assert "not on this disk" in need.unknown[0]


def _judge(need: WeightNeed, total_gib: int = 140, name: str = "NVIDIA H200", **server: Any) -> Outcome:
    memory = Memory(total_gib * GIB, 0, total_gib * GIB, 0)
    device = Device("GPU-a", 0)
    gpu = Gpu(0, "GPU-a", name, "0000:1a:00", memory=Reading.of(memory))
    facts = GpuFacts(Driver(gpus=(gpu,)), GpuChoice((device,), (Rank(device, 0, 0),)), weights=need)
    (outcome,) = (
        one for one in run_checks([check], Facts(deployment(**server), gpus=facts)).outcomes if one.check == check.name
    )
    return outcome


NEED = WeightNeed((Part("target", "/m", 595 * GIB, 4), Part("drafter", "/d", 4 * GIB, 4)))


def test_too_large_is_refused_with_the_sum() -> None:
    outcome = _judge(NEED)
    assert outcome.status is Status.FAIL
    assert outcome.findings[0].exit_code == ExitCode.UNFIT
    assert "target 595.0 GiB / 4 = 148.8 GiB + drafter 4.0 GiB / 4 = 1.0 GiB" in outcome.findings[0].message


def test_what_fits_shows_the_sum_too() -> None:
    outcome = _judge(NEED, total_gib=192)
    assert outcome.status is Status.PASS
    assert "149.8 GiB on each GPU" in outcome.findings[0].message


def test_mem_fraction_static_is_the_limit_where_it_is_set() -> None:
    assert _judge(NEED, total_gib=192, mem_fraction_static=0.9).status is Status.PASS
    outcome = _judge(NEED, total_gib=192, mem_fraction_static=0.7)
    assert outcome.status is Status.FAIL
    assert "mem_fraction_static 0.7 of 192.0 GiB" in outcome.findings[0].message


def test_nothing_to_say_is_skipped() -> None:
    assert _judge(WeightNeed(shrinks="--quantization fp8")).status is Status.SKIPPED
    assert _judge(WeightNeed(unknown=("x",))).status is Status.SKIPPED
