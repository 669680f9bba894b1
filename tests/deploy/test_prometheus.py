"""Alert rules and dashboard against a real Prometheus (Debian's package ``prometheus``), fed by our own metrics."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.facts.ports import free_port
from guarded_serve.timing.live import Live
from guarded_serve.timing.metrics import EngineCollector, serve
from guarded_serve.timing.record import Cycle
from guarded_serve.timing.totals import Totals

FOLDER = os.environ.get("PROMETHEUS_BIN")
PROMTOOL = shutil.which("promtool", path=FOLDER)
PROMETHEUS = shutil.which("prometheus", path=FOLDER)
needs_prometheus = pytest.mark.skipif(
    PROMTOOL is None or PROMETHEUS is None,
    reason="no Prometheus here: apt-get install prometheus, or PROMETHEUS_BIN=FOLDER of an unpacked one",
)
CYCLE = Cycle(1000.0, 0, 1, 2, 3, 4, 2.0, 20.0, 2.0, 25.0, 30.0, [3, 1], "cuda-event")


@needs_prometheus
def test_the_rules_are_valid_and_fire_when_they_should(root: Path) -> None:
    assert PROMTOOL is not None
    for arguments in (["check", "rules", "prometheus-alerts.yml"], ["test", "rules", "prometheus-alerts.test.yml"]):
        done = subprocess.run(
            [PROMTOOL, *arguments], cwd=root / "deploy", capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_and_the_dashboard_name_only_metrics_that_exist(root: Path) -> None:
    """Every ``guarded_serve_...`` name in deploy/ is one that the collector exports."""
    files = ("grafana-dashboard.json", "prometheus-alerts.yml", "prometheus-alerts.test.yml")
    text = "".join((root / "deploy" / name).read_text() for name in files)
    named = set(re.findall(r"\bguarded_serve_[a-z_]+", text))
    families = list(_collector(Totals()).collect())
    exported = {family.name for family in families}
    suffixes = re.compile(r"_(total|bucket|sum|count)$")
    assert {suffixes.sub("", name) for name in named} - exported == set()
    assert len(named) > 8


def _collector(totals: Totals) -> EngineCollector:
    live = Live({2: 164.0}, kept_s=60)
    live.beat({"t": 1.0, "rank": 0, "dropped": 0, "lost": 0, "faults": 0})
    live.totals({"t": 1.0, "rank": 0, "left": 0, "totals": totals.to_mapping()})
    return EngineCollector(live, threading.Lock(), lambda: "serving", lambda: False)


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """A Prometheus that scrapes our endpoint, whose counters grow; the address of its API."""
    assert PROMETHEUS is not None
    live, totals, lock, stop = Live({2: 164.0}, kept_s=60), Totals(), threading.Lock(), threading.Event()

    def work() -> None:
        while not stop.wait(0.1):
            with lock:
                totals.add(CYCLE)
                event = {"t": time.time(), "rank": 0}
                live.beat({**event, "dropped": 0, "lost": 0, "faults": 0})
                live.totals({**event, "left": 0, "totals": totals.to_mapping()})

    worker = threading.Thread(target=work)
    worker.start()
    port, own = free_port(), free_port()
    end = serve("127.0.0.1", own, EngineCollector(live, lock, lambda: "serving", lambda: False))
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "guarded_serve", "static_configs": [{"targets": [f"127.0.0.1:{own}"]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    server = subprocess.Popen(
        [
            PROMETHEUS,
            "--config.file=prometheus.yml",
            f"--web.listen-address=127.0.0.1:{port}",
            "--storage.tsdb.path=db",
        ],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)
        stop.set()
        worker.join()
        end()


def _query(address: str, expression: str) -> list[dict[str, Any]]:
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        body = json.load(answer)
    assert body["status"] == "success", body
    result: list[dict[str, Any]] = body["data"]["result"]
    return result


@needs_prometheus
def test_every_panel_of_the_dashboard_shows_something(root: Path, prometheus: str) -> None:
    dashboard = json.loads((root / "deploy" / "grafana-dashboard.json").read_text())
    targets = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(targets) >= 10
    wanted = dict.fromkeys(expression for _, expression in targets)
    deadline = time.monotonic() + 60
    while wanted and time.monotonic() < deadline:
        time.sleep(1)
        for expression in list(wanted):
            real = expression.replace("$__rate_interval", "10s").replace('instance=~"$instance"', 'instance=~".*"')
            try:
                if _query(prometheus, real):
                    del wanted[expression]
            except OSError:
                break
    assert not wanted, "panels without data"
    assert all(panel["description"] for panel in dashboard["panels"])
