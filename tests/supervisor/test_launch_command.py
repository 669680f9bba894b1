"""`guarded-serve launch` up to the start: dry run, refusals, exit codes. Nothing is started here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from guarded_serve.checks.registry import CHECKS
from guarded_serve.commands import launch as command
from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Severity
from tests.support.supervised import ROOT


def launch(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "guarded_serve.launch_server", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **environment},
        timeout=60,
        check=False,
    )


def test_dry_run_prints_command_and_environment_and_no_secret(tmp_path: Path) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text(
        '[server]\nmodel_path = "/models/a b"\n[env]\nNCCL_P2P_LEVEL = "SYS"\nHF_TOKEN = "hf_topsecret"\n'
    )
    done = launch(tmp_path, "--profile", str(profile), "--guard-dry-run", "--tp-size", "2", "--api-key", "sk-topsecret")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "export NCCL_P2P_LEVEL=SYS" in lines
    assert lines[-1].endswith("-m sglang.launch_server --model-path '/models/a b' --tp-size 2 --api-key '***'")
    assert "topsecret" not in done.stdout + done.stderr


def test_every_finding_comes_at_once_and_the_launcher_ends_before_a_start(tmp_path: Path) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text('[server]\nmodel_path = "/absent"\nport = "many"\n[superwise]\n')
    done = launch(tmp_path, "--profile", str(profile), "--guard-cpu-kernels")
    assert done.returncode == 78
    assert "superwise" in done.stdout
    assert "server.port" in done.stdout
    assert "state=refused" in done.stdout
    assert "state=starting" not in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_an_api_key_file_that_is_not_there(tmp_path: Path) -> None:
    done = launch(tmp_path, "--model-path", "/absent", GUARDED_SERVE_API_KEY_FILE=str(tmp_path / "absent"))
    assert done.returncode == 66
    assert "the API key cannot be read" in done.stderr


def test_the_launcher_imports_neither_torch_nor_sglang() -> None:
    code = (
        "import sys, guarded_serve.commands.launch, guarded_serve.checks.gate, guarded_serve.supervisor.run\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'sglang', 'transformers')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_every_fault_that_reading_the_profile_knows_is_a_check_and_so_is_shown() -> None:
    sources = "".join(file.read_text() for file in (ROOT / "guarded_serve/profile").glob("*.py"))
    names = set(re.findall(r'"(profile\.[a-z_]+)"', sources))
    assert len(names) > 5
    assert names <= {check.name for check in CHECKS}


def test_no_start_without_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` runs anywhere; a start that can only fail is refused with a code that systemd does not restart."""
    assert command._engine_missing() is None
    monkeypatch.setattr(command, "installed_version", lambda: None)
    missing = command._engine_missing()
    assert missing is not None
    assert (missing.severity, missing.exit_code) == (Severity.ERROR, ExitCode.MISSING)
    assert sys.executable in (missing.found or "")
