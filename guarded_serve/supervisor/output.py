"""Standard output that never blocks the loop: what a slow reader does not take waits here, up to a limit.

A reader that is gone or a full disk loses bytes; it never ends the server.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from collections.abc import Callable

from guarded_serve.supervisor.loop import Loop

LIMIT = 1 << 20  # bytes that may wait before the server's own output is left in its pipe
_MOST = 4 * LIMIT  # bytes that wait at most, whoever goes on writing


class Output:
    """Writes bytes to one descriptor in order."""

    def __init__(self, loop: Loop, descriptor: int = 1) -> None:
        self._loop = loop
        self._waiting = bytearray()
        self._registered = False
        self._regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        own = None if self._regular else _opened_anew(descriptor)
        self._own = own is not None
        self._descriptor = descriptor if own is None else own
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)
        # What goes in one write: a shared pipe that polls writable takes PIPE_BUF without blocking.
        self._chunk = 1 << 20 if self._regular else 1 << 16 if self._own else select.PIPE_BUF
        self.gone = False  # nobody reads any more
        self.lost = 0  # bytes that could not be written
        self.on_room: Callable[[], None] | None = None  # called when `full` ends

    @property
    def full(self) -> bool:
        """Whether whoever feeds this should stop for a while."""
        return len(self._waiting) > LIMIT

    def write(self, data: bytes) -> None:
        """Write now as much as goes without waiting, the rest later."""
        if self.gone or len(self._waiting) > _MOST:
            self.lost += len(data)
            return
        self._waiting += data
        self._flush()

    def finish(self, seconds: float = 1.0) -> None:
        """Write what is waiting, for at most so long. Nothing can be written after it."""
        end = time.monotonic() + seconds
        while self._waiting and not self.gone and time.monotonic() < end:
            self._poll.poll(50)
            self._flush()
        if self._registered:
            self._loop.remove(self._descriptor)
            self._registered = False
        self.gone = True
        if self._own:
            os.close(self._descriptor)
            self._own = False

    def _flush(self) -> None:
        was_full = self.full
        sent = 0
        view = memoryview(self._waiting)
        try:
            while sent < len(view) and (self._regular or self._own or self._poll.poll(0)):
                sent += os.write(self._descriptor, view[sent : sent + self._chunk])
        except BlockingIOError:
            pass
        except OSError as error:
            self.lost += len(view) - sent
            sent = len(view)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EINTR):
                self.gone = True
        finally:
            view.release()
        del self._waiting[:sent]
        if self._waiting and not self._registered and not self._regular:
            self._loop.add_writer(self._descriptor, self._flush)
            self._registered = True
        elif not self._waiting and self._registered:
            self._loop.remove(self._descriptor)
            self._registered = False
        if was_full and not self.full and self.on_room is not None:
            self.on_room()


def _opened_anew(descriptor: int) -> int | None:
    """The same terminal or pipe, not blocking; None where it cannot be opened again, such as a socket or another
    user's.

    The descriptor itself stays as it is: others share it. A terminal polls writable with less room than a write
    needs, so polling alone does not keep a write from blocking.
    """
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
