"""Half an hour of bursty load with long prefills on the real engine: no false alarm, and a launcher that stays small.

`make soak` runs it; SOAK_S=120 makes it shorter. The result in docs/operations.md comes from here.
"""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.engine_launcher import Launcher, launched
from tests.support.toy import make_pair

SOAK_S = float(os.environ.get("SOAK_S", "1800"))


def resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def burst(launcher: Launcher, chance: random.Random) -> int:
    """Some requests at once: mostly short, some with a prompt of more than a thousand tokens."""

    def one(_: int) -> int:
        long = chance.random() < 0.3
        ids = [chance.randrange(10, 200) for _ in range(1500 if long else 20)]
        answer = httpx.post(
            f"http://127.0.0.1:{launcher.port}/generate",
            json={"input_ids": ids, "sampling_params": {"max_new_tokens": 30, "temperature": 0, "ignore_eos": True}},
            timeout=300,
        )
        return int(answer.status_code == 200)

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(one, range(chance.randrange(1, 9))))


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.timeout(SOAK_S + 900)
def test_no_false_alarm_and_no_growth(tmp_path: Path) -> None:
    chance = random.Random(7)
    with launched(tmp_path, make_pair(tmp_path), hang_s=20, probe_interval_s=5) as launcher:
        launcher.wait_for("state=serving")
        launcher.processes()
        burst(launcher, chance)
        time.sleep(5)
        before_kb, before_s, began = resident_kb(launcher.process.pid), cpu_s(launcher.process.pid), time.monotonic()
        served = 0
        while time.monotonic() - began < SOAK_S:
            served += burst(launcher, chance)
            time.sleep(chance.choice((0, 0, 1, 15)))
            assert launcher.process.poll() is None, launcher.text()[-4000:]
        after_kb, seconds = resident_kb(launcher.process.pid), time.monotonic() - began
        share = (cpu_s(launcher.process.pid) - before_s) / seconds
        print(f"\n{served} requests in {seconds:.0f} s; launcher {before_kb} kB before, {after_kb} kB after, ", end="")
        print(f"{100 * share:.2f} % of a core under load")
        assert "state=failed" not in launcher.text()
        assert "alarm=" not in launcher.text()  # the word alone is in this test's folder, which SGLang logs
        assert after_kb < 60_000
        assert after_kb - before_kb < 4_000
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.process.wait(60) == 0
        assert launcher.left() == []
