"""A small process between the launcher and the server, so that nothing of the server can outlive the launcher.

It runs as a script (``python -I -S sentinel.py FD``) and imports the standard library alone: about 9 MB resident.
It is the server's parent and the "child subreaper" of everything below it, so a grandchild that leaves its session
or whose parent dies stays in this tree and is found. When the launcher goes away, however it goes (the socket to it
closes), the sentinel kills the tree, removes the run folder and the shared memory that the tree left, and ends.
Should the sentinel itself be killed, the kernel kills the server (PR_SET_PDEATHSIG), and the launcher, a subreaper
as well, ends the rest.

Messages are JSON packets over a SOCK_SEQPACKET socket:

- from the launcher: ``{"argv": [...], "run_folder": ...}`` first, then ``{"do": "note"}`` (take note of the shared
  memory that the tree holds now), ``{"do": "terminate"}`` (note, then SIGTERM to the server: the other way round it
  could be gone before its memory was known) and ``{"do": "kill"}``;
- to the launcher: ``{"started": pid}``, ``{"exited": status}`` (as `subprocess` counts: negative for a signal),
  ``{"removed": [paths]}``. The socket's end means that no process of the tree is left.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import shutil
import signal
import socket
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SHARED_MEMORY = "/dev/shm"
# Families whose names carry their maker's process id (SGLang, multiprocessing, joblib, torch, NCCL, CUDA IPC).
_NAMED_BY_PROCESS = (
    "sgl_shm",
    "multi_tokenizer_args_",
    "sem.loky-",
    "sem.mp-",
    "loky-",
    "torch_",
    "nccl-",
    "cuda.shm.",
)
_SIGNALS_TO_RESET = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)


def prctl(option: int, value: int) -> None:
    """Linux's prctl(2) with one argument; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def parents() -> dict[int, int]:
    """Every visible process and its parent."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                    found[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue  # it ended meanwhile
    return found


def descendants(root: int) -> list[int]:
    """Every process below ``root``, parents before their children; zombies included."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found, queue = [], list(children.get(root, ()))
    while queue:
        pid = queue.pop(0)
        found.append(pid)
        queue.extend(children.get(pid, ()))
    return found


def shared_memory_of(pids: Iterable[int]) -> set[str]:
    """The files under /dev/shm that these processes have mapped, by their names of now.

    By inode: a POSIX semaphore is mapped under a name of its creation that is gone at once (glibc's sem_open).
    """
    inodes: set[str] = set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                inodes.update(line.split(None, 5)[4] for line in file if SHARED_MEMORY + "/" in line)
        except (OSError, IndexError):
            continue
    return {path for path in shared_memory() if _inode(path) in inodes} if inodes else set()


def _inode(path: str) -> str:
    try:
        return str(os.lstat(path).st_ino)
    except OSError:
        return ""


def shared_memory() -> set[str]:
    """Everything under /dev/shm."""
    try:
        return {f"{SHARED_MEMORY}/{name}" for name in os.listdir(SHARED_MEMORY)}  # noqa: PTH208
    except OSError:
        return set()


def in_first_pid_namespace(link: str = "/proc/self/ns/pid") -> bool:
    """Whether process ids are the machine's own; the kernel gives that namespace a fixed number (PROC_PID_INIT_INO)."""
    try:
        return os.readlink(link) == f"pid:[{0xEFFFFFFC}]"  # noqa: PTH115
    except OSError:
        return False


def named_after(pids: Iterable[int]) -> set[str]:
    """The files under /dev/shm of the known families whose names hold one of these process ids."""
    wanted = set(pids)
    found = set()
    for path in shared_memory():
        name = path.rpartition("/")[2]
        if name.startswith(_NAMED_BY_PROCESS) and any(
            int(number) in wanted for number in re.findall(r"(?<![0-9a-zA-Z])[0-9]{1,7}(?![0-9a-zA-Z])", name)
        ):
            found.add(path)
    return found


def remove_shared_memory(paths: Iterable[str], before: Collection[str]) -> list[str]:
    """Remove what was not there ``before``, is ours, and no process maps any more."""
    candidates = set()
    for path in set(paths).difference(before):
        try:
            if os.lstat(path).st_uid == os.geteuid():
                candidates.add(path)
        except OSError:
            continue
    if not candidates:
        return []
    candidates -= shared_memory_of(parents())
    removed = []
    for path in sorted(candidates):
        try:
            os.unlink(path)  # noqa: PTH108
        except OSError:
            continue
        removed.append(path)
    return removed


def send_signal(pid: int, number: int) -> bool:
    """Whether the process was there to be signalled."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class _Sentinel:
    """The loop: children, the launcher's wishes, and the end."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        link.set_inheritable(False)  # it came through an exec; the server must not keep it open
        self.server = 0
        self.exited = False  # the server; its process id may be another's by now
        self.run_folder: str | None = None
        self.before = shared_memory()
        self.ending = False  # asked to end by itself
        self.killing = False
        self.orphaned = False  # the launcher is gone
        self.seen: set[int] = set()
        self.shared: set[str] = set()

    def run(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        packet = self.link.recv(1 << 20)
        if not packet:
            return
        request = json.loads(packet)
        self.run_folder = request["run_folder"]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)  # only the launcher decides
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.server = self._start(request["argv"])
        self._tell({"started": self.server})
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)  # the log pipe ends with the server, not with us
        poll = select.poll()
        poll.register(self.link, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        while self._reap():
            if self.killing:
                self._kill()
            elif self.ending:
                self._note()  # it may still be starting, and make more
            ready = poll.poll(50 if self.killing else 200 if self.ending else None)
            for descriptor, _ in ready:
                if descriptor == wake_read:
                    _drain(wake_read)
                elif not self.orphaned and not self._obey():
                    self.orphaned = self.killing = True
                    poll.unregister(self.link)
        self._note()
        # In a PID namespace of our own, /dev/shm may be the host's, where others' process ids are the same numbers.
        named = named_after(self.seen) if in_first_pid_namespace() else set()
        removed = remove_shared_memory(self.shared | named, self.before)
        self._tell({"removed": removed})
        if self.orphaned and self.run_folder:
            shutil.rmtree(self.run_folder, ignore_errors=True)

    def _start(self, argv: list[str]) -> int:
        sentinel = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != sentinel:
                os._exit(1)
            for number in _SIGNALS_TO_RESET:
                signal.signal(number, signal.SIG_DFL)
            os.execvp(argv[0], argv)
        except OSError as error:
            os.write(2, f"cannot run {argv[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def _reap(self) -> bool:
        """Collect what ended; False when no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.seen.add(pid)
            if pid == self.server:
                self.exited = True
                self._tell({"exited": os.waitstatus_to_exitcode(status)})

    def _obey(self) -> bool:
        """One message from the launcher; False when it is gone."""
        try:
            packet = self.link.recv(1 << 16)
        except OSError:
            return False
        if not packet:
            return False
        message = json.loads(packet)
        wish = message.get("do")
        if wish == "note":
            self._note()
        elif wish == "terminate":
            self._note()
            self.ending = True
            if not self.exited:
                send_signal(self.server, signal.SIGTERM)
        elif wish == "kill":
            self._note()
            self.killing = True
        return True

    def _note(self) -> list[int]:
        """Remember the tree's processes and their shared memory; returns the processes."""
        below = descendants(os.getpid())
        self.seen.update(below)
        self.shared |= shared_memory_of(below)
        return below

    def _kill(self) -> None:
        for pid in self._note():
            send_signal(pid, signal.SIGKILL)

    def _tell(self, message: dict[str, object]) -> None:
        try:
            self.link.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)
        except OSError:
            pass  # the launcher is gone or stopped: its socket's end is noticed in the loop


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass


def script() -> str:
    """The path to run."""
    return str(Path(__file__).resolve())


if __name__ == "__main__":
    _Sentinel(socket.socket(fileno=int(sys.argv[1]))).run()
