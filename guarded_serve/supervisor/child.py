"""The server's process tree, as the launcher sees it: start, output, signals, and the end of all of it.

The server is a child of the sentinel, see `sentinel.py`. Everything here reports to callbacks in the loop.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from guarded_serve.supervisor import sentinel
from guarded_serve.supervisor.loop import Loop

_READ = 1 << 16
_LONGEST_LINE = 1 << 20


@dataclass
class Callbacks:
    """What the owner of a `Child` is told."""

    lines: Callable[[bytes], None]  # complete lines with their ends, in order
    server_ended: Callable[[int], None]  # status as subprocess counts
    all_gone: Callable[[list[str]], None]  # no process is left; the shared memory that was removed


class Child:
    """One server process and everything below it."""

    def __init__(
        self,
        loop: Loop,
        argv: Sequence[str],
        environment: Mapping[str, str],
        run_folder: Path,
        callbacks: Callbacks,
    ) -> None:
        self._loop = loop
        self._callbacks = callbacks
        self._rest = bytearray()
        self._removed: list[str] = []
        self.server_pid: int | None = None
        self.status: int | None = None  # of the server, once it ended
        self.gone = False
        self._paused = False
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log, log_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._log, False)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", sentinel.script(), str(theirs.fileno())],
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log_write,
                    stderr=log_write,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except BaseException:
                self._link.close()
                os.close(self._log)
                raise
            finally:
                os.close(log_write)
        self._link.setblocking(False)
        self._tell({"argv": list(argv), "run_folder": str(run_folder)})
        loop.add_reader(self._link.fileno(), self._on_link)
        loop.add_reader(self._log, self._on_log)

    @property
    def sentinel_pid(self) -> int:
        """The sentinel's process id."""
        return self._process.pid

    def note_shared_memory(self) -> None:
        """Remember what the tree holds under /dev/shm now, to remove at the end what it leaves there."""
        self._tell({"do": "note"})

    def terminate(self) -> None:
        """Ask the server to end (SIGTERM); what the tree holds under /dev/shm is noted."""
        self._tell({"do": "terminate"})

    def kill(self) -> None:
        """SIGKILL everything; `Callbacks.all_gone` follows."""
        self._tell({"do": "kill"})

    def processes(self) -> list[int]:
        """Every process below the sentinel."""
        return sentinel.descendants(self._process.pid)

    def pause_output(self) -> None:
        """Leave the output in the pipe, so that the server waits as it would for a slow terminal."""
        if not self._paused and self._log >= 0:
            self._loop.remove(self._log)
            self._paused = True

    def resume_output(self) -> None:
        """After `pause_output`."""
        if self._paused and self._log >= 0:
            self._loop.add_reader(self._log, self._on_log)
            self._paused = False

    def drain_output(self, most_bytes: int = 4 << 20) -> None:
        """Read what the server has written so far."""
        while self._log >= 0 and most_bytes > 0 and (got := self._read_log()):
            most_bytes -= got

    def close(self, deadline_s: float = 5.0) -> None:
        """End what is left, whatever state this is in; waits at most ``deadline_s``."""
        if self._link.fileno() >= 0:
            self._loop.remove(self._link.fileno())
            self._link.close()  # the sentinel kills its tree when this end is gone
        self._close_log()
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self, message: dict[str, object]) -> None:
        try:
            self._link.send(json.dumps(message).encode())
        except OSError:
            pass  # the sentinel ended: `_on_link` sees it

    def _on_link(self) -> None:
        while True:
            try:
                packet = self._link.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._on_sentinel_ended()
                return
            message = json.loads(packet)
            if "started" in message:
                self.server_pid = message["started"]
            elif "exited" in message:
                self.status = message["exited"]
                self._callbacks.server_ended(message["exited"])
            elif "removed" in message:
                self._removed = message["removed"]

    def _on_sentinel_ended(self) -> None:
        self._loop.remove(self._link.fileno())
        self._link.close()
        self._process.wait()
        _kill_orphans()  # nothing, unless somebody killed the sentinel: its tree then came to us
        self.drain_output()
        if self._rest:
            self._callbacks.lines(bytes(self._rest) + b"\n")
            self._rest.clear()
        self._close_log()
        self.gone = True
        if self.status is None:
            self.status = self._process.returncode
            self._callbacks.server_ended(self.status)
        self._callbacks.all_gone(self._removed)

    def _on_log(self) -> None:
        self._read_log()

    def _read_log(self) -> int:
        try:
            data = os.read(self._log, _READ)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._close_log()
            return 0
        end = data.rfind(b"\n") + 1
        if end:
            block = bytes(self._rest) + data[:end]
            self._rest[:] = data[end:]
            self._callbacks.lines(block)
        else:
            self._rest += data
            if len(self._rest) > _LONGEST_LINE:
                self._callbacks.lines(bytes(self._rest) + b"\n")
                self._rest.clear()
        return len(data)

    def _close_log(self) -> None:
        if self._log >= 0:
            self._loop.remove(self._log)
            os.close(self._log)
            self._log = -1


def become_subreaper() -> None:
    """Orphans of a killed sentinel come to the launcher instead of to init."""
    sentinel.prctl(sentinel.PR_SET_CHILD_SUBREAPER, 1)


def _kill_orphans(deadline_s: float = 5.0) -> None:
    """Kill and reap what a killed sentinel left to us. Ours to kill: the launcher has no other children then."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        below = [pid for pid in sentinel.descendants(os.getpid()) if os.getsid(0) != _session(pid)]
        if not below:
            return
        for pid in below:
            sentinel.send_signal(pid, signal.SIGKILL)
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass
        time.sleep(0.02)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return os.getsid(0)  # gone
