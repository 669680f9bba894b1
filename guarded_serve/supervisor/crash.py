"""The crash folder: what a person needs afterwards to find out why a server hung or died.

One folder a crash, the newest twenty kept. Secrets are masked, environments are left out. A full disk loses the folder,
never the restart.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from guarded_serve.facts.py_spy import find_py_spy
from guarded_serve.profile.deployment import Deployment
from guarded_serve.supervisor.redact import Redactor

_KEPT = 20
_DUMP_S = 10.0
_DUMP_TRIES = 3


def base(deployment: Deployment) -> Path | None:
    """systemd's LogsDirectory, else beside the cycle log, else the user's state folder; None for a user without one."""
    logs = os.environ.get("LOGS_DIRECTORY", "").partition(":")[0]
    if logs:
        return Path(logs) / "crashes"
    cycles = deployment.profile.timing.directory
    if cycles is not None:
        return cycles / "crashes"
    state = os.environ.get("XDG_STATE_HOME")
    try:
        return (Path(state) if state else Path.home() / ".local" / "state") / "guarded-serve" / "crashes"
    except RuntimeError:  # neither HOME nor an entry in the user database, as in a container with a bare user id
        return None


def write(
    where: Path | None, kind: str, facts: Mapping[str, object], tail: Iterable[bytes], redactor: Redactor
) -> Path | None:
    """Make the folder with ``what.json`` and ``tail.log``; None when it cannot be written."""
    if where is None:
        return None
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{kind}-{os.getpid()}"
    folder = where / name
    try:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        text = json.dumps({"kind": kind, "at": time.time(), **facts}, indent=1, default=str)
        (folder / "what.json").write_text(redactor.text(text) + "\n", encoding="utf-8")
        (folder / "tail.log").write_bytes(redactor.block(b"".join(line + b"\n" for line in tail)))
        for old in sorted(path for path in where.iterdir() if path.is_dir())[:-_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    except OSError:
        return None
    return folder


def dump_stacks(folder: Path, processes: Mapping[int, str], deadline_s: float) -> None:
    """Where each process is: the kernel's view, and py-spy's of its Python threads. Returns before ``deadline_s``."""
    end = time.monotonic() + deadline_s
    tool = find_py_spy()
    for pid, role in processes.items():
        text = [_kernel_view(pid)]
        left = end - time.monotonic()
        if tool is None:
            text.append("py-spy is not installed: `pip install py-spy` gives Python stacks here")
        elif left <= 0:
            text.append("no time was left for py-spy")
        else:
            text.append(_spy(tool, pid, min(_DUMP_S, left)))
        try:
            (folder / f"stack-{role.replace('/', '_')}-{pid}.txt").write_text("\n".join(text), encoding="utf-8")
        except OSError:
            return


def _spy(tool: str, pid: int, seconds: float) -> str:
    """Tried again when it fails: what it reads of a running process may move under it."""
    command = [tool, "dump", "--nonblocking", "--pid", str(pid)]
    end = time.monotonic() + seconds
    for _ in range(_DUMP_TRIES):
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=max(0.1, end - time.monotonic()),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"py-spy gave no answer within {seconds:.0f} s"
        except OSError as error:
            return f"py-spy could not be run: {error}"
        if done.returncode == 0:
            return done.stdout
    return f"py-spy failed {_DUMP_TRIES} times: {done.stderr.strip()[:500]}"


def _kernel_view(pid: int) -> str:
    lines = []
    for name in ("status", "wchan", "stack"):
        try:
            text = Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            text = f"not readable: {error.strerror}"
        if name == "status":
            wanted = ("Name:", "State:", "Threads:", "VmRSS:", "SigPnd:", "SigBlk:")
            text = "\n".join(line for line in text.splitlines() if line.startswith(wanted))
        lines.append(f"[{name}]\n{text.strip()}")
    return "\n".join(lines) + "\n[py-spy]"
