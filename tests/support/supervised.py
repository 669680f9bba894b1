"""Runs the supervisor over `fake_server.py` in a process of its own, as `launch_server` runs it over SGLang.

It is given one JSON argument; `Supervised` is the test's side of it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from guarded_serve.checks.load import Foretold
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.ports import free_port
from guarded_serve.findings import Finding, Outcome, Report, Severity, Status
from guarded_serve.profile.deployment import Deployment, Setting
from guarded_serve.profile.model import Profile
from guarded_serve.supervisor import crash, sentinel
from guarded_serve.supervisor.lines import Format
from guarded_serve.supervisor.preflight import Gate
from guarded_serve.supervisor.probing import Probed
from guarded_serve.supervisor.ready import Address, generate
from guarded_serve.supervisor.run import Options, supervise

ROOT = Path(__file__).resolve().parents[2]


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether it became true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


class Supervised:
    """A launcher process over a scripted server. Use as a context manager."""

    def __init__(
        self,
        folder: Path,
        scenario: Mapping[str, Any] | None = None,
        profile: Mapping[str, Any] | None = None,
        *,
        arguments: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        gates: tuple[int, ...] = (0,),
        gate_s: float = 0.0,
        log_format: str | None = None,
        wild_clock: bool = False,
        probe: Mapping[str, Any] | None = None,
        before: list[str] | None = None,
        dump_s: float | None = None,
        sentinel_s: float = 0.0,
        gpus: int = 0,
        server: Mapping[str, Any] | None = None,
        **popen: Any,
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.pid_file = folder / "pids"
        self.log = folder / "log"
        request = {
            "scenario": {"pid_file": str(self.pid_file), **(scenario or {})},
            "profile": {"server": {"model_path": "/none"}, **(profile or {})},
            "arguments": ["--port", str(self.port), *arguments],
            "server": {"port": self.port, **(server or {})},
            "gates": gates,
            "gate_s": gate_s,
            "log_format": log_format,
            "wild_clock": wild_clock,
            "probe": probe,
            "dump_s": dump_s,
            "sentinel_s": sentinel_s,
            "gpus": gpus,
        }
        if "--api-key" in arguments:
            request["server"]["api_key"] = arguments[arguments.index("--api-key") + 1]
        output = popen.pop("stdout", None)
        self._file = self.log.open("wb") if output is None else None
        # Not below `folder`: a socket's path has 107 bytes at most, and pytest's folders grow with its workers' names.
        self.run_base = Path(tempfile.mkdtemp(prefix="gs-run-"))
        self.process = subprocess.Popen(
            [*(before or ()), sys.executable, __file__, json.dumps(request)],
            stdout=output if self._file is None else self._file,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "XDG_RUNTIME_DIR": str(self.run_base),
                "XDG_STATE_HOME": str(folder / "state"),
                **(environment or {}),
            },
            **popen,
        )

    def __enter__(self) -> Supervised:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._file is not None:
            self._file.close()
        for pid in self.pids().values():
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.run_base, ignore_errors=True)

    def text(self) -> str:
        """The log so far."""
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str, seconds: float = 30.0) -> str:
        """Wait until the log matches; returns the match."""
        found = wait_until(lambda: re.search(pattern, self.text()) is not None, seconds)
        assert found, f"no {pattern!r} within {seconds} s in:\n{self.text()[-4000:]}"
        match = re.search(pattern, self.text())
        assert match is not None
        return match.group(0)

    def pids(self) -> dict[str, int]:
        """Every process of the scripted server by role, dead or alive; the newest of a role."""
        try:
            lines = self.pid_file.read_text().splitlines()
        except OSError:
            return {}
        return {role: int(pid) for role, pid in (line.split() for line in lines if " " in line)}

    def send(self, number: int) -> None:
        """Signal the launcher."""
        self.process.send_signal(number)

    def end(self, seconds: float = 30.0) -> int:
        """Wait for the launcher's end; its exit status."""
        return self.process.wait(seconds)

    def states(self) -> list[str]:
        """The states in the order of the log."""
        return re.findall(r"\bstate=(\w+)", self.text())

    def left(self) -> list[str]:
        """What is left of the server: processes, the port, the run folder, shared memory."""
        left = [f"{role} {pid}" for role, pid in self.pids().items() if alive(pid)]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError:
                left.append(f"port {self.port}")
        left += [str(path) for path in self.run_base.iterdir()]
        wanted = {str(pid) for pid in self.pids().values()}
        left += [str(path) for path in Path("/dev/shm").glob("sglang_loads_fake_*") if path.name[18:-5] in wanted]
        return left


def _gate(code: ExitCode) -> Gate:
    if code is ExitCode.OK:
        return Gate(code, Report((Outcome("drafter.map", Status.PASS),)), foretold=Foretold(captured=(2, 4, 6)))
    finding = Finding(
        "drafter.map", Severity.ERROR, "d2t holds absolute ids", remedy="store differences", exit_code=code
    )
    return Gate(code, Report((Outcome("drafter.map", Status.FAIL, (finding,)),)))


def _run(request: dict[str, Any]) -> int:
    deployment = Deployment(
        profile=Profile.model_validate(request["profile"]),
        profile_path=None,
        server={name: Setting(value, "test") for name, value in request["server"].items()},
        defaults={"host": "127.0.0.1"},
        arguments=tuple(request["arguments"]),
    )

    codes = list(request["gates"])
    if request["wild_clock"]:
        rightly, asked = time.time, itertools.count()
        time.time = lambda: rightly() + (7 * next(asked) % 41 - 20) * 40 * 86400  # up to two years off, each time anew

    if request.get("dump_s") is not None:  # py-spy takes its time with a process that hangs
        crash.dump_stacks = lambda *_: time.sleep(request["dump_s"])

    if request.get("sentinel_s"):  # it needs a while to come up
        late = Path(request["scenario"]["pid_file"]).with_name("late_sentinel.py")
        late.write_text(
            f"import runpy, time; time.sleep({request['sentinel_s']})\n"
            f"runpy.run_path({sentinel.script()!r}, run_name='__main__')\n"
        )
        sentinel.script = lambda: str(late)

    def preflight(_: Deployment) -> Gate:
        time.sleep(request["gate_s"])
        return replace(_gate(ExitCode(codes.pop(0) if len(codes) > 1 else codes[0])), gpus=request.get("gpus", 0))

    def probe(asked: Deployment, address: Address) -> Probed:
        said = request["probe"]
        time.sleep(said.get("seconds", 0))
        assert generate(address, 5).ok
        if said.get("no_answer"):
            return Probed("probe: failed", server_failure="the probe got no answer: /generate: TimeoutError")
        if not said.get("error"):
            return Probed("accept length 2.40")
        finding = Finding("probe.accept_length", Severity.ERROR, "accept length 1.02 on 8 prompts")
        return Probed("accept length 1.02", (finding,), asked if said.get("instead") else None)

    def reload() -> Deployment:
        limits = deployment.profile.supervise.model_copy(update={"hang_s": 77.0})
        return replace(deployment, profile=deployment.profile.model_copy(update={"supervise": limits}))

    command = (sys.executable, str(Path(__file__).with_name("fake_server.py")), json.dumps(request["scenario"]))
    log_format = Format(request["log_format"]) if request["log_format"] else None
    return supervise(
        deployment,
        preflight,
        Options(log_format=log_format, command=command, reload=reload, probe=probe if request.get("probe") else None),
    )


if __name__ == "__main__":
    sys.exit(_run(json.loads(sys.argv[1])))
