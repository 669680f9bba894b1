"""What the installed SGLang's command line takes, as plain data.

Importing SGLang takes seconds (it imports torch), so a child process builds its parser once and writes it down; the
answer is kept in the user's cache folder for as long as SGLang, Python, the installed packages (a plugin may add
choices) and `SGLANG_PLUGINS` stay the same. Where SGLang is not installed (a laptop), a snapshot that ships with this
package stands in, and what it does not know is a warning.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding, Severity

CHILD_DEADLINE_S = 180.0  # a cold import of SGLang took 11 s on two cores; a cold disk takes longer
SNAPSHOT = Path(__file__).with_name("sglang_snapshot.json")
_CHILD = Path(__file__).with_name("dump_child.py")


@dataclass(frozen=True)
class Action:
    """One argument of SGLang's parser; the fields are argparse's, ``classes`` its class and its bases by name."""

    options: tuple[str, ...]
    dest: str
    nargs: str | int | None
    const: Any
    default: Any
    choices: tuple[Any, ...] | None
    type: str | None
    classes: tuple[str, ...]
    metavar: str | None
    help: str
    extra: Mapping[str, Any]
    name: str  # the setting's name in `Deployment.server`: SGLang's field, which is `dest` in newer versions

    @property
    def flag(self) -> str:
        """The first long option."""
        return next((option for option in self.options if option.startswith("--")), self.options[0])

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no value."""
        return self.nargs == 0

    @property
    def has_opposite(self) -> bool:
        """Whether there is a `--no-` form."""
        return "BooleanOptionalAction" in self.classes

    @property
    def takes_list(self) -> bool:
        """Whether the flag takes several values."""
        return self.nargs in ("+", "*") or (isinstance(self.nargs, int) and self.nargs > 1)

    @property
    def takes_json(self) -> bool:
        """Whether the value is JSON text."""
        return self.type in ("loads", "json_list_type", "parse_cuda_graph_config_arg")

    @property
    def keys(self) -> tuple[str, ...]:
        """The names that a profile may use: the flag's long forms in snake_case, then SGLang's own name."""
        flags = [
            option[2:].replace("-", "_")
            for option in self.options
            if option.startswith("--") and not (self.has_opposite and option.startswith("--no-"))
        ]
        return tuple(dict.fromkeys((*flags, self.dest, self.name)))


@dataclass(frozen=True)
class ParserDump:
    """SGLang's parser. ``installed`` is False for the shipped snapshot."""

    version: str
    installed: bool
    actions: tuple[Action, ...]
    config_switches: frozenset[str] = frozenset()  # keys of a `--config` file that set a switch
    config_refused: Mapping[str, str] = field(default_factory=dict)  # keys it may not have -> SGLang's action class

    @functools.cached_property
    def by_key(self) -> Mapping[str, Action]:
        """Actions by the names that a profile may use; a flag's own name wins over another's internal one."""
        table: dict[str, Action] = {}
        for position in range(max((len(action.keys) for action in self.actions), default=0)):
            for action in self.actions:
                if position < len(action.keys):
                    table.setdefault(action.keys[position], action)
        return table

    @functools.cached_property
    def by_name(self) -> Mapping[str, Action]:
        """Actions by setting; the first one registered stands for a setting with several flags."""
        table: dict[str, Action] = {}
        for action in self.actions:
            table.setdefault(action.name, action)
        return table

    @property
    def defaults(self) -> dict[str, Any]:
        """SGLang's defaults by setting, before it resolves what it leaves open (None)."""
        return {name: action.default for name, action in self.by_name.items()}


class ParserUnavailable(Exception):
    """SGLang is installed but its parser could not be built; ``finding`` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def sglang_parser() -> ParserDump:
    """The installed SGLang's parser, or the shipped snapshot. Raises ParserUnavailable."""
    return installed_parser() or snapshot()


def installed_version() -> str | None:
    """The installed SGLang's version, without importing it; None where it is not installed."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_parser() -> ParserDump | None:
    """The installed SGLang's parser, from the cache or a child process; None where SGLang is not installed.

    Raises ParserUnavailable.
    """
    version = installed_version()
    server_args = _server_args_file()
    if version is None or server_args is None:
        return None
    cache = cache_folder() / f"parser-{version}-{_fingerprint(version, server_args)}.json"
    try:
        return _read(cache, version, installed=True)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there yet, or not what we wrote: build it anew
    with _scratch_beside(cache) as scratch:
        _build(scratch, version)
        try:
            dump = _read(scratch, version, installed=True)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ParserUnavailable(_unavailable(version, f"its answer is unreadable: {error}")) from error
        try:
            scratch.replace(cache)
        except OSError:
            pass  # no cache: the next start builds it again
        return dump


def snapshot() -> ParserDump:
    """The parser of the SGLang version that this package was last released against."""
    return _read(SNAPSHOT, json.loads(SNAPSHOT.read_text())["version"], installed=False)


def cache_folder() -> Path:
    """Where the dumps are kept: `$XDG_CACHE_HOME/guarded-serve`, by default under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path("~/.cache").expanduser()
    return root / "guarded-serve"


def _server_args_file() -> Path | None:
    spec = importlib.util.find_spec("sglang")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / "srt" / "server_args.py"
        if file.is_file():
            return file
    return None


def _fingerprint(version: str, server_args: Path) -> str:
    """What the parser depends on: SGLang, Python, our dump format, and plugins, which come and go with packages."""
    parts = [version, sys.version, str(server_args), os.environ.get("SGLANG_PLUGINS", ""), _CHILD.read_text()]
    folders = [server_args, *(Path(entry) for entry in sys.path if entry.endswith(("site-packages", "dist-packages")))]
    for path in folders:
        try:
            parts.append(f"{path}@{path.stat().st_mtime_ns}")
        except OSError:
            parts.append(f"{path}@missing")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@contextmanager
def _scratch_beside(cache: Path) -> Iterator[Path]:
    """A private file to write, on the cache's own file system where that can be written."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=cache.parent, prefix=".parser-")
    except OSError:
        folder = tempfile.TemporaryDirectory(prefix="guarded-serve-")
    with folder as path:
        yield Path(path) / "dump.json"


def _build(output: Path, version: str) -> None:
    command = [sys.executable, "-c", _CHILD.read_text(), str(output)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=CHILD_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ParserUnavailable(_unavailable(version, f"it did not answer within {CHILD_DEADLINE_S:.0f} s")) from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ParserUnavailable(_unavailable(version, lines[-1] if lines else f"exit status {done.returncode}"))


def _unavailable(version: str, reason: str) -> Finding:
    return Finding(
        "profile.sglang",
        Severity.ERROR,
        f"SGLang {version} is installed, but its argument parser could not be built: {reason}",
        where=sys.executable,
        remedy=f"`{Path(sys.executable).name} -m sglang.launch_server --help` should show the same fault",
        exit_code=ExitCode.SERVER,
    )


def _read(path: Path, version: str, *, installed: bool) -> ParserDump:
    data = json.loads(path.read_text(encoding="utf-8"))
    actions = tuple(_actions(data["actions"], set(data["fields"])))
    config = data["config"]
    return ParserDump(version, installed, actions, frozenset(config["switches"]), config["refused"])


def _actions(entries: Iterable[Mapping[str, Any]], fields: set[str]) -> Iterator[Action]:
    for entry in entries:
        names = [option.lstrip("-").replace("-", "_") for option in entry["options"]]
        own = [name for name in (entry["dest"], *names) if name in fields]
        yield Action(
            options=tuple(entry["options"]),
            dest=entry["dest"],
            nargs=entry["nargs"],
            const=entry["const"],
            default=entry["default"],
            choices=None if entry["choices"] is None else tuple(entry["choices"]),
            type=entry["type"],
            classes=tuple(entry["classes"]),
            metavar=entry["metavar"],
            help=entry["help"],
            extra=entry["extra"],
            name=own[0] if own else entry["dest"],
        )
