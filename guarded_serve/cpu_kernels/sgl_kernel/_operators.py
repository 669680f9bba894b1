"""Which operators SGLang finds here, and which form of each the installed SGLang calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import attention, cache, tree
from ._missing import checked

FUNCTIONS: dict[str, Callable[..., Any]] = {
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
"""Names that SGLang imports from `sgl_kernel` or `sgl_kernel.speculative`."""

TORCH_OPS: dict[str, Callable[..., Any]] = {
    "decode_attention_cpu": checked(attention.decode_attention_cpu),
    "extend_attention_cpu": checked(attention.extend_attention_cpu),
}
"""Names that SGLang looks up in `torch.ops.sgl_kernel`."""
