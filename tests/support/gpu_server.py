"""A stand-in for SGLang on a scripted card: a main process and a scheduler that holds the card's device file.

It writes what the driver shall say of it into the script (FAKE_NVML), and a janitor takes it out again a moment after
the scheduler is gone, as a driver frees memory.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

SCHEDULER = """
import setproctitle, time
setproctitle.setproctitle("sglang::scheduler_TP0")
held = open("/dev/nvidia0"), open("/dev/nvidiactl")
print("up", flush=True)
time.sleep(600)
"""

script = Path(os.environ["FAKE_NVML"])
before = script.read_text()
scheduler = subprocess.Popen([sys.executable, "-c", SCHEDULER], stdout=subprocess.PIPE, text=True)
assert scheduler.stdout is not None
scheduler.stdout.readline()
script.write_text(f"{before}[gpu 0]\nused = 96000\ncompute = {scheduler.pid}:95900\n")
if os.fork() == 0:
    os.setsid()
    state = Path(f"/proc/{scheduler.pid}/stat")
    try:
        while state.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.05)
    except OSError:
        pass
    time.sleep(0.7)
    script.write_text(before)
    os._exit(0)
print("The server is fired up and ready to roll!", flush=True)
time.sleep(600)
