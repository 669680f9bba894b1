"""The folder of one launch: the socket that the engine's events come to, and the control file that it reads."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PACKET = 1 << 18  # bytes: more than the kernel lets a sender put into one datagram by default
_RECEIVE_BUFFER = 1 << 20  # bytes: events of many ranks while the launcher is held up


class RunFolder:
    """A folder of mode 0700 with a bound datagram socket in it. Remove it with `close`."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="guarded-serve-", dir=_base()))
        self.socket_path = self.path / "events.sock"
        self.control_path = self.path / "control.json"
        self.set_control({"clock": True})
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        self._socket.bind(str(self.socket_path))

    def fileno(self) -> int:
        """The socket's descriptor, for the loop."""
        return self._socket.fileno()

    def set_control(self, wishes: dict[str, Any]) -> None:
        """Replace the control file in one step."""
        fresh = self.control_path.with_suffix(".new")
        fresh.write_text(json.dumps(wishes), encoding="utf-8")
        fresh.replace(self.control_path)

    def receive(self) -> Iterator[dict[str, Any]]:
        """The events that have come; what is not an event is passed over."""
        while True:
            try:
                packet = self._socket.recv(_PACKET)
            except (BlockingIOError, OSError):
                return
            try:
                event = json.loads(packet)
            except ValueError:
                continue
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                yield event

    def close(self) -> None:
        """Close the socket and remove the folder."""
        self._socket.close()
        shutil.rmtree(self.path, ignore_errors=True)


def _base() -> str | None:
    """systemd's RuntimeDirectory or the user's, when it can be written and leaves room for a socket's 108 bytes."""
    for name in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        folder = os.environ.get(name, "").partition(":")[0]
        if folder and len(folder) < 60 and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return "/tmp" if len(tempfile.gettempdir()) >= 60 else None
