"""What the host offers: ports, shared memory, limits, memory, disk, clock, device nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from guarded_serve.facts.ports import Port, read_ports, wanted_ports

if TYPE_CHECKING:
    from guarded_serve.profile.deployment import Deployment


@dataclass(frozen=True)
class HostFacts:
    """The host as it is now."""

    ports: tuple[Port, ...] = ()


def gather_host(deployment: Deployment) -> HostFacts:
    """Read everything that the host checks judge."""
    return HostFacts(ports=read_ports(wanted_ports(deployment)))
