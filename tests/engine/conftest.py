"""The launcher's end of the link, for servers that a test starts itself."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.engine_link import ENVIRONMENT_KEY, EngineSettings
from guarded_serve.timing.reader import cycles, find_files
from guarded_serve.timing.record import Cycle
from guarded_serve.timing.totals import Totals
from tests.support.bare_sglang import Server, serve
from tests.support.toy import ToyPair, make_pair


@dataclass
class Marked:
    """A server that carries the launcher's mark, and everything that its plugin said."""

    server: Server
    folder: Path
    events: list[dict[str, Any]] = field(default_factory=list)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def records(self) -> list[Cycle]:
        """All records so far, once two beats have passed over them."""
        beats = len(self.of("beat"))
        deadline = time.monotonic() + 30
        while len(self.of("beat")) < beats + 2:
            assert time.monotonic() < deadline, "no beat"
            time.sleep(0.05)
        return [cycle for path in find_files([self.folder / "cycles"]) for cycle in cycles(path)]

    def totals(self) -> Totals:
        """As far as the scheduler has told them."""
        told = Totals()
        for event in self.of("totals"):
            told = told.updated(event["totals"])
        return told

    def switch(self, on: bool) -> None:
        """Switch the clock and wait for a beat that says so."""
        (self.folder / "control").write_text(json.dumps({"clock": on}))
        deadline = time.monotonic() + 30
        while self.of("beat")[-1]["clock"] is not on:
            assert time.monotonic() < deadline, "the clock did not switch"
            time.sleep(0.05)


@contextlib.contextmanager
def marked_server(
    folder: Path, target: Path, flags: Sequence[str], events: list[dict[str, Any]] | None = None, **environment: str
) -> Iterator[Marked]:
    """SGLang with the mark in its environment; its log is ``folder/log``; what it says goes to ``events``."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(folder / "socket"))
    settings = EngineSettings("test", str(folder / "socket"), str(folder / "control"), str(folder / "cycles"))
    events = [] if events is None else events

    def listen() -> None:
        while (data := listener.recv(1 << 20)) != b"end":
            events.append(json.loads(data))

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {ENVIRONMENT_KEY: settings.to_json(), **environment}.items():
                patch.setenv(name, value)
            with serve(target, flags, folder / "log", environment) as server:
                yield Marked(server, folder, events)
    finally:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as closer:
            closer.sendto(b"end", str(folder / "socket"))
        thread.join()
        listener.close()


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> ToyPair:
    return make_pair(tmp_path_factory.mktemp("toy") / "pair")
