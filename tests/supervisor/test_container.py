"""The launcher as PID 1, as in a container: in a PID namespace of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guarded_serve.supervisor.loop import Loop
from guarded_serve.supervisor.reaper import Reaper
from tests.support.supervised import ROOT, free_port, wait_until

NOT_ROOT = os.geteuid() != 0


@pytest.mark.root
@pytest.mark.skipif(NOT_ROOT, reason="a PID namespace needs root")
@pytest.mark.parametrize("end", ["stop", "crash"])
def test_as_pid_one(tmp_path: Path, end: str) -> None:
    port = free_port()
    request = {
        "scenario": {"leaver": True, "children_outlive": True, "pid_file": str(tmp_path / "pids")},
        "profile": {"server": {"model_path": "/none"}},
        "arguments": ["--port", str(port)],
        "server": {"port": port},
        "gates": [0],
        "gate_s": 0.0,
        "log_format": None,
        "wild_clock": False,
    }
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *("unshare", "--fork", "--pid", "--mount-proc", "--kill-child"),
                *(sys.executable, str(ROOT / "tests/support/supervised.py"), json.dumps(request)),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path)},
        )
    try:
        assert wait_until(lambda: "state=serving" in log.read_text(), 30), log.read_text()
        (inner,) = subprocess.check_output(["pgrep", "-P", str(process.pid)], text=True).split()
        pids = subprocess.check_output(["nsenter", "-t", inner, "-p", "-m", "ps", "-eo", "pid,comm"], text=True)
        assert pids.splitlines()[1].split()[0] == "1"
        if end == "stop":
            os.kill(int(inner), signal.SIGTERM)
            assert process.wait(20) == 0
        else:
            main = next(line.split()[1] for line in (tmp_path / "pids").read_text().splitlines() if "main" in line)
            subprocess.run(["nsenter", "-t", inner, "-p", "-m", "kill", "-KILL", main], check=True)
            assert process.wait(20) == 69  # a bare SGLang as PID 1 ends a crash with 0 (report 29284)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_zombies_that_are_nobodys_are_reaped() -> None:
    with Loop() as loop:
        child = os.fork()
        if child == 0:
            os._exit(0)
        Reaper(loop, every_s=0.05)
        loop.call_later(0.5, loop.stop)
        loop.run()
        with pytest.raises(ChildProcessError):
            os.waitpid(child, 0)


def test_children_that_somebody_waits_for_keep_their_status() -> None:
    with Loop() as loop:
        Reaper(loop, every_s=0.05)
        codes: list[object] = []
        loop.in_thread(lambda: subprocess.run(["sh", "-c", "sleep 0.2; exit 7"], check=False).returncode, codes.append)
        loop.call_later(1.0, loop.stop)
        started = time.monotonic()
        loop.run()
        assert time.monotonic() - started < 3
        assert codes == [7]
