"""What SGLang's log says of its start-up.

For people, and for deadlines that move on progress; readiness never depends on it alone.
"""

from __future__ import annotations

import re

FIRED_UP = b"The server is fired up and ready to roll!"
CANNOT_BIND = b"error while attempting to bind on address"
"""asyncio's words when the HTTP port cannot be had. SGLang then waits for an end of its own that may never come."""

_STAGES = (
    (b"Load weight begin", "loading weights"),
    (b"Load weight end", "weights loaded"),
    (b"Application startup complete", "warming up"),
)
# Up to 0.5.16 "cuda graph"; with the kind before it: "draft decode", "draft extend", "target verify" and so on.
_GRAPHS = re.compile(rb"Capture (?P<kind>.* )?CUDA graph (?P<edge>begin|end)", re.IGNORECASE)


def stage_of(line: bytes) -> str | None:
    """The step of the start-up that this line begins, for a person; None for any other line."""
    for marker, stage in _STAGES:
        if marker in line:
            return stage
    found = _GRAPHS.search(line)
    if found is None:
        return None
    graphs = "draft graphs" if b"draft" in (found["kind"] or b"").lower() else "graphs"
    return f"capturing {graphs}" if found["edge"].lower() == b"begin" else f"{graphs} captured"
