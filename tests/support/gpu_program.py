"""A stand-in for a CUDA program on a scripted card; see gpu_server.py."""

import os
import time
from pathlib import Path

script = Path(os.environ["FAKE_NVML"])
before = script.read_text()
held = Path("/dev/nvidia0").open()  # noqa: SIM115
me = os.getpid()
script.write_text(f"{before}[gpu 0]\nused = 1600\ncompute = {me}:1500\n")
if os.fork() == 0:
    os.setsid()
    held.close()
    state = Path(f"/proc/{me}/stat")
    try:
        while state.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.05)
    except OSError:
        pass
    script.write_text(before)
    os._exit(0)
print("up", flush=True)
time.sleep(600)
