"""A child process that answers many command lines at once, as importing SGLang for each would take minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def answered_by(
    script: str, command_lines: Sequence[Sequence[str]], folder: Path, environment: Mapping[str, str], name: str
) -> list[dict[str, Any]]:
    """What ``script ASKED ANSWERED`` writes about these command lines, one answer each. It runs in ``folder``."""
    asked, answered = folder / f"asked-{name}.json", folder / f"answered-{name}.json"
    asked.write_text(json.dumps([list(argv) for argv in command_lines]))
    done = subprocess.run(
        [sys.executable, script, str(asked), str(answered)],
        check=False,
        timeout=280,
        capture_output=True,
        text=True,
        env=dict(environment),
        cwd=folder,
    )
    if done.returncode:
        raise RuntimeError(f"{name} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    answers: list[dict[str, Any]] = json.loads(answered.read_text())
    return answers
