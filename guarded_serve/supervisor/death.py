"""Why a server ended that nobody asked to end, from its status, its last lines and what the kernel counted.

SGLang's exit status says little: an internal failure ends with SIGKILL of its own main process, a normal stop of 0.5.15
too, and as PID 1 a crash can exit 0. So the tail of the log decides, and the memory cgroup.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from guarded_serve.supervisor.progress import CANNOT_BIND


@dataclass(frozen=True)
class Death:
    """What happened and what to do about it."""

    kind: str
    message: str
    remedy: str


@dataclass(frozen=True)
class _Sign:
    kind: str
    pattern: re.Pattern[str]
    message: str
    remedy: str


def _sign(kind: str, pattern: str, message: str, remedy: str) -> _Sign:
    return _Sign(kind, re.compile(pattern, re.IGNORECASE), message, remedy)


# In order: the more telling first. Sources: the numbers of the public reports are SGLang's issues.
_SIGNS = (
    _sign(
        "xid",
        r"NVRM: Xid|\bXid\b.{0,40}\b\d{2,3}\b|GPU has fallen off the bus"
        r"|CUDA error: (unspecified launch failure|uncorrectable ECC)",
        "the GPU or its driver failed",
        "look at `dmesg | grep -i xid` and `nvidia-smi -q`; the card may need a reset or a replacement",
    ),
    _sign(
        "cuda-memory",
        r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError"
        r"|Not enough memory\. Please try to increase --mem-fraction-static",
        "the GPU ran out of memory",
        "lower mem_fraction_static, cuda_graph_max_bs or max_running_requests",
    ),
    _sign(
        "shared-memory",
        r"No space left on device: '?/dev/shm|/dev/shm.{0,80}No space left|Bus error|exit code:? -7\b|SIGBUS",
        "/dev/shm is full (report 40723)",
        "remove what earlier servers left in /dev/shm, or enlarge it (`--shm-size` in a container)",
    ),
    _sign(
        "disk",
        r"No space left on device",
        "a disk is full",
        "free space where the server writes: its caches, the temporary folder, the logs",
    ),
    _sign(
        "cuda",
        r"CUDA error|cudaError|illegal memory access|device-side assert|CUBLAS_STATUS|NCCL error|ncclInternalError",
        "a CUDA operation failed",
        "run `guarded-serve check`; if it repeats, start with CUDA_LAUNCH_BLOCKING=1 to see which operation it is",
    ),
    _sign(
        "port",
        r"address already in use|Errno 98|port \d+ is (already )?in use",
        "its port was taken by another process",
        "`guarded-serve check --only host` names the holder; choose another port or end it",
    ),
    _sign(
        "port",
        re.escape(CANNOT_BIND.decode()),
        "its port could not be had",
        "the line above says why; ports below 1024 need a privilege, and the address must be this machine's",
    ),
    _sign(
        "memory",
        r"\bMemoryError\b|Cannot allocate memory|oom-kill|std::bad_alloc",
        "the machine ran out of memory",
        "give the server more memory, or lower max_total_tokens and the batch sizes",
    ),
    _sign(
        "watchdog",
        r"Watchdog timeout|watchdog.{0,40}timed? ?out",
        "SGLang's own watchdog ended it: a forward pass did not come back",
        "keep the crash folder for a report; `--watchdog-timeout` sets how long it waits",
    ),
)


def classify(
    status: int | None, tail: Sequence[str], *, out_of_memory_kills: int = 0, lost_process: str | None = None
) -> Death:
    """The most telling reason.

    ``status`` as `subprocess` counts, None while the server's main process still ran; ``tail`` its last lines;
    ``out_of_memory_kills`` what the memory cgroup counted since the start; ``lost_process`` a process of the server
    that ended before it, such as ``scheduler 4711``.
    """
    how = _how(status, lost_process)
    if out_of_memory_kills:
        return Death(
            "memory",
            f"the kernel killed {out_of_memory_kills} of its processes for memory ({how})",
            "raise the memory limit of the unit or container, or lower max_total_tokens and the batch sizes",
        )
    text = "\n".join(tail)
    for sign in _SIGNS:
        if sign.pattern.search(text):
            return Death(sign.kind, f"{sign.message} ({how})", sign.remedy)
    if "Traceback (most recent call last)" in text:
        return Death("crash", f"{_last_error(tail)} ({how})", "the last lines above hold the traceback")
    if status is None or status < 0:
        return Death(
            "killed",
            f"it was killed, and its log does not say why ({how})",
            "look for who sent the signal: the kernel's out-of-memory killer (`dmesg`), a person or a job scheduler",
        )
    return Death("exit", f"it ended by itself ({how})", "the last lines above are what it said")


def _how(status: int | None, lost_process: str | None) -> str:
    if status is None:
        return f"{lost_process} ended" if lost_process else "it was still running"
    ended = f"{lost_process} ended first, " if lost_process else ""
    if status < 0:
        try:
            return f"{ended}signal {signal.Signals(-status).name}"
        except ValueError:
            return f"{ended}signal {-status}"
    return f"{ended}exit status {status}"


def _last_error(tail: Sequence[str]) -> str:
    """The last line that names an exception."""
    for line in reversed(tail):
        match = re.search(r"\b([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*)", line)
        if match:
            return match.group(1)[:300]
    return "it crashed"
