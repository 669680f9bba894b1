"""Which operators SGLang finds here, in the form that the installed SGLang calls."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from . import attention, cache, tree
from ._missing import checked

Operator = Callable[..., Any]

FUNCTIONS: dict[str, Operator] = {
    function.__name__: checked(function)
    for function in (
        tree.build_tree_kernel_efficient_cpu,
        tree.verify_tree_greedy_cpu,
        tree.reconstruct_indices_from_tree_mask,
        cache.assign_draft_cache_locs_contiguous_cpu,
        cache.assign_extend_cache_locs_cpu,
        cache.assign_req_to_token_pool_cpu,
        cache.build_draft_decode_metadata_cpu,
        cache.copy_all_layer_kv_cache_cpu,
        cache.fill_accept_out_cache_loc_cpu,
        cache.fill_bonus_tokens_cpu,
        cache.rotate_input_ids_cpu,
    )
}
"""Names that SGLang imports from `sgl_kernel` or `sgl_kernel.speculative`; one form in 0.5.16 to 0.5.23."""

_NO_SCALES = {"k_scale": 1.0, "v_scale": 1.0}
_LEFT_OUT: tuple[tuple[tuple[int, ...], dict[str, dict[str, Any]]], ...] = (
    (
        (0, 5, 16),
        {"decode_attention_cpu": _NO_SCALES, "extend_attention_cpu": {**_NO_SCALES, "is_causal": True}},
    ),
    ((0, 5, 19), {"decode_attention_cpu": _NO_SCALES, "extend_attention_cpu": _NO_SCALES}),
    ((0, 5, 20), {}),
)
"""From which SGLang on, the arguments that its call does not have yet, with the value that they stand for."""


def _leave_out(function: Operator, fixed: Mapping[str, Any]) -> Operator:
    """The same operator without these arguments, taken by position."""
    if not fixed:
        return function
    signature = inspect.signature(function)
    places = [(place, fixed[name]) for place, name in enumerate(signature.parameters) if name in fixed]

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        complete = list(arguments)
        for place, value in places:
            complete.insert(place, value)
        return function(*complete)

    kept = [parameter for name, parameter in signature.parameters.items() if name not in fixed]
    call.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return call


def numbers(version: str) -> tuple[int, ...]:
    """(0, 5, 17) from "0.5.17.post1"; () from a version that cannot be read."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def torch_ops(version: str) -> dict[str, Operator]:
    """Names that SGLang looks up in `torch.ops.sgl_kernel`, as that version (such as "0.5.17") calls them.

    A version that is older than any known gets the oldest form, one that cannot be read the newest.
    """
    known = numbers(version)
    left_out = _LEFT_OUT[0][1] if known else _LEFT_OUT[-1][1]
    for since, names in _LEFT_OUT:
        if known >= since:
            left_out = names
    return {
        function.__name__: checked(_leave_out(function, left_out.get(function.__name__, {})))
        for function in (attention.decode_attention_cpu, attention.extend_attention_cpu)
    }
