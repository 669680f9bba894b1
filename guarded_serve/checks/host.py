"""Judges of the host: can the server bind its ports, hold its shared memory, open its files.

A port or a shared-memory segment in use may be free in a moment: exit 75. What waiting cannot mend has its own code.
"""

from __future__ import annotations

from collections.abc import Iterator

from guarded_serve.checks.interface import Check, Skip, check
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.bag import Facts
from guarded_serve.facts.host import HostFacts
from guarded_serve.facts.ports import Port, PortState
from guarded_serve.findings import Finding


def _host(facts: Facts) -> HostFacts:
    if facts.host is None:
        raise Skip("the host was not looked at")
    return facts.host


@check(
    "host.port", source="uvicorn binds host:port last, minutes after the weights are loaded", exit_code=ExitCode.BUSY
)
def port(self: Check, facts: Facts) -> Iterator[Finding]:
    """The serving port is free on the host asked for."""
    for found in _host(facts).ports:
        if found.wanted.serving:
            yield from _port_findings(self, found)


@check(
    "host.derived_ports",
    source="server_args.py: PortArgs.init_new; distributed/bootstrap.py: _resolve_dist_init_method",
    exit_code=ExitCode.BUSY,
)
def derived_ports(self: Check, facts: Facts) -> Iterator[Finding]:
    """The rendezvous, data-parallel, bootstrap and metrics ports are free, and no two are the same."""
    ports = _host(facts).ports
    if all(found.wanted.serving for found in ports):
        raise Skip("this deployment binds no port but the serving one (SGLang picks free ones for the rest)")
    taken: dict[int, str] = {}
    for found in ports:
        earlier = taken.setdefault(found.wanted.port, found.wanted.purpose)
        if earlier != found.wanted.purpose:
            yield self.error(
                f"{found.wanted.purpose} and {earlier} are both port {found.wanted.port}",
                where=found.wanted.setting,
                remedy=f"give {found.wanted.setting} a port of its own",
                exit_code=ExitCode.USAGE,
            )
        elif not found.wanted.serving:
            yield from _port_findings(self, found)


def _port_findings(self: Check, found: Port) -> Iterator[Finding]:
    wanted, where = found.wanted, f"{found.wanted.host}:{found.wanted.port}"
    if found.state is PortState.IN_USE:
        held = " and ".join(holder.describe() for holder in found.holders)
        if not held:
            held = "a process that this user may not see" if found.holder_unseen else "nobody that can be seen"
        yield self.error(
            f"{wanted.purpose} {wanted.port} is in use on {wanted.host}: held by {held}",
            expected="free",
            found=f"{found.error}",
            where=where,
            remedy=f"stop it, wait for it to end ([gpus] wait_s), or choose another {wanted.setting}",
        )
    elif found.state is PortState.NOT_ALLOWED:
        yield self.error(
            f"this user may not bind {wanted.purpose} {wanted.port} on {wanted.host}: {found.error}",
            where=where,
            remedy=f"choose {wanted.setting} from 1024 up, or grant CAP_NET_BIND_SERVICE",
            exit_code=ExitCode.PERMISSION,
        )
    elif found.state is not PortState.FREE:
        yield self.error(
            f"{wanted.purpose} cannot be bound on {where}: {found.error}",
            expected="an address of this machine",
            found=wanted.host,
            where=where,
            remedy="give --host an address of this machine (0.0.0.0 for all), and a port from 1 to 65535",
            exit_code=ExitCode.USAGE,
        )


CHECKS = (port, derived_ports)
