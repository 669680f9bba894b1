"""What is wrong with a file, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HARMLESS = ("unlisted-shard", "index-incomplete")
"""Kinds of faults of a folder with which SGLang still loads every tensor that its index names: warnings."""


@dataclass(frozen=True)
class Problem:
    """One fault of one file. ``kind`` is stable and short (``truncated``, ``lfs-pointer``, ...)."""

    kind: str
    message: str  # one sentence with the numbers in it
    path: Path
    tensor: str | None = None
    expected: str | None = None
    found: str | None = None
    remedy: str | None = None
    key: str | None = None  # of a config.json

    @property
    def where(self) -> str:
        """The file, and the tensor in it where there is one."""
        return f"{self.path}: {self.tensor}" if self.tensor else str(self.path)
