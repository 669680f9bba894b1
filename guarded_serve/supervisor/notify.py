"""systemd's notification protocol, sd_notify(3): a datagram of NAME=value lines to $NOTIFY_SOCKET."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping


class Notify:
    """Does nothing where there is no systemd to tell."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._socket: socket.socket | None = None
        if address[:1] in ("/", "@"):
            self._address = "\0" + address[1:] if address[0] == "@" else address
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._ready = False  # READY=1 was sent once
        self.watchdog_s = _watchdog_s(environment) if self._socket else None

    @property
    def active(self) -> bool:
        """Whether somebody listens."""
        return self._socket is not None

    def send(self, **values: str | int) -> None:
        """One message, for example ``send(READY=1, STATUS="serving")``. Never fails and never waits."""
        if self._socket is None:
            return
        self._ready = self._ready or "READY" in values
        message = "\n".join(f"{name}={str(value).replace(chr(10), ' ')}" for name, value in values.items())
        try:
            self._socket.sendto(message.encode(errors="replace"), self._address)
        except OSError:
            pass  # a notification that is lost costs less than a server that stops for it

    def extend(self, seconds: float) -> None:
        """Ask systemd to wait for at least so long from now, while starting or stopping."""
        self.send(EXTEND_TIMEOUT_USEC=int(seconds * 1e6))

    def alive(self) -> None:
        """Feed the watchdog, which runs from the first READY=1 on, through in-process restarts as well."""
        if self._ready and self.watchdog_s is not None:
            self.send(WATCHDOG=1)

    def reloading(self) -> None:
        """Between this and the next READY=1, systemd shows the unit as reloading."""
        self.send(RELOADING=1, MONOTONIC_USEC=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """How often systemd wants WATCHDOG=1 at the latest, in seconds; None when it does not, or means another process."""
    try:
        if int(environment.get("WATCHDOG_PID", os.getpid())) != os.getpid():
            return None
        return int(environment["WATCHDOG_USEC"]) / 1e6
    except (KeyError, ValueError):
        return None
