"""A plugin of SGLang's that writes down what its scheduler counted for every request, however the request ended.

A client does not always learn it: a request that is cancelled while it waits after a retraction ends with a meta_info
that counts nothing. `LEDGER` names the file.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

LEDGER = "GUARDED_SERVE_TEST_LEDGER"
_EVERY_S = 0.2


def write_plugin(folder: Path) -> Path:
    """Make a folder that has the entry point, to go on PYTHONPATH."""
    described = folder / "ledger-0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: ledger\nVersion: 0\n")
    (described / "entry_points.txt").write_text("[sglang.srt.plugins]\nledger = tests.support.ledger:register\n")
    return folder


def read(path: Path) -> dict[str, dict[str, int]]:
    """By request: `verifications`, `tokens`. Waits until what was counted before the call is written."""
    time.sleep(3 * _EVERY_S)
    found: dict[str, dict[str, int]] = json.loads(path.read_text())
    return found


def register() -> None:
    """In every process of SGLang's; only the scheduler makes requests."""
    from sglang.srt.managers.schedule_batch import Req  # noqa: PLC0415 - in SGLang's processes alone

    made: list[Any] = []
    original = Req.__init__

    @functools.wraps(original)
    def remembered(request: Any, *arguments: Any, **named: Any) -> None:
        original(request, *arguments, **named)
        if not made:
            threading.Thread(target=_write, args=(made, Path(os.environ[LEDGER])), daemon=True).start()
        made.append(request)

    Req.__init__ = remembered


def _write(made: list[Any], path: Path) -> None:
    new = path.with_suffix(".new")
    while True:
        counted = {
            request.rid: {"verifications": request.spec_verify_ct, "tokens": len(request.output_ids_through_stop)}
            for request in list(made)
        }
        new.write_text(json.dumps(counted))
        new.replace(path)
        time.sleep(_EVERY_S)
