"""A server that somebody paused (`/pause_generation`) is not one that hangs."""

from __future__ import annotations

import ast
import importlib.util
import signal
import time
from pathlib import Path

import pytest

from tests.support.supervised import Supervised, wait_until

QUICK = {"supervise": {"hang_s": 4.0, "probe_interval_s": 1.0, "drain_s": 2.0}}


def test_a_paused_server_is_left_alone(tmp_path: Path) -> None:
    """The pause comes while a probe is under way, so that one waits, and no later one is sent."""
    counted = tmp_path / "generations"
    with Supervised(tmp_path, {"pause_after": 2, "connections": str(counted)}, QUICK) as server:
        server.wait_for("state=serving")
        assert wait_until(lambda: len(counted.read_text().splitlines()) == 2)
        time.sleep(9)  # more than twice hang_s
        assert server.process.poll() is None, server.text()
        server.send(signal.SIGTERM)
        assert server.end() == 0


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed")
def test_sglang_says_that_it_is_paused_as_we_read_it() -> None:
    """`/ready` is 503 and `/ping` 200 exactly then; a scheduler knows of the other modes than `abort`."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    source = Path(next(iter(spec.submodule_search_locations))) / "srt"
    manager = _functions(source / "managers/tokenizer_manager.py")
    assert manager["is_ready"].endswith("return not self.is_pause and self.is_healthy()")
    server = _functions(source / "entrypoints/http_server.py")
    assert "200 if _global_state.tokenizer_manager.is_ready() else 503" in server["ready"]
    assert "200 if _global_state.tokenizer_manager.is_healthy() else 503" in server["sagemaker_health"]
    routes = (source / "entrypoints/http_server.py").read_text()
    assert '@app.get("/ready")' in routes
    assert '@app.get("/ping")' in routes
    scheduler = _functions(source / "managers/scheduler.py")
    assert "self._engine_paused = True" in scheduler["pause_generation"]
    assert "self._engine_paused = False" in scheduler["continue_generation"]


def _functions(path: Path) -> dict[str, str]:
    nodes = (node for node in ast.walk(ast.parse(path.read_text())))
    return {node.name: ast.unparse(node) for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
