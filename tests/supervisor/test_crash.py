"""What a crash folder says of the processes, with a stand-in for py-spy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guarded_serve.supervisor import crash


def spy(folder: Path, failures: int) -> str:
    """A py-spy that fails so many times before it answers."""
    tool = folder / "py-spy"
    tool.write_text(
        f"#!/bin/sh\ncd {folder}\necho x >> tries\nif [ $(wc -l < tries) -le {failures} ]; then\n"
        'echo "Failed to copy PyCodeObject: Bad address" >&2; exit 1; fi\necho event_loop\n'
    )
    tool.chmod(0o755)
    return str(tool)


@pytest.mark.parametrize(
    ("failures", "said"), [(0, "event_loop"), (2, "event_loop"), (9, "py-spy failed 3 times: Failed to copy")]
)
def test_a_dump_that_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, said: str
) -> None:
    monkeypatch.setattr(crash, "find_py_spy", lambda: spy(tmp_path, failures))
    crash.dump_stacks(tmp_path, {os.getpid(): "main"}, 10)
    (stack,) = tmp_path.glob("stack-*")
    assert said in stack.read_text().partition("[py-spy]")[2]
