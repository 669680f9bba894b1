"""One loop for everything that the launcher waits for: descriptors, timers, signals, and results from threads.

Signals are only queued: the handler does nothing, the loop reads the number from a pipe and calls back in order.
Timers count on the monotonic clock, so a clock that jumps moves none of them.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType

Callback = Callable[[], None]


class Timer:
    """A call in the future that can be called off."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Never call it. Harmless when it was called already."""
        self.callback = None


class Loop:
    """Use as a context manager; `run` returns when `stop` was called."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._queue: deque[Callback] = deque()
        self._stopped = False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._signal_callback: Callable[[signal.Signals], None] | None = None
        self._previous: dict[int, object] = {}
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._on_wake)

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._previous:
            signal.set_wakeup_fd(-1)
            for number, handler in self._previous.items():
                signal.signal(number, handler)  # type: ignore[arg-type]
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def on_signals(self, numbers: Iterable[signal.Signals], callback: Callable[[signal.Signals], None]) -> None:
        """Queue these signals for ``callback``. Main thread only."""
        self._signal_callback = callback
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in numbers:
            self._previous[number] = signal.signal(number, lambda *_: None)

    def add_reader(self, descriptor: int, callback: Callback) -> None:
        """Call back whenever the descriptor can be read."""
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def add_writer(self, descriptor: int, callback: Callback) -> None:
        """Call back whenever the descriptor can be written. Raises PermissionError for a regular file."""
        self._selector.register(descriptor, selectors.EVENT_WRITE, callback)

    def remove(self, descriptor: int) -> None:
        """Forget a descriptor. Harmless when it is not there."""
        try:
            self._selector.unregister(descriptor)
        except (KeyError, ValueError):
            pass

    def call_later(self, seconds: float, callback: Callback) -> Timer:
        """Call back once, after so many seconds."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), timer))
        return timer

    def call_from_thread(self, callback: Callback) -> None:
        """Call back from the loop. May be called from any thread."""
        self._queue.append(callback)
        try:
            os.write(self._wake_write, b"\0")
        except (BlockingIOError, OSError):
            pass  # the pipe is full: the loop wakes anyway; or it is closed: nobody waits any more

    def in_thread(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """Run ``work`` in a daemon thread; ``done`` gets its result, or the exception that it raised, in the loop."""

        def body() -> None:
            try:
                result = work()
            except BaseException as error:
                result = error
            self.call_from_thread(lambda: done(result))

        threading.Thread(target=body, daemon=True).start()

    def stop(self) -> None:
        """End `run` after the current callbacks."""
        self._stopped = True

    def run(self) -> None:
        """Turn until `stop`."""
        self._stopped = False
        while not self._stopped:
            self._turn()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._wait_s()):
            if self._stopped:
                return
            if self._selector.get_map().get(key.fd) is key:  # an earlier callback of this turn may have removed it
                key.data()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now and not self._stopped:
            timer = heapq.heappop(self._timers)[2]
            if timer.callback is not None:
                callback, timer.callback = timer.callback, None
                callback()

    def _wait_s(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if self._queue:
            return 0
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _on_wake(self) -> None:
        try:
            received = os.read(self._wake_read, 4096)
        except BlockingIOError:
            received = b""
        for number in received:
            if number and self._signal_callback is not None:
                self._signal_callback(signal.Signals(number))
        while self._queue:
            self._queue.popleft()()
