"""SGLang's CPU operators for speculative decoding, in plain PyTorch.

SGLang has the whole EAGLE and NGRAM path for machines with no GPU, but its published `sgl_kernel` holds CUDA code only.
This package takes that name when its parent folder comes first on PYTHONPATH, in the engine's processes only.
An operator that is not here can be imported and says so when it is called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from . import _missing, _operators, _repairs

_version = _missing.sglang_version()
_missing.install(_operators.torch_ops(_version), functools.partial(_repairs.repair_lengths, _version))


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)
    return _operators.FUNCTIONS.get(name) or _missing.placeholder(name)
