"""Undoes a bug of SGLang 0.5.16 to 0.5.18 without which their text with a drafter is not the text without it.

Their `IntelAMXAttnBackend` works out the lengths of a verify batch and of a draft step, and then overwrites them with
the batch's own, so that attention misses the newest tokens (SGLang pull request 36430, fixed in 0.5.19). While one of
its two forward functions runs, the batch is given the lengths that were worked out.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from ._operators import numbers

FIRST, LAST = (0, 5, 16), (0, 5, 18)
_BACKEND_MODULE = "sglang.srt.layers.attention.intel_amx_backend"


def _with_lengths(forward: Any, metadata: str, place: int) -> Any:
    """`forward` with `seq_lens` of its batch taken from entry `place` of the backend's `metadata`, where it has one."""

    @functools.wraps(forward)
    def call(self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        found = getattr(self, metadata)
        if found is None:
            return forward(self, q, k, v, layer, forward_batch, *args, **kwargs)
        own = forward_batch.seq_lens
        forward_batch.seq_lens = found[place]
        try:
            return forward(self, q, k, v, layer, forward_batch, *args, **kwargs)
        finally:
            forward_batch.seq_lens = own

    call.lengths_repaired = True  # type: ignore[attr-defined]
    return call


def repair_lengths(version: str) -> None:
    """Repair the backend's class, once, if this version needs it and has imported it."""
    module = sys.modules.get(_BACKEND_MODULE)
    if module is None or not FIRST <= numbers(version) <= LAST:
        return
    backend = module.IntelAMXAttnBackend
    if not hasattr(backend.forward_extend, "lengths_repaired"):
        backend.forward_extend = _with_lengths(backend.forward_extend, "extend_metadata", 0)
        backend.forward_decode = _with_lengths(backend.forward_decode, "draft_decode_metadata", 1)
