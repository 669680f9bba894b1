"""`guarded-serve` over `fake_server.py` in a process of its own: ``python smoked.py SCENARIO_JSON COMMAND ARGS...``.

Everything is real but the server: gate 1 on the demo pair's files, the process tree, HTTP, statistics, reports.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guarded_serve import cli
from guarded_serve.commands import launch
from guarded_serve.smoke import run

ROOT = Path(__file__).resolve().parents[2]


def start(
    folder: Path, scenario: Mapping[str, Any], *arguments: str, profile: Path | None = None, command: str = "smoke"
) -> subprocess.Popen[str]:
    """`smoke` or `launch` with its output in pipes; the scripted server notes its processes in ``folder``/pids."""
    full = {"pid_file": str(folder / "pids"), "start_s": 0.05, **scenario}
    return subprocess.Popen(
        [
            *(sys.executable, __file__, json.dumps(full), command),
            *("--profile", str(profile or ROOT / "profiles/demo-cpu.toml")),
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
    )


def pids(folder: Path) -> list[int]:
    """Every process that the scripted servers have had."""
    try:
        return [int(line.split()[1]) for line in (folder / "pids").read_text().splitlines()]
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    command = (sys.executable, str(ROOT / "tests/support/fake_server.py"), sys.argv[1])
    run.Wishes = functools.partial(run.Wishes, command=command)  # type: ignore[misc,assignment]
    launch.Options = functools.partial(launch.Options, command=command)  # type: ignore[misc,assignment]
    sys.exit(cli.main(sys.argv[2:]))
