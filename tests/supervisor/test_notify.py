"""What systemd hears: a socket in its place, over the scripted server."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.support.supervised import Supervised, wait_until


class Listener:
    """Every message to $NOTIFY_SOCKET, with when it came."""

    def __init__(self, folder: Path, watchdog_s: float | None) -> None:
        self.messages: list[tuple[float, str]] = []
        path = folder / "notify.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.environment = {"NOTIFY_SOCKET": str(path)}
        if watchdog_s is not None:
            self.environment["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while message := self._socket.recv(1 << 16):
            self.messages.append((time.monotonic(), message.decode()))

    def times(self, word: str) -> list[float]:
        """When messages with this word came."""
        return [at for at, message in self.messages if word in message]

    def count(self, word: str) -> int:
        return len(self.times(word))

    def longest_silence(self, word: str) -> float:
        times = self.times(word)
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)


@pytest.fixture
def systemd(tmp_path: Path) -> Listener:
    return Listener(tmp_path, watchdog_s=2.0)


def test_the_watchdog_is_fed_through_a_restart_in_process(tmp_path: Path, systemd: Listener) -> None:
    profile = {"supervise": {"restarts": 1}}
    with Supervised(
        tmp_path, {"start_s": 0.3}, profile, gate_s=4.0, environment=systemd.environment, dump_s=0.0
    ) as server:
        server.wait_for("state=serving")
        assert wait_until(lambda: systemd.count("READY=1") == 1)
        ready = systemd.times("READY=1")[0]
        assert [at for at in systemd.times("WATCHDOG=1") if at < ready] == []  # the unit does not count yet
        time.sleep(1)
        os.kill(server.pids()["scheduler"], signal.SIGKILL)
        assert wait_until(lambda: systemd.count("READY=1") == 2, 20)
        assert systemd.longest_silence("WATCHDOG=1") < 2.0  # the gates alone took four seconds
        server.send(signal.SIGTERM)
        assert server.end() == 0


def test_the_watchdog_is_not_fed_when_a_restart_makes_no_progress(tmp_path: Path, systemd: Listener) -> None:
    profile = {"supervise": {"restarts": 1}}
    with Supervised(tmp_path, {"start_s": 6.0}, profile, environment=systemd.environment) as server:
        server.wait_for("state=serving")
        before = server.pids()
        os.kill(before["scheduler"], signal.SIGKILL)
        assert wait_until(lambda: not set(server.pids().values()) & set(before.values()), 20)
        time.sleep(0.5)
        assert server.states()[-1] == "starting"
        for pid in server.pids().values():
            os.kill(pid, signal.SIGSTOP)
        stopped = time.monotonic()
        time.sleep(5)
        assert server.states()[-1] == "starting"
        assert [at for at in systemd.times("WATCHDOG=1") if at > stopped + 1.5] == []


def test_a_reload_is_told_while_it_serves_only(tmp_path: Path, systemd: Listener) -> None:
    with Supervised(tmp_path, gate_s=4.0, environment=systemd.environment) as server:
        server.wait_for("state=preflight")
        server.send(signal.SIGHUP)
        server.wait_for("in force now: supervise.hang_s = 77")
        assert server.states() == ["preflight"]
        assert systemd.count("READY=1") == systemd.count("RELOADING=1") == 0
        server.wait_for("state=serving")
        server.send(signal.SIGHUP)
        assert wait_until(lambda: systemd.count("READY=1") == 2)
        assert systemd.count("RELOADING=1") == 1


def test_systemd_waits_while_the_gates_run(tmp_path: Path, systemd: Listener) -> None:
    with Supervised(tmp_path, gate_s=60.0, environment=systemd.environment) as server:
        server.wait_for("state=preflight")
        assert wait_until(lambda: systemd.count("EXTEND_TIMEOUT_USEC") >= 3, 5)
        assert systemd.count("STATUS=preflight") == 1
        server.send(signal.SIGTERM)
        assert server.end(3) == 0


def test_gates_that_never_end_run_into_the_start_deadline(tmp_path: Path) -> None:
    with Supervised(tmp_path, None, {"supervise": {"start_deadline_s": 2.0}}, gate_s=60.0) as server:
        assert server.end(20) == 69
        assert server.states() == ["preflight", "failed"]
        assert "the checks did not end within 2 s (supervise.start_deadline_s)" in server.text()
