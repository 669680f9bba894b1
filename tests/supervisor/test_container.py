"""The launcher as PID 1, as in a container: in a PID namespace of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guarded_serve.facts.ports import free_port
from guarded_serve.supervisor.loop import Loop
from guarded_serve.supervisor.reaper import Reaper
from tests.support.supervised import ROOT, wait_until

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


@pytest.mark.parametrize("as_pid_one", [False, pytest.param(True, marks=pytest.mark.root)])
def test_a_stop_before_anything_is_started(tmp_path: Path, as_pid_one: bool) -> None:
    """While a child lists SGLang's flags, which takes long the first time; init gets no signal without a handler."""
    if as_pid_one and NOT_ROOT:
        pytest.skip("a PID namespace needs root")
    listing = tmp_path / "listing"
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time, pathlib\n"
        f"if sys.orig_argv[1:2] == ['-c']: pathlib.Path({str(listing)!r}).touch(); time.sleep(60)\n"
    )
    notified = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(notified))
        process = subprocess.Popen(
            [
                *(("unshare", "--fork", "--pid", "--mount-proc", "--kill-child") if as_pid_one else ()),
                *(sys.executable, "-m", "guarded_serve.launch_server", "--model-path", "/none"),
            ],
            env={
                **os.environ,
                "PYTHONPATH": f"{tmp_path}:{ROOT}",
                "XDG_CACHE_HOME": str(tmp_path / "cache"),
                "NOTIFY_SOCKET": str(notified),
            },
        )
        try:
            assert wait_until(listing.exists, 30)
            assert wait_until(lambda: b"EXTEND_TIMEOUT_USEC=240000000" in systemd.recv(4096))
            pid = process.pid
            if as_pid_one:
                pid = int(subprocess.check_output(["pgrep", "-P", str(pid)], text=True))
            os.kill(pid, signal.SIGTERM)
            assert process.wait(10) == 0
        finally:
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
