"""Servers that a generation over plain HTTP does not reach: without one of our own, and with TLS and a key."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.supervised import Supervised, wait_until

WITHOUT_A_PROBE: dict[str, dict[str, Any]] = {
    "gRPC": {"smg_grpc_mode": True},
    "gRPC by its old name": {"grpc_mode": True},
    "an encoder": {"encoder_only": True},
    "the second node": {"node_rank": 1, "nnodes": 2},
    "half of a pair": {"disaggregation_mode": "prefill"},
}
OFTEN = {"supervise": {"probe_interval_s": 0.5, "hang_s": 4}}


def _asked(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.parametrize("kind", WITHOUT_A_PROBE)
def test_it_is_started_and_supervised_without_a_probe_that_it_cannot_answer(kind: str, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    encoder = kind == "an encoder"
    scenario = {"generate": "error", "connections": str(asked), "hello": not encoder, "beats": not encoder}
    with Supervised(tmp_path, scenario, OFTEN, server=WITHOUT_A_PROBE[kind], probe={"error": True}) as server:
        server.wait_for(r"state=serving")
        time.sleep(6)  # longer than hang_s
        assert server.states() == ["preflight", "starting", "probing", "serving"]
        assert _asked(asked) == 0
        os.kill(server.pids()["detokenizer"], signal.SIGKILL)  # it is watched all the same
        assert server.end() == 69
        assert "detokenizer" in server.text()
        assert server.left() == []


def test_it_stops_as_it_is_asked_to(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"generate": "error"}, server=WITHOUT_A_PROBE["the second node"]) as server:
        server.wait_for(r"state=serving")
        server.send(signal.SIGTERM)
        assert server.end() == 0


def test_the_first_node_is_asked(tmp_path: Path) -> None:
    """The same server, as one that takes generations: an error is none, and it never serves."""
    asked = tmp_path / "asked"
    scenario = {"generate": "error", "connections": str(asked)}
    with Supervised(tmp_path, scenario, server={"node_rank": 0, "nnodes": 2}) as server:
        server.wait_for("first generation: HTTP 500")
        assert _asked(asked) > 0
        assert "serving" not in server.states()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A self-signed one for another name, as a public server's looks from its own machine."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    files = str(folder / "cert.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=llm.example.org", "-days", "2"]
    subprocess.run([*command, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


def _tls(certificate: tuple[str, str]) -> tuple[str, ...]:
    return ("--ssl-certfile", certificate[0], "--ssl-keyfile", certificate[1])


def test_probes_speak_tls_and_show_the_key(tmp_path: Path, certificate: tuple[str, str]) -> None:
    asked = tmp_path / "asked"
    with Supervised(
        tmp_path,
        {"connections": str(asked), "beats": False},
        OFTEN,
        arguments=(*_tls(certificate), "--api-key", "sk-secret"),
        server={"ssl_certfile": certificate[0]},
        probe={"seconds": 0},
    ) as server:
        server.wait_for(r"state=serving")
        assert f"url=https://127.0.0.1:{server.port}" in server.text()
        before = _asked(asked)
        assert before >= 2  # readiness, and the probe
        assert wait_until(lambda: _asked(asked) >= before + 2, 20)  # the watch's own
        time.sleep(5)  # longer than hang_s: what came back was an answer
        assert server.states()[-1] == "serving"
        assert "sk-secret" not in server.text()
        server.send(signal.SIGTERM)
        assert server.end() == 0


@pytest.mark.parametrize(
    ("server", "says"),
    [({}, "first generation: (?!.*tokens)"), ({"api_key": "sk-another"}, "first generation: HTTP 401")],
)
def test_without_tls_or_with_another_key_there_is_no_answer(
    server: dict[str, Any], says: str, tmp_path: Path, certificate: tuple[str, str]
) -> None:
    arguments = (*_tls(certificate), "--api-key=sk-secret")
    own = {"ssl_certfile": certificate[0], **server} if server else server
    with Supervised(tmp_path, arguments=arguments, server=own) as supervised:
        supervised.wait_for(says)
        assert "serving" not in supervised.states()
