"""What SGLang's log says of its start-up.

For people, and for deadlines that move on progress; readiness never depends on it alone.
"""

from __future__ import annotations

import re

FIRED_UP = b"The server is fired up and ready to roll!"

_STAGES = (
    (rb"Load weight begin", "loading weights"),
    (rb"Load weight end", "weights loaded"),
    # Up to 0.5.16 "cuda graph"; with the kind before it: "draft decode", "draft extend", "target verify" and so on.
    (rb"Capture (?:.* )?draft .*CUDA graph begin", "capturing draft graphs"),
    (rb"Capture (?:.* )?draft .*CUDA graph end", "draft graphs captured"),
    (rb"Capture (?:.* )?CUDA graph begin", "capturing graphs"),
    (rb"Capture (?:.* )?CUDA graph end", "graphs captured"),
    (rb"Application startup complete", "warming up"),
)
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), stage) for pattern, stage in _STAGES)


def stage_of(line: bytes) -> str | None:
    """The step of the start-up that this line begins, for a person; None for any other line."""
    return next((stage for pattern, stage in _PATTERNS if pattern.search(line)), None)
