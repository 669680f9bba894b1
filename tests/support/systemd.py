"""A real systemd in a namespace of its own, for the tests of the unit: booted once, commands run inside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_WITH_SYSTEMD = Path(__file__).with_name("with-systemd")
ROOT = Path(__file__).resolve().parents[2]

_INSIDE = """
import json, subprocess, sys
print("ready", flush=True)
for line in sys.stdin:
    done = subprocess.run(json.loads(line), capture_output=True, text=True, errors="replace")
    print(json.dumps([done.returncode, done.stdout, done.stderr]), flush=True)
"""


def why_not() -> str | None:
    """Why no systemd can be booted here; None where it can."""
    if os.geteuid() != 0:
        return "booting a systemd of its own needs root"
    if not Path("/lib/systemd/systemd").exists() or shutil.which("systemctl") is None:
        return "systemd is not installed"
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return "unshare and nsenter are not installed"
    return None


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    status: int
    output: str
    errors: str


class Systemd:
    """Boots at once; `close` ends it and everything in it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [str(_WITH_SYSTEMD), sys.executable, "-c", _INSIDE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line.strip() != "ready":
            raise RuntimeError(f"systemd did not boot: {line!r}, exit status {self._process.wait()}")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def run(self, *command: str) -> Done:
        """Run a command inside; its status and output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return Done(*json.loads(self._process.stdout.readline()))

    def install(self, unit: str, text: str) -> None:
        """Write a unit file (or drop-in, ``NAME.d/x.conf``) and reload."""
        path = f"/run/systemd/system/{unit}"
        self.run("mkdir", "-p", str(Path(path).parent))
        done = self.run("sh", "-c", 'printf %s "$1" >"$2"', "sh", text, path)
        assert done.status == 0, done
        self.run("systemctl", "daemon-reload")

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Properties of a unit."""
        done = self.run("systemctl", "show", unit, *(f"--property={name}" for name in names))
        return dict(line.split("=", 1) for line in done.output.splitlines() if "=" in line)

    def wait(self, unit: str, condition: Callable[[dict[str, str]], bool], seconds: float) -> dict[str, str]:
        """Wait until the unit's properties satisfy ``condition``; they come back either way."""
        names = ("ActiveState", "SubState", "StatusText", "Result", "NRestarts", "ExecMainStatus", "MainPID")
        end = time.monotonic() + seconds
        while True:
            found = self.show(unit, *names)
            if condition(found) or time.monotonic() > end:
                return found
            time.sleep(0.2)

    def journal(self, unit: str) -> str:
        """What the unit logged."""
        return self.run("journalctl", "--unit", unit, "--no-pager", "--output=cat").output

    def processes(self, unit: str) -> list[str]:
        """Process ids in the unit's control group."""
        group = self.show(unit, "ControlGroup").get("ControlGroup", "")
        if not group:
            return []
        found: set[str] = set()
        for root in ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
            done = self.run("find", root + group, "-name", "cgroup.procs", "-exec", "cat", "{}", "+")
            found.update(done.output.split())
        return sorted(found)
