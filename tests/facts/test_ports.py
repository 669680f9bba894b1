"""Ports are tried for real on this machine's loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from guarded_serve.facts.ports import EPHEMERAL_RANGE, PortState, WantedPort, free_port, read_port, wanted_ports
from tests.support.gpu_deployments import deployment


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def _wanted(port: int, host: str = "127.0.0.1") -> WantedPort:
    return WantedPort("the serving port", "--port", host, port, serving=True)


def test_a_free_port_is_free_and_stays_free(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    assert read_port(_wanted(port)).state is PortState.FREE
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_port_in_use_names_its_holder(listener: socket.socket, host: str) -> None:
    found = read_port(_wanted(listener.getsockname()[1], host))
    assert found.state is PortState.IN_USE
    assert [holder.pid for holder in found.holders] == [os.getpid()]
    assert not found.holder_unseen


def test_another_address_of_the_machine_does_not_count(listener: socket.socket) -> None:
    assert read_port(_wanted(listener.getsockname()[1], "127.0.0.2")).state is PortState.FREE


def test_a_holder_in_another_process_is_named() -> None:
    code = (
        "import socket, sys\ns = socket.create_server(('127.0.0.1', 0))\n"
        "print(s.getsockname()[1], flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        found = read_port(_wanted(int(child.stdout.readline())))
        assert [holder.pid for holder in found.holders] == [child.pid]
        assert "create_server" in found.holders[0].title
        child.communicate()


def test_time_wait_does_not_count() -> None:
    """The server's side closes first, which leaves its port in TIME_WAIT."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()
        client.recv(1)
        client.close()
    assert read_port(_wanted(port)).state is PortState.FREE


@pytest.mark.parametrize(
    ("host", "port"), [("203.0.113.7", 30000), ("no-such-host.invalid", 30000), ("127.0.0.1", 70000)]
)
def test_an_address_that_is_not_ours_is_told_from_a_port_in_use(host: str, port: int) -> None:
    assert read_port(_wanted(port, host)).state is PortState.BAD_ADDRESS


def test_a_name_with_an_address_that_is_switched_off(monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> None:
    """As `localhost` where IPv6 is off: the address that is there decides."""
    port = listener.getsockname()[1]
    there, gone = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)), ("203.0.113.7", port)
    both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", gone), there]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    assert read_port(_wanted(port, "x")).state is PortState.IN_USE
    listener.close()
    assert read_port(_wanted(port, "x")).state is PortState.FREE


def test_an_offered_port_is_not_one_that_an_outgoing_connection_gets() -> None:
    lowest = int(EPHEMERAL_RANGE.read_text().split()[0])
    offered = {free_port() for _ in range(50)}
    assert max(offered) < lowest
    assert len(offered) > 25, "at random, for those who ask at the same time"


def test_a_port_in_use_is_not_offered(tmp_path: Path) -> None:
    narrow = tmp_path / "range"
    narrow.write_text("15001\t60999\n")  # one port to offer
    assert free_port(ephemeral=narrow) == 15000
    with socket.create_server(("127.0.0.1", 15000)):
        assert free_port(ephemeral=narrow) > 15000


def test_without_room_below_the_range_the_kernel_chooses(tmp_path: Path) -> None:
    wide = tmp_path / "range"
    wide.write_text("1024\t65535\n")
    assert read_port(_wanted(free_port(ephemeral=wide))).state is PortState.FREE


def _ports(**server: object) -> dict[int, str]:
    return {port.port: port.host for port in wanted_ports(deployment(**server))}


def test_sglang_picks_the_rest_unless_told() -> None:
    assert _ports() == {30000: "127.0.0.1"}
    assert _ports(port=31000, host="0.0.0.0", nccl_port=31500) == {31000: "0.0.0.0", 31500: "0.0.0.0"}


def test_data_parallel_attention_counts_from_the_serving_port() -> None:
    found = _ports(port=31000, tp_size=8, attn_dp_size=8)
    assert sorted(found) == [31000, 31233, *range(31234, 31239)]
    assert _ports(port=31000, tp_size=8, dp_size=8, enable_dp_attention=True) == found
    assert sorted(_ports(port=31000, tp_size=4, dp_size=2)) == [31000], "replicas use random ports"


def test_near_the_end_it_counts_downwards() -> None:
    assert sorted(_ports(port=65400, tp_size=8, attn_dp_size=8)) == [65167, *range(65168, 65173), 65400]


def test_the_rendezvous_is_bound_by_the_first_node_only() -> None:
    assert 5000 in _ports(nnodes=2, node_rank=0, dist_init_addr="10.0.0.1:5000")
    assert 5000 not in _ports(nnodes=2, node_rank=1, dist_init_addr="10.0.0.1:5000")
    assert _ports(dist_init_addr="[::1]:5000")[5000] == "::1"


def test_derived_ports_are_those_of_the_installed_sglang() -> None:
    """Held against PortArgs of the SGLang that is installed, in a process of its own."""
    pytest.importorskip("sglang")
    code = """
import os
os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
from types import SimpleNamespace
import sglang.srt.server_args as module
seen = set()
module.wait_port_available = lambda number, name, *rest: name == "nccl_port" or seen.add(number)
for name in ("ep_scale_joiner_of", "ep_joiner_of"):
    setattr(module, name, lambda args: False)
module.resolving_view = lambda args: args
module.attn_dp_enabled_of = lambda args: True
module.num_dp_ranks_of = lambda args: 8
for port in (31000, 65400):
    seen.clear()
    module.PortArgs.init_new(SimpleNamespace(port=port, nccl_port=29999, nnodes=1, dist_init_addr=None,
                                             tokenizer_worker_num=1, decoupled_spec_role="null"))
    print("ports", port, sorted(seen))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    said = [line for line in done.stdout.splitlines() if line.startswith("ports")]
    assert said == [
        f"ports {port} {sorted(set(_ports(port=port, tp_size=8, attn_dp_size=8)) - {port})}" for port in (31000, 65400)
    ]
