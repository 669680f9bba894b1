"""The operators under the name that SGLang's NGRAM path imports them from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._missing import placeholder
from ._operators import FUNCTIONS


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)
    return FUNCTIONS.get(name) or placeholder(name)
