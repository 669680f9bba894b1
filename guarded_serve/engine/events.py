"""Events to the launcher: JSON datagrams that are sent or dropped at once, whatever state the launcher is in."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any


class Events:
    """A sender bound to the launcher's socket. Never blocks, never raises."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.rank: int | None = None
        self._socket: socket.socket | None = None
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        except OSError:
            pass

    def send(self, event: str, **values: Any) -> bool:
        """Whether the datagram was taken. A launcher that is gone, slow or full costs the event, nothing else."""
        message = {"event": event, "t": time.time(), "pid": os.getpid(), "rank": self.rank, **values}
        try:
            if self._socket is None:
                raise OSError("no socket")
            self._socket.sendto(json.dumps(message, separators=(",", ":"), default=str).encode(), self._path)
        except (OSError, ValueError):
            return False
        return True
