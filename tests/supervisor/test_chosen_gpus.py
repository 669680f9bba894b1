"""The server process gets the GPUs that gate 1 checked, whatever the launcher's own environment says."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import sys
from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Report
from guarded_serve.supervisor.preflight import Gate
from guarded_serve.supervisor.run import Options, supervise
from tests.support.gpu_deployments import deployment

server = "import os; print('SEEN', os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'])"
chosen = {"CUDA_VISIBLE_DEVICES": "6,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
gate = Gate(ExitCode.OK, Report(()), chosen)
sys.exit(supervise(deployment(port=1), lambda _: gate, Options(command=[sys.executable, "-c", server])))
"""


def test_the_server_sees_the_chosen_gpus() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "GPU-ffff,GPU-cccc"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert "SEEN 6,2 PCI_BUS_ID" in done.stdout + done.stderr
