"""Ends processes that were judged to be leftovers: SIGTERM, a wait, SIGKILL, a wait.

A process is held by a pidfd and compared with what was judged (its start time), so a PID that was given to another
process meanwhile is never signalled.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from guarded_serve.facts.processes import Process, read_process


@dataclass(frozen=True)
class Ended:
    """What became of one process. ``how`` is TERM, KILL, gone (before we came), another, denied or alive."""

    process: Process
    how: str
    seconds: float = 0.0

    @property
    def is_gone(self) -> bool:
        """Whether it holds nothing any more."""
        return self.how in ("TERM", "KILL", "gone", "another")


def end_processes(
    processes: Sequence[Process],
    *,
    grace_s: float = 10.0,
    kill_wait_s: float = 10.0,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Ended, ...]:
    """End them all together; never raises for one that is gone or closed to us."""
    started = time.monotonic()
    results: dict[int, Ended] = {}
    held: dict[int, tuple[Process, int]] = {}
    for process in processes:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            results[process.pid] = Ended(process, "gone")
            continue
        except OSError:  # no pidfd: a seccomp filter, or no descriptors left
            results[process.pid] = Ended(process, "alive")
            continue
        if read_process(process.pid).started != process.started:
            os.close(descriptor)
            results[process.pid] = Ended(process, "another")
            continue
        held[process.pid] = (process, descriptor)
    try:
        for number, name, seconds in ((signal.SIGTERM, "TERM", grace_s), (signal.SIGKILL, "KILL", kill_wait_s)):
            for pid, (process, descriptor) in list(held.items()):
                try:
                    signal.pidfd_send_signal(descriptor, number)
                    say(f"SIG{name} to {process.describe()}")
                except ProcessLookupError:
                    pass
                except PermissionError:
                    results[pid] = Ended(process, "denied")
                    os.close(held.pop(pid)[1])
            for pid in _wait({pid: descriptor for pid, (_, descriptor) in held.items()}, seconds):
                process, descriptor = held.pop(pid)
                os.close(descriptor)
                results[pid] = Ended(process, name, time.monotonic() - started)
            if not held:
                break
        for pid, (process, _) in held.items():
            results[pid] = Ended(process, "alive", time.monotonic() - started)
    finally:
        for _, descriptor in held.values():
            os.close(descriptor)
    return tuple(results[process.pid] for process in processes)


def _wait(descriptors: dict[int, int], seconds: float) -> list[int]:
    """The PIDs that ended within so many seconds: a pidfd is readable once its process has."""
    poll = select.poll()
    by_descriptor = {descriptor: pid for pid, descriptor in descriptors.items()}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    ended: list[int] = []
    deadline = time.monotonic() + seconds
    while by_descriptor and (left := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            poll.unregister(descriptor)
            ended.append(by_descriptor.pop(descriptor))
    return ended
