"""A made-up /proc: processes with titles, parents, open files, control groups."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

_UPTIME_S = 100_000.0
_OWN_NAMESPACE = "pid:[4026531836]"


class FakeProc:
    """Build with `add`; hand ``root`` to the code under test."""

    def __init__(self, root: Path, init: str = "/sbin/init", init_exe: str | None = "/usr/lib/systemd/systemd") -> None:
        self.root = root
        (root / "net").mkdir(parents=True)
        (root / "uptime").write_text(f"{_UPTIME_S} 0\n")
        (root / "meminfo").write_text("MemTotal: 134217728 kB\nMemAvailable: 125829120 kB\n")
        (root / "net" / "unix").write_text("Num RefCount Protocol Flags Type St Inode Path\n")
        for name in ("tcp", "tcp6"):
            (root / "net" / name).write_text("  sl  local_address rem_address   st ...\n")
        self.add(os.getpid(), "pytest", parent=1)
        (root / "self").symlink_to(str(os.getpid()))
        self.add(1, init, exe=init_exe)

    def add(
        self,
        pid: int,
        title: str,
        *,
        parent: int = 1,
        uid: int = 0,
        age_s: float = 600.0,
        state: str = "S",
        files: Sequence[str] = (),
        cgroup: str = "/",
        environ: str = "",
        exe: str | None = "/usr/bin/python3.11",
        namespace: str = _OWN_NAMESPACE,
    ) -> int:
        """One process; ``files`` are the targets of its open descriptors."""
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "ns").mkdir()
        started = int((_UPTIME_S - age_s) * os.sysconf("SC_CLK_TCK"))
        fields = [state, parent, pid, pid, *[0] * 15, started, *[0] * 20]
        (folder / "stat").write_text(f"{pid} ({title[:15]}) " + " ".join(map(str, fields)))
        (folder / "cmdline").write_text(title.replace(" ", "\0") + "\0")
        (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        (folder / "environ").write_text(environ)
        (folder / "ns" / "pid").symlink_to(namespace)
        if exe is not None:
            (folder / "exe").symlink_to(exe)
        for number, target in enumerate(files):
            (folder / "fd" / str(number)).symlink_to(target)
        return pid

    def remove(self, pid: int) -> None:
        """The process ended."""
        shutil.rmtree(self.root / str(pid))

    def bind_unix(self, path: str) -> None:
        """A process listens on this Unix socket."""
        with (self.root / "net" / "unix").open("a") as file:
            file.write(f"0000000000000000: 00000002 00000000 00000000 0002 01 4242 {path}\n")


def nvidia(*cards: int) -> tuple[str, ...]:
    """The device files that a CUDA program has open on these cards."""
    return ("/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{card}" for card in cards))
