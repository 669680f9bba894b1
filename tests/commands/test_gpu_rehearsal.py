"""benchmarks/gpu_gate.py from end to end, with a scripted driver and stand-ins for SGLang and for a CUDA program.

In namespaces of its own: a /dev with a card in it, and a /proc with no process but its own, so that nothing else can
be taken for a leftover. What needs a real card (the self-test) fails here, as it must.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_driver import environment

ROOT = Path(__file__).parents[2]
STAND_INS = Path(__file__).parents[1] / "support"
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
DEV = """set -e
dev=$(mktemp -d)
mount -t tmpfs tmpfs "$dev"
cp -a /dev/null /dev/zero /dev/urandom /dev/random /dev/full /dev/tty "$dev"
mkdir "$dev/shm"
mount -t tmpfs tmpfs "$dev/shm"
touch "$dev/nvidia0" "$dev/nvidiactl"
ln -s /proc/self/fd "$dev/fd"
mount --bind "$dev" /dev
"""

pytestmark = pytest.mark.root


def test_busy_killed_foreign_and_orphaned(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare(1)")
    if subprocess.run([*NAMESPACES, "sh", "-c", DEV], capture_output=True, check=False).returncode != 0:
        pytest.skip("namespaces cannot be made here")
    out = tmp_path / "out.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_gate.py"), "--out", str(out)]
    command += ["--server", (STAND_INS / "gpu_server.py").read_text()]
    command += ["--program", (STAND_INS / "gpu_program.py").read_text()]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    done = subprocess.run(
        [*NAMESPACES, "sh", "-c", f"{DEV}\n{shlex.join(command)}; exit $?"],
        env={**variables, **environment(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert out.exists(), done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    slow_machine = ("the gate's own time", "a server up, check --only gpu", "after kill -9 of the server")
    failed = [row for row in rows if not row[3] and row[0] != "self-test" and not row[0].startswith(slow_machine)]
    assert not failed, done.stdout
    assert len(rows) == 18, done.stdout
    for title in slow_machine[1:]:
        (row,) = (row for row in rows if row[0].startswith(title))
        assert ("exit 75" in row[2] and "sglang::scheduler" in row[2]) or "passed after" in row[2]
