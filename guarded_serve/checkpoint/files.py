"""Opening files that may be anything: a pointer, a pipe, a loop of links, somebody else's.

A FIFO or a device would block or never end, so only regular files are opened; sizes are bounded before a read.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from guarded_serve.checkpoint.problem import Problem

LFS_MAGIC = b"version https://git-lfs.github.com/spec/"
LFS_REMEDY = "fetch the real file: `git lfs pull`, or `hf download` instead of `git clone`"


class Unreadable(Exception):
    """A file that cannot be read; carries the problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def regular_size(path: Path) -> int:
    """Size in bytes of a regular file; raises `Unreadable` for everything else."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise Unreadable(_problem(path, error)) from error
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable(Problem("not-a-file", f"{path.name} is not a regular file", path))
    return status.st_size


def read_bytes(path: Path, *, limit: int, offset: int = 0, length: int | None = None) -> bytes:
    """``length`` bytes from ``offset`` (all if None), at most ``limit``; raises `Unreadable`."""
    size = regular_size(path)
    wanted = size - offset if length is None else length
    if wanted > limit:
        raise Unreadable(
            Problem("too-large", f"{path.name} has {wanted} bytes to read; the guard reads at most {limit}", path)
        )
    with open_regular(path) as file:
        try:
            file.seek(offset)
            return file.read(max(wanted, 0))
        except (OSError, ValueError) as error:
            raise Unreadable(_problem(path, error)) from error


def open_regular(path: Path) -> BinaryIO:
    """A regular file, to be read; raises `Unreadable` for everything else, and never waits for a FIFO's writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise Unreadable(_problem(path, error)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Unreadable(Problem("not-a-file", f"{path.name} is not a regular file", path))
    return os.fdopen(descriptor, "rb")


def read_json(path: Path, *, limit: int) -> Any:
    """The parsed file; raises `Unreadable` when it is missing, too large, or no JSON."""
    raw = read_bytes(path, limit=limit)
    if raw.startswith(LFS_MAGIC):
        raise Unreadable(lfs_pointer(path, raw))
    return parse_json(raw, path)


MAX_CONTAINERS = 600_000
MAX_ITEMS = 1_200_000
"""Objects and lists, and values, in one JSON text: parsed, a short text of brackets takes twenty times its size."""


def parse_json(raw: bytes, path: Path) -> Any:
    """JSON from bytes; raises `Unreadable` with the place of the fault, or where it would unfold to too much."""
    containers, items = raw.count(b"{") + raw.count(b"["), raw.count(b",")
    if containers > MAX_CONTAINERS or items > MAX_ITEMS:
        message = (
            f"{path.name} has more than {MAX_ITEMS} values or {MAX_CONTAINERS} objects; the guard does not read it"
        )
        raise Unreadable(Problem("too-large", message, path))
    try:
        return json.loads(raw.decode())  # as transformers and SGLang read it: UTF-8 without a byte order mark
    except RecursionError as error:
        raise Unreadable(Problem("bad-json", f"{path.name} is nested too deeply to be read", path)) from error
    except (ValueError, MemoryError) as error:
        reason = str(error).partition(" (char")[0][:200]
        raise Unreadable(Problem("bad-json", f"{path.name} is not valid JSON: {reason}", path)) from error


def lfs_pointer(path: Path, raw: bytes) -> Problem:
    """The problem of a Git LFS pointer that stands in for the real file; names the size it points to."""
    fields = dict(
        line.split(" ", 1) for line in raw[:1024].decode("utf-8", "replace").splitlines() if line.count(" ") == 1
    )
    size = fields.get("size")
    real = f"; the real file has {size} bytes" if size else ""
    return Problem(
        "lfs-pointer",
        f"{path.name} is a Git LFS pointer of {len(raw)} bytes, not the file itself{real}",
        path,
        expected=f"{size} bytes" if size else "the file itself",
        found=f"{len(raw)} bytes",
        remedy=LFS_REMEDY,
    )


def _problem(path: Path, error: Exception) -> Problem:
    code = getattr(error, "errno", None)
    if code == errno.ENOENT:
        if path.is_symlink():
            target = os.readlink(path)  # noqa: PTH115 - a broken link's text, whatever it is
            return Problem("missing", f"{path.name} is a link to {target}, which does not exist", path)
        return Problem("missing", f"{path.name} does not exist", path)
    if code == errno.ELOOP:
        return Problem("link-loop", f"{path.name} is a symbolic link that ends in itself", path)
    if code in (errno.EACCES, errno.EPERM):
        return Problem(
            "no-permission",
            f"{path.name} may not be read by this user (uid {os.geteuid()})",
            path,
            remedy=f"chmod a+r {path}",
        )
    reason = os.strerror(code) if code else str(error)
    return Problem("unreadable", f"{path.name} cannot be read: {reason}", path)
