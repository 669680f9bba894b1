"""Which TCP ports the server will bind, and whether each can be bound now.

A port is tried the way the server will take it: every address that its host stands for, with SO_REUSEADDR, so that
connections in TIME_WAIT do not count. The socket is closed at once and never listens.
"""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guarded_serve.facts.processes import PROC, Process, open_files, read_process

if TYPE_CHECKING:
    from guarded_serve.profile.deployment import Deployment

DEFAULT_PORT = 30000  # server_args.py: port
DEFAULT_HOST = "127.0.0.1"
DP_PORT_DISTANCE = 233  # server_args.py: ZMQ_TCP_PORT_DELTA
DP_DERIVED_PORTS = 6  # server_args.py: NUM_DERIVED_PORTS
LAST_PORT = 65535
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_OFFERED = 15000


class PortState(str, Enum):
    """What came of the attempt to bind."""

    FREE = "free"
    IN_USE = "in use"
    NOT_ALLOWED = "not allowed"  # below ip_unprivileged_port_start, say
    BAD_ADDRESS = "bad address"  # not an address of this machine, or it does not resolve
    FAILED = "failed"


@dataclass(frozen=True)
class WantedPort:
    """A port that the server will bind; ``purpose`` and ``setting`` (the flag to change) are for people."""

    purpose: str
    setting: str
    host: str
    port: int
    serving: bool = False


@dataclass(frozen=True)
class Port:
    """A wanted port as it is now. ``holder_unseen``: in use, and this user may not see by whom."""

    wanted: WantedPort
    state: PortState
    error: str = ""
    holders: tuple[Process, ...] = ()
    holder_unseen: bool = False


def wanted_ports(deployment: Deployment) -> tuple[WantedPort, ...]:
    """The ports that this deployment binds on this node, the serving port first.

    From server_args.py: PortArgs.init_new, and distributed/bootstrap.py: _resolve_dist_init_method. Ports that SGLang
    picks at random among the free ones are not listed.
    """
    port = int(deployment.get("port", DEFAULT_PORT))
    host = str(deployment.get("host") or DEFAULT_HOST)
    first_node = int(deployment.get("node_rank") or 0) == 0
    ports = [WantedPort("the serving port", "--port", host, port, serving=True)]
    rendezvous = deployment.get("dist_init_addr")
    if rendezvous and first_node:
        address, number = _split_address(str(rendezvous))
        ports.append(WantedPort("the rendezvous of the ranks", "--dist-init-addr", address, number))
    elif not rendezvous and deployment.get("nccl_port"):
        ports.append(WantedPort("the rendezvous of the ranks", "--nccl-port", host, int(deployment.get("nccl_port"))))
    if _attention_data_parallel(deployment) and first_node:
        ports += _data_parallel_ports(port, _split_address(str(rendezvous)) if rendezvous else None)
    if deployment.get("disaggregation_mode") == "prefill" and deployment.get("disaggregation_bootstrap_port"):
        number = int(deployment.get("disaggregation_bootstrap_port"))
        ports.append(WantedPort("the bootstrap of prefill and decode", "--disaggregation-bootstrap-port", host, number))
    if deployment.get("grpc_port"):
        ports.append(WantedPort("gRPC", "--grpc-port", host, int(deployment.get("grpc_port"))))
    metrics = deployment.profile.metrics
    if metrics.port:
        ports.append(WantedPort("the guard's metrics", "[metrics] port", metrics.host, metrics.port))
    return tuple(ports)


def free_port(host: str = DEFAULT_HOST, ephemeral: Path = EPHEMERAL_RANGE) -> int:
    """A port that can be bound now, for a server of ours to bind a little later.

    Below the kernel's ephemeral range where there is room: any outgoing connection may take a port in it first.
    Raises OSError when nothing can be bound at ``host``.
    """
    offered = range(_FIRST_OFFERED, int(ephemeral.read_text().split()[0]))
    for port in random.sample(offered, min(len(offered), 100)):
        if read_port(WantedPort("a server of ours", "--port", host, port)).state is PortState.FREE:
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def read_ports(wanted: tuple[WantedPort, ...], root: Path = PROC) -> tuple[Port, ...]:
    """Try to bind each; for those in use, look for the holder."""
    return tuple(read_port(port, root) for port in wanted)


def read_port(wanted: WantedPort, root: Path = PROC) -> Port:
    """Try to bind one port on every address that its host stands for."""
    if not 0 < wanted.port <= LAST_PORT:
        return Port(wanted, PortState.BAD_ADDRESS, f"{wanted.port} is not a TCP port (1 to {LAST_PORT})")
    try:
        addresses = socket.getaddrinfo(wanted.host, wanted.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return Port(wanted, PortState.BAD_ADDRESS, f"{wanted.host}: {error.strerror or error}")
    errors = [_bind_error(family, kind, protocol, address) for family, kind, protocol, _, address in addresses]
    failed = [error for error in errors if error not in (None, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)]
    if not failed and None in errors:  # `localhost` may stand for an address that this machine has switched off
        return Port(wanted, PortState.FREE)
    worst = failed[0] if failed else errors[0]
    assert worst is not None
    state = _STATES.get(worst, PortState.FAILED)
    if state is not PortState.IN_USE:
        return Port(wanted, state, os.strerror(worst))
    holders, unseen = port_holders(wanted.port, root)
    return Port(wanted, state, os.strerror(worst), holders, holder_unseen=unseen)


_STATES = {
    errno.EADDRINUSE: PortState.IN_USE,
    errno.EACCES: PortState.NOT_ALLOWED,
    errno.EADDRNOTAVAIL: PortState.BAD_ADDRESS,
    errno.EAFNOSUPPORT: PortState.BAD_ADDRESS,
}


def _bind_error(family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> int | None:
    """The errno of a bind, or None."""
    try:
        with socket.socket(family, kind, protocol) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.errno or errno.EIO
    return None


def port_holders(port: int, root: Path = PROC) -> tuple[tuple[Process, ...], bool]:
    """The processes that hold a local TCP port, and whether there may be one that this user cannot see."""
    inodes = set(_inodes(port, root))
    sockets = {f"socket:[{inode}]" for inode in inodes}
    files = open_files(sockets.__contains__, root)
    seen = {target for targets in files.by_pid.values() for target in targets}
    return tuple(read_process(pid, root) for pid in files.by_pid), not inodes or seen != sockets


def _inodes(port: int, root: Path) -> Iterator[int]:
    """Socket inodes with that local port; proc_net_tcp: `sl local_address rem_address st ... inode`."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (root / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[9] != "0":
                yield int(fields[9])


def _split_address(address: str) -> tuple[str, int]:
    """`host:port`, an optional `tcp://` before it and brackets round an IPv6 address, as SGLang takes it."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


def _attention_data_parallel(deployment: Deployment) -> bool:
    """`--attn-dp-size` above 1, or the older `--dp-size N --enable-dp-attention`."""
    if int(deployment.get("attn_dp_size") or 1) > 1:
        return True
    return bool(deployment.get("enable_dp_attention")) and int(deployment.get("dp_size") or 1) > 1


def _data_parallel_ports(port: int, rendezvous: tuple[str, int] | None) -> list[WantedPort]:
    """With data-parallel attention the processes talk over TCP, on ports counted from another one."""
    if rendezvous is None:
        derived = port + DP_PORT_DISTANCE if port + DP_PORT_DISTANCE <= LAST_PORT else port - DP_PORT_DISTANCE
        host, start, setting = DEFAULT_HOST, derived, "--port"
        ports = [WantedPort("data-parallel attention (rendezvous)", setting, host, derived)]
    else:
        (host, start), setting, ports = rendezvous, "--dist-init-addr", []
    overflows = start + DP_DERIVED_PORTS > LAST_PORT
    base = start - DP_DERIVED_PORTS - 1 if overflows else start + 1
    names = ("tokenizer", "detokenizer", "rpc", "metrics", "scheduler input")
    return ports + [
        WantedPort(f"data-parallel attention ({name})", setting, host, base + offset)
        for offset, name in enumerate(names)
    ]
