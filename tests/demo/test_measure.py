"""demo/measure.py against a made-up server: sums, the repetition rule, and a server that is not there."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Engine(BaseHTTPRequestHandler):
    output_ids: tuple[int, ...] = tuple(range(106))

    def do_POST(self):
        json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ids = list(type(self).output_ids)
        body = json.dumps(
            {"output_ids": ids, "meta_info": {"completion_tokens": len(ids), "spec_verify_ct": 43}}
        ).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    class Handler(Engine):
        pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield Handler, f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    thread.join()
    http.server_close()


def run(url: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "demo.measure", "--base-url", url, *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_accept_length_is_completion_tokens_over_verify_passes(server):
    result = run(server[1], "--at-least", "2.2")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["accept_length"] == 2.465


def test_too_short_or_repeating_fails_when_a_bar_is_set(server):
    handler, url = server
    assert run(url, "--at-least", "2.5").returncode == 1
    handler.output_ids = tuple([*range(20)] * 5 + [1] * 6)
    result = run(url, "--at-least", "2.2")
    assert result.returncode == 1
    assert json.loads(result.stdout)["most_repeats_of_a_span"] > 2


def test_no_server_is_said_in_one_sentence():
    result = run("http://127.0.0.1:9")
    assert result.returncode == 69
    assert "is the server up" in result.stderr
    assert "Traceback" not in result.stderr
