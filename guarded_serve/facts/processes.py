"""Who a process is, from /proc: title, user, age, parent, container, unit; and who holds which file open.

Works without root for what it may see, and says what it could not see. ``root`` is /proc, or a made-up tree in a test.
"""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from guarded_serve.engine_link import ENVIRONMENT_KEY

PROC = Path("/proc")
SGLANG_TITLE = "sglang::"
_CONTAINER = re.compile(r"(?:^|[/:-])((?:docker|libpod|crio|cri-containerd)-)?([0-9a-f]{64})(?:\.scope)?(?:$|/)")
_PYTHONS = ("python", "pypy")
_REAPERS = (
    "init", "systemd", "tini", "dumb-init", "docker-init", "catatonit", "s6-svscan", "runsvdir", "pause",
    "containerd-shim", "containerd-shim-runc-v1", "containerd-shim-runc-v2", "conmon", "conmon-rs",
)  # fmt: skip
"""Programs that take over orphans (init of a container or session, or PR_SET_CHILD_SUBREAPER), by file name."""
_UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?:/|$)")


@dataclass(frozen=True)
class Process:
    """One process as /proc shows it.

    ``state`` is the letter of proc(5) (``Z`` is a zombie), or ``gone`` when no such PID is visible here. ``title`` is
    the command line, or the kernel's name for it where that is empty. ``age_s`` is in seconds. ``started`` (clock
    ticks since boot) tells a process from a later one with the same PID. ``unseen`` names what this user may not read.
    """

    pid: int
    state: str
    parent: int | None = None
    title: str = ""
    uid: int | None = None
    user: str | None = None
    age_s: float | None = None
    started: int | None = None
    session: int | None = None
    cgroup: str | None = None
    unit: str | None = None
    container: str | None = None
    other_pid_namespace: bool = False
    exe: str | None = None  # where this user may read it
    launch_id: str | None = None  # of the guarded launch whose marker is in its environment (setproctitle wipes it)
    launch_socket: str | None = None  # the launcher's socket, bound as long as that launcher lives
    unseen: tuple[str, ...] = ()

    @property
    def alive(self) -> bool:
        """Whether it can still hold anything."""
        return self.state not in ("gone", "Z", "X")

    @property
    def is_sglang(self) -> bool:
        """Whether it carries a title that SGLang gives its children (`sglang::scheduler` and its like)."""
        return self.title.startswith(SGLANG_TITLE)

    @property
    def adopts_orphans(self) -> bool:
        """Whether it is an init or another reaper, and so cannot be the program that spawned a scheduler.

        Python can be embedded in any other program (Triton's `triton_python_backend_stub`), which then is the server.
        """
        name = Path(self.exe or self.title.split(" ")[0] or "?").name.removesuffix(" (deleted)")
        if self.pid == 1:
            return not name.startswith(_PYTHONS) and (self.exe is not None or "sglang" not in self.title)
        return name in _REAPERS

    def describe(self) -> str:
        """One phrase that a person can act on."""
        if self.state == "gone":
            return f"PID {self.pid} (no such process here: it died, or it lives in another PID namespace)"
        parts = [f"user {self.user}" if self.user else "", f"{age(self.age_s)} old" if self.age_s is not None else ""]
        parts.append("a zombie" if self.state == "Z" else "")
        parts.append("orphaned (parent is PID 1)" if self.parent == 1 and self.is_sglang else "")
        parts.append(f"unit {self.unit}" if self.unit else "")
        parts.append(f"container {self.container[:12]}" if self.container else "")
        title = self.title if len(self.title) <= 80 else self.title[:79] + "…"
        return f"PID {self.pid} {title} ({', '.join(part for part in parts if part)})"


@dataclass(frozen=True)
class OpenFiles:
    """Which processes hold which of the files asked for; ``unreadable`` are the PIDs whose list may not be read."""

    by_pid: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    unreadable: tuple[int, ...] = ()


def age(seconds: float) -> str:
    """Seconds as a person says them: 42 s, 7 min, 3 h, 5 d."""
    for limit, unit, size in ((120.0, "s", 1.0), (7200.0, "min", 60.0), (172800.0, "h", 3600.0)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def process_ids(root: Path = PROC) -> Iterator[int]:
    """Every PID that is visible here."""
    try:
        names = sorted((entry.name for entry in root.iterdir() if entry.name.isdigit()), key=int)
    except OSError:
        return
    yield from map(int, names)


def read_process(pid: int, root: Path = PROC) -> Process:
    """What /proc says about one PID; never raises for a process that is gone or closed to us."""
    folder = root / str(pid)
    stat = _text(folder / "stat")
    if stat is None:
        return Process(pid, "gone")
    name, _, rest = stat[stat.find("(") + 1 :].rpartition(")")
    fields = rest.split()
    started = int(fields[19])
    unseen = []
    environment = _text(folder / "environ")
    if environment is None:
        unseen.append("environment")
    namespace, own = _link(folder / "ns" / "pid"), _link(root / "self" / "ns" / "pid")
    if namespace is None:
        unseen.append("namespace")
    uid = _uid(folder)
    cgroup = _cgroup(folder)
    marker = _marker(environment or "")
    return Process(
        pid=pid,
        state=fields[0],
        parent=int(fields[1]),
        title=read_title(pid, root) or name,
        uid=uid,
        user=_user(uid),
        age_s=_age(started, root),
        started=started,
        session=int(fields[3]),
        cgroup=cgroup,
        unit=_unit(cgroup),
        container=_container(cgroup),
        other_pid_namespace=None not in (namespace, own) and namespace != own,
        exe=_link(folder / "exe"),
        launch_id=marker.get("launch_id"),
        launch_socket=marker.get("socket"),
        unseen=tuple(unseen),
    )


def read_title(pid: int, root: Path = PROC) -> str:
    """The command line alone, words joined; empty for kernel threads and processes that are gone."""
    return (_text(root / str(pid) / "cmdline") or "").replace("\0", " ").strip()


def open_files(wanted: Callable[[str], bool], root: Path = PROC) -> OpenFiles:
    """Every process with an open file whose path ``wanted`` accepts (what `fuser` shows)."""
    found: dict[int, tuple[str, ...]] = {}
    unreadable = []
    for pid in process_ids(root):
        try:
            names = os.listdir(root / str(pid) / "fd")  # noqa: PTH208 - a Path per descriptor is slow
        except PermissionError:
            unreadable.append(pid)
            continue
        except OSError:
            continue
        targets = {target for name in names if (target := _link(root / str(pid) / "fd" / name)) and wanted(target)}
        if targets:
            found[pid] = tuple(sorted(targets))
    return OpenFiles(found, tuple(unreadable))


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return None


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115 - the link's text, which need not be a path
    except OSError:
        return None


def _uid(folder: Path) -> int | None:
    for line in (_text(folder / "status") or "").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return None


def _user(uid: int | None) -> str | None:
    if uid is None:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _age(started: int, root: Path) -> float | None:
    uptime = _text(root / "uptime")
    if uptime is None:
        return None
    return max(0.0, float(uptime.split()[0]) - started / os.sysconf("SC_CLK_TCK"))


def _cgroup(folder: Path) -> str | None:
    """The v2 path, else the longest v1 path: the one that names a unit or a container."""
    paths = [line.split(":", 2)[2] for line in (_text(folder / "cgroup") or "").splitlines() if line.count(":") >= 2]
    return max(paths, key=len) if paths else None


def _unit(cgroup: str | None) -> str | None:
    units: list[str] = _UNIT.findall(cgroup or "")
    return next((unit for unit in reversed(units) if not _CONTAINER.search("/" + unit)), None)


def _container(cgroup: str | None) -> str | None:
    match = _CONTAINER.search(cgroup or "")
    return match.group(2) if match else None


def _marker(environment: str) -> dict[str, str]:
    """The strings of the guard's marker (engine_link.EngineSettings), or nothing."""
    for entry in environment.split("\0"):
        key, _, value = entry.partition("=")
        if key == ENVIRONMENT_KEY:
            try:
                settings = json.loads(value)
            except ValueError:
                return {}
            return {k: v for k, v in settings.items() if isinstance(v, str)} if isinstance(settings, dict) else {}
    return {}


def unix_sockets(root: Path = PROC) -> frozenset[str]:
    """The paths of all bound Unix sockets; a path that is missing here has no process behind it."""
    lines = (_text(root / "net" / "unix") or "").splitlines()[1:]
    return frozenset(fields[7] for fields in (line.split(maxsplit=7) for line in lines) if len(fields) == 8)
