"""The unit file under a real systemd, over the scripted server; the real engine's part is marked `engine`."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.exit_codes import NOT_WORTH_A_RESTART
from guarded_serve.facts.ports import free_port
from tests.support.supervised import ROOT
from tests.support.systemd import Systemd, why_not

UNITS = ROOT / "systemd"
UNIT = "guarded-serve@demo.service"

needs_systemd = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def unit_text() -> str:
    return (UNITS / "guarded-serve@.service").read_text()


@pytest.fixture(scope="module")
def booted() -> Iterator[Systemd]:
    system = Systemd()
    yield system
    system.close()


@pytest.fixture
def systemd(booted: Systemd) -> Iterator[Systemd]:
    booted.install("guarded-serve@.service", unit_text())
    yield booted
    booted.run("systemctl", "kill", "--signal=KILL", UNIT)
    booted.run("systemctl", "stop", UNIT)
    booted.run("systemctl", "reset-failed", UNIT)
    booted.run("rm", "-rf", f"/run/systemd/system/{UNIT}.d")
    booted.run("systemctl", "daemon-reload")


def start(systemd: Systemd, command: str, *lines: str, wait: bool = True) -> None:
    """Start the unit with its own settings but for the command, the user and ``lines``."""
    script = "/run/guarded-serve-demo.sh"
    systemd.run("sh", "-c", 'printf %s "$1" >"$2"', "sh", f"exec {command}\n", script)
    dropped = ["[Service]", "ExecStart=", f"ExecStart=/bin/sh {script}", "User=root", "Group=root", *lines]
    dropped.append("PrivateTmp=no")  # this Python's packages may lie under /tmp
    systemd.install(f"{UNIT}.d/test.conf", "\n".join([*dropped, f"Environment=PYTHONPATH={ROOT}", ""]))
    systemd.run("systemctl", "start", *(() if wait else ("--no-block",)), UNIT)


def scripted(scenario: dict[str, Any] | None = None, profile: dict[str, Any] | None = None, **more: Any) -> str:
    """The command that supervises the scripted server."""
    port = free_port()
    request = {
        "scenario": scenario or {},
        "profile": {"server": {"model_path": "/none"}, **(profile or {})},
        "arguments": ["--port", str(port)],
        "server": {"port": port},
        "gates": (0,),
        "gate_s": 0.0,
        "log_format": None,
        "wild_clock": False,
        **more,
    }
    return shlex.join([sys.executable, str(ROOT / "tests/support/supervised.py"), json.dumps(request)])


def pid_of(systemd: Systemd, title: str) -> int:
    (pid,) = systemd.run("pgrep", "-f", f"^{title}").output.split()
    return int(pid)


def test_exit_codes_that_are_not_worth_a_restart_are_the_same_in_code_and_unit() -> None:
    (numbers,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit_text(), re.MULTILINE)
    assert numbers == " ".join(str(int(code)) for code in sorted(NOT_WORTH_A_RESTART))


def test_every_reason_for_a_limit_holds() -> None:
    values = dict(re.findall(r"^(\w+)=(.*)$", unit_text(), re.MULTILINE))
    assert int(values["StartLimitIntervalSec"].rstrip("h")) * 3600 > int(values["StartLimitBurst"]) * (1800 + 10)
    assert int(values["WatchdogSec"]) > 120  # supervise.hang_s: the launcher's own verdict comes first
    assert int(values["TimeoutStopSec"]) >= 120 + 10  # supervise.drain_s, and the kill
    assert "ExecStartPre" not in values
    assert "ExecStopPost" not in values
    assert "MemoryDenyWriteExecute" not in values
    assert values["KillMode"] == "mixed"


def test_its_documentation_is_what_pip_installs_beside_the_program() -> None:
    """tests/test_package.py holds that the built wheel has it."""
    (environment,) = re.findall(r"^ExecStart=(/.*)/bin/python ", unit_text(), re.MULTILINE)
    (page,) = re.findall(r"^Documentation=.*file://(\S+)$", unit_text(), re.MULTILINE)
    shared = Path(page).relative_to(environment)
    assert shared.parent == Path("share/doc/guarded-serve")
    assert (ROOT / "docs" / shared.name).is_file()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_analyze_is_content(tmp_path: Path) -> None:
    unit = tmp_path / "guarded-serve@demo.service"
    unit.write_text(unit_text().replace("/opt/guarded-serve/bin/python", sys.executable))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert verified.stdout + verified.stderr == ""
    assert verified.returncode == 0
    score = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=40", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert score.returncode == 0, score.stdout[-400:]  # docs/operations.md states the score


@needs_systemd
def test_ready_status_and_stop(systemd: Systemd) -> None:
    start(systemd, scripted({"start_s": 1.0, "leaver": True}))
    found = systemd.wait(UNIT, lambda unit: unit["ActiveState"] == "active", 20)
    assert found["ActiveState"] == "active", systemd.journal(UNIT)
    assert found["StatusText"].startswith("serving")
    before = len(systemd.processes(UNIT))
    assert before >= 5  # launcher, sentinel, main, two children, the one that left
    asked = time.monotonic()
    systemd.run("systemctl", "stop", UNIT)
    assert time.monotonic() - asked < 20
    found = systemd.show(UNIT, "ActiveState", "Result", "ExecMainStatus")
    assert found == {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}
    assert systemd.processes(UNIT) == []
    assert systemd.run("pgrep", "-f", "fake_server").output == ""


@needs_systemd
def test_not_active_before_ready(systemd: Systemd) -> None:
    start(systemd, scripted({"start_s": 5.0, "say": ["Load weight begin."]}), wait=False)
    found = systemd.wait(UNIT, lambda unit: "loading weights" in unit["StatusText"], 10)
    assert found["ActiveState"] == "activating"
    assert systemd.wait(UNIT, lambda unit: unit["ActiveState"] == "active", 15)["ActiveState"] == "active"


@needs_systemd
def test_a_refusal_is_not_restarted(systemd: Systemd) -> None:
    start(systemd, scripted(gates=(65,)), "RestartSec=1")
    time.sleep(3)
    found = systemd.wait(UNIT, lambda unit: unit["ActiveState"] == "failed", 10)
    assert found["ActiveState"] == "failed"
    assert found["Result"] == "exit-code"
    assert found["ExecMainStatus"] == "65"
    assert found["NRestarts"] == "0"


@needs_systemd
def test_a_crash_is_restarted(systemd: Systemd) -> None:
    start(systemd, scripted(), "RestartSec=1")
    systemd.wait(UNIT, lambda unit: unit["ActiveState"] == "active", 20)
    systemd.run("kill", "-KILL", str(pid_of(systemd, "sglang::scheduler")))
    found = systemd.wait(UNIT, lambda unit: unit["NRestarts"] == "1" and unit["ActiveState"] == "active", 25)
    assert found["NRestarts"] == "1"
    assert found["ActiveState"] == "active"
    assert "state=failed" in systemd.journal(UNIT)
    errors = systemd.run("journalctl", "--unit", UNIT, "--priority=err", "--no-pager", "--output=cat").output
    assert "state=failed" in errors
    assert "state=serving" not in errors


@needs_systemd
def test_the_watchdog_ends_a_stopped_scheduler(systemd: Systemd) -> None:
    # Shorter than hang_s here, so that it is systemd's watchdog that acts, and not the launcher.
    start(systemd, scripted(), "WatchdogSec=6", "RestartSec=1")
    systemd.wait(UNIT, lambda unit: unit["ActiveState"] == "active", 20)
    time.sleep(8)
    assert systemd.show(UNIT, "ActiveState")["ActiveState"] == "active"  # it is fed while all is well
    systemd.run("kill", "-STOP", str(pid_of(systemd, "sglang::scheduler")))
    found = systemd.wait(UNIT, lambda unit: unit["NRestarts"] == "1", 15)
    assert found["NRestarts"] == "1"
    journal = systemd.run("journalctl", "--no-pager", "--output=cat").output
    assert "Watchdog timeout" in journal
    assert systemd.wait(UNIT, lambda unit: unit["ActiveState"] == "active", 20)["ActiveState"] == "active"


@needs_systemd
def test_a_long_start_is_waited_for_while_it_makes_progress(systemd: Systemd) -> None:
    start(systemd, scripted({"start_s": 14.0}), "TimeoutStartSec=5", wait=False)
    found = systemd.wait(UNIT, lambda unit: unit["ActiveState"] in ("active", "failed"), 30)
    assert found["ActiveState"] == "active"


@needs_systemd
def test_reload(systemd: Systemd) -> None:
    start(systemd, scripted())
    systemd.wait(UNIT, lambda unit: unit["ActiveState"] == "active", 20)
    assert systemd.run("systemctl", "reload", UNIT).status == 0
    found = systemd.wait(UNIT, lambda unit: "in force now" in systemd.journal(UNIT), 5)
    assert found["ActiveState"] == "active"
    assert "supervise.hang_s = 77" in systemd.journal(UNIT)


@needs_systemd
def test_a_killed_launcher_leaves_nothing_in_the_control_group(systemd: Systemd) -> None:
    start(systemd, scripted({"leaver": True, "children_outlive": True, "ignore_sigterm": True}), "Restart=no")
    found = systemd.wait(UNIT, lambda unit: unit["ActiveState"] == "active", 20)
    systemd.run("kill", "-KILL", found["MainPID"])
    systemd.wait(UNIT, lambda unit: unit["ActiveState"] == "failed", 10)
    assert systemd.processes(UNIT) == []
    assert systemd.run("pgrep", "-f", "fake_server").output == ""
