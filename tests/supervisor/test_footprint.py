"""What the launcher costs beside a server: memory over ten thousand requests, processor time without any."""

from __future__ import annotations

import http.client
import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.supervised import Supervised

REQUESTS = 10_000


def resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def ran_s(pid: int) -> float:
    """Processor time of all its threads, to the nanosecond."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def generate(port: int, count: int) -> int:
    """So many requests, four at a time; how many came back."""

    def one(number: int) -> bool:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = {"rid": f"r{number}", "text": "a", "sampling_params": {"max_new_tokens": 2}}
        link.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        status = link.getresponse().status
        link.close()
        return status == 200

    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(one, range(count)))


@pytest.mark.timeout(400)
def test_ten_thousand_requests_and_then_none(tmp_path: Path) -> None:
    scenario = {"access_log": True, "beat_s": 1.0, "cycles_per_s": 20, "running": 0}
    with Supervised(tmp_path, scenario) as server:
        server.wait_for("state=serving")
        pid = server.process.pid
        assert generate(server.port, 1000) == 1000
        before = resident_kb(pid)
        assert generate(server.port, REQUESTS) == REQUESTS
        after = resident_kb(pid)
        server.wait_for("left out [0-9]+ more lines", 15)  # nothing is under way any more
        time.sleep(2)
        used, began = ran_s(pid), time.monotonic()
        time.sleep(20)
        share = (ran_s(pid) - used) / (time.monotonic() - began)
        print(
            f"\nlauncher: {before} kB, {after} kB after {REQUESTS} requests; {100 * share:.3f} % of a core without any"
        )
        assert after < 60_000
        assert after - before < 1000
        assert share < 0.002
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert server.left() == []
