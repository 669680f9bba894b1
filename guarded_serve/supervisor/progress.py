"""What SGLang's log says of its start-up.

For people, and for deadlines that move on progress; readiness never depends on it alone.
"""

from __future__ import annotations

FIRED_UP = b"The server is fired up and ready to roll!"

_STAGES = (
    (b"Load weight begin", "loading weights"),
    (b"Load weight end", "weights loaded"),
    (b"KV Cache is allocated", "cache allocated"),
    (b"Capture cuda graph begin", "capturing graphs"),
    (b"Capture draft cuda graph begin", "capturing draft graphs"),
    (b"Capture cuda graph end", "graphs captured"),
    (b"Capture draft cuda graph end", "draft graphs captured"),
    (b"Application startup complete", "warming up"),
)


def stage_of(line: bytes) -> str | None:
    """The step of the start-up that this line begins, for a person; None for any other line."""
    return next((stage for marker, stage in _STAGES if marker in line), None)
