"""The entry point in SGLang's plugin group. Loaded in several of SGLang's processes; does something in one kind only.

A process that the launcher did not mark in its environment stays bare: nothing is imported, registered, started or
written. So does a marked process that is no scheduler (main, detokenizer): SGLang's module `managers.scheduler` defines
the scheduler's main function, so it is loaded exactly where a scheduler may be built.
"""

from __future__ import annotations

import os
import sys

from guarded_serve.engine_link import ENVIRONMENT_KEY

SCHEDULER_MODULE = "sglang.srt.managers.scheduler"


def register() -> None:
    """Called by SGLang in each of its processes, before the engine is built. Never raises."""
    text = os.environ.get(ENVIRONMENT_KEY)
    if not text or SCHEDULER_MODULE not in sys.modules:
        return
    from guarded_serve.engine import attach  # noqa: PLC0415 - a bare process imports nothing of ours

    attach.register(text)
