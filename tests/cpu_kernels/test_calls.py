"""Every operator that SGLang's EAGLE and NGRAM path takes is here, in the form that SGLang calls.

Held against the installed SGLang by reading its source, and against the calls recorded from 0.5.16 to 0.5.23.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sgl_kernel import _missing, _operators

from tests.support.sgl_kernel_calls import Call, Uses, read

RECORDED = json.loads((Path(__file__).parent / "calls.json").read_text())
VERSIONS = sorted({version for entry in RECORDED for version in entry["versions"]})
SAMPLED = {"top_k_renorm_prob", "top_p_renorm_prob", "tree_speculative_sampling_target_only"}
"""Sampled verification of 0.5.21 and 0.5.22, never reached: on a CPU every verification is greedy."""


@pytest.fixture(scope="module")
def installed() -> Uses:
    """What the installed SGLang takes; its package is found without importing it."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("SGLang is not installed")
    return read(Path(next(iter(spec.submodule_search_locations))))


def _refusal(operator: Callable[..., Any], call: Call) -> str | None:
    """Why the operator does not take a call of this form, None when it does."""
    try:
        inspect.signature(operator).bind(*call.arguments, **dict.fromkeys(call.keywords))
    except TypeError as error:
        return f"{call.place}: {call.operator}: {error}"
    return None


def _operator(name: str, version: str) -> Callable[..., Any]:
    return {**_operators.FUNCTIONS, **_operators.torch_ops(version)}[name]


def test_every_name_that_the_installed_sglang_takes_is_here(installed: Uses) -> None:
    assert len(installed.imports) >= 11
    assert installed.torch_ops == {"decode_attention_cpu", "extend_attention_cpu"}
    for module, name in installed.imports:
        if name not in SAMPLED:
            assert getattr(importlib.import_module(module), name) is _operators.FUNCTIONS[name], (module, name)
    for name in installed.torch_ops:
        assert callable(getattr(torch.ops.sgl_kernel, name))


def test_the_installed_sglang_calls_them_as_they_are(installed: Uses) -> None:
    version = importlib.metadata.version("sglang")
    assert {call.operator for call in installed.calls} >= {name for _, name in installed.imports} - SAMPLED
    refusals = [
        refusal
        for call in installed.calls
        if call.operator not in SAMPLED and (refusal := _refusal(_operator(call.operator, version), call))
    ]
    assert refusals == []


@pytest.mark.parametrize("version", VERSIONS)
def test_each_recorded_version_finds_its_form(version: str) -> None:
    calls = [
        Call(entry["operator"], tuple(entry["arguments"]), tuple(entry["keywords"]), version)
        for entry in RECORDED
        if version in entry["versions"] and entry["operator"] not in SAMPLED
    ]
    assert len(calls) >= 13
    assert [refusal for call in calls if (refusal := _refusal(_operator(call.operator, version), call))] == []


@pytest.mark.parametrize(("version", "as_if"), [("0.5.18", "0.5.19"), ("0.5.19", "0.5.20"), ("0.5.23", "0.5.17")])
def test_another_versions_form_is_refused(version: str, as_if: str) -> None:
    entry = next(e for e in RECORDED if e["operator"] == "extend_attention_cpu" and version in e["versions"])
    call = Call(entry["operator"], tuple(entry["arguments"]), (), version)
    assert _refusal(_operator(call.operator, as_if), call) is not None


ARGUMENT_OF = {  # how SGLang writes an argument -> our parameter for it
    "layer.scaling": "sm_scale",
    "layer.logit_cap": "logit_cap",
    "layer.is_cross_attention": "is_cross_attn",
    "layer.sliding_window_size + 1": "sliding_window_size",
    "forward_batch.encoder_lens": "encoder_lens",
    "sinks": "sinks",
    "tree_mask": "tree_mask",
    "is_causal": "is_causal",
    "key_scale": "k_scale",
    "value_scale": "v_scale",
    "key_buffer": "k_buffer",
    "value_buffer": "v_buffer",
    "req_to_token": "req_to_token",
    "seq_lens": "seq_lens",
    "extend_seq_lens": "extend_seq_lens",
    "extend_start_loc": "extend_start_loc",
    "max_extend_len": "max_len_extend",
    "attn_logits": "attn_logits",
    "cache_loc": "loc",
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("operator", ["decode_attention_cpu", "extend_attention_cpu"])
def test_arguments_of_attention_stand_in_their_places(operator: str, version: str) -> None:
    """The number alone would not show two arguments that changed places."""
    entry = next(e for e in RECORDED if e["operator"] == operator and version in e["versions"])
    parameters = list(inspect.signature(_operator(operator, version)).parameters)
    assert len(parameters) == len(entry["arguments"])
    for written, parameter in zip(entry["arguments"], parameters, strict=True):
        assert ARGUMENT_OF.get(written, parameter) == parameter


@pytest.mark.parametrize(
    ("version", "scales", "causal"),
    [("0.5.1", False, False), ("0.5.17", False, False), ("0.5.19.post1", False, True), ("0.5.20rc1", True, True),
     ("0.6.0", True, True), ("unknown", True, True)],
)  # fmt: skip
def test_a_version_that_was_never_seen_gets_the_nearest_form(version: str, scales: bool, causal: bool) -> None:
    parameters = inspect.signature(_operators.torch_ops(version)["extend_attention_cpu"]).parameters
    assert ("k_scale" in parameters, "is_causal" in parameters) == (scales, causal)


def test_leaving_scales_out_changes_nothing_else() -> None:
    """The older form computes what the newest does with scales of 1."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 1, 4)
    table, rows, lengths = torch.arange(6, dtype=torch.int32).view(2, 3), torch.arange(2), torch.tensor([1, 3])
    results = []
    for version, scales in (("0.5.17", ()), ("0.5.23", (1.0, 1.0))):
        keys, values, output = torch.ones(6, 1, 4), torch.ones(6, 1, 4), torch.empty(2, 1, 4)
        _operators.torch_ops(version)["decode_attention_cpu"](
            query, keys, values, *scales, output, key, value, torch.tensor([0, 5]), torch.empty(0),
            table, rows, lengths, 0.5, 0.0, False, 0, None, None,
        )  # fmt: skip
        results.append(output)
    assert results[0].equal(results[1])


def test_a_missing_operator_is_named_with_the_version() -> None:
    version = importlib.metadata.version("sglang")
    sentence = rf"sgl_kernel\.topk_softmax is not in guarded_serve/cpu_kernels.* SGLang {version} asked for it"
    for module in ("sgl_kernel", "sgl_kernel.speculative"):
        operator = getattr(importlib.import_module(module), "topk_softmax")  # noqa: B009
        with pytest.raises(_missing.MissingOperator, match=sentence):
            operator(1, x=2)
    with pytest.raises(AttributeError, match=sentence):
        _ = torch.ops.sgl_kernel.topk_softmax
    assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")  # SGLang takes this as: the CPU has no AMX


def test_another_call_is_named_with_the_version() -> None:
    version = importlib.metadata.version("sglang")
    sentence = rf"SGLang {version} calls sgl_kernel\.fill_bonus_tokens_cpu with other arguments .*'accept_stride'"
    with pytest.raises(_missing.UnexpectedCall, match=sentence):
        _operators.FUNCTIONS["fill_bonus_tokens_cpu"](torch.zeros(1), torch.zeros(1), torch.zeros(1))
    with pytest.raises(_missing.UnexpectedCall, match=rf"SGLang {version} calls sgl_kernel\.decode_attention_cpu"):
        torch.ops.sgl_kernel.decode_attention_cpu(1, 2, 3)


def test_a_type_error_inside_an_operator_stays_what_it_is() -> None:
    with pytest.raises(TypeError) as caught:
        _operators.FUNCTIONS["fill_bonus_tokens_cpu"](torch.zeros(1, 1), torch.ones(1), torch.zeros(1), "two")
    assert not isinstance(caught.value, _missing.UnexpectedCall)


def test_cross_attention_is_refused_by_name() -> None:
    arguments: list[Any] = [None] * 22
    arguments[15:18] = [0.0, True, 0]
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.extend_attention_cpu .* cross attention"):
        torch.ops.sgl_kernel.extend_attention_cpu(*arguments)
