"""Floods of one line: the first ones pass, the rest are counted and said in one line.

Two lines are of one template when they differ in their digits only (report 3513: one line repeated for every thread
without end; 27883: thousands of "invalid eagle tree").
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

PASSED = 200  # lines of one template within a window
WINDOW_S = 10.0
_MOST_TEMPLATES = 2000
_KEY = 160  # bytes that decide: what follows may be different text in each line
_DIGITS = re.compile(rb"[0-9]+")


@dataclass
class Folder:
    """Holds the counts of the window that is running."""

    _seen: dict[bytes, int] = field(default_factory=dict)
    _example: dict[bytes, bytes] = field(default_factory=dict)

    def keep(self, lines: list[bytes]) -> list[bytes]:
        """The lines to write; the others are counted."""
        kept = []
        seen = self._seen
        for line in lines:
            key = _DIGITS.sub(b"", line[:_KEY])
            count = seen.get(key, 0) + 1
            if count <= PASSED:
                kept.append(line)
            elif key not in self._example:
                self._example[key] = line
            if count > 1 or len(seen) < _MOST_TEMPLATES:
                seen[key] = count
        return kept

    def close_window(self) -> list[tuple[int, bytes]]:
        """How many lines were left out, and the first of them, by template; a new window begins."""
        folded = [(self._seen[key] - PASSED, line) for key, line in self._example.items()]
        self._seen.clear()
        self._example.clear()
        return folded
