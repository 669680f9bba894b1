"""Gate 3: what decides between the first answer and READY. Who judges is handed in; this is what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from guarded_serve.findings import Finding
from guarded_serve.profile.deployment import Deployment
from guarded_serve.supervisor.ready import Address


@dataclass(frozen=True)
class Probed:
    """What real generations showed.

    ``findings`` are logged as they are. An error among them refuses the server, unless ``instead`` names the deployment
    to start in its place (on_failure = "serve-without-drafter"): it goes through all gates again and is not probed.
    ``server_failure`` says that nothing could be judged, since the server did not answer: a failure like any other
    of the server, with a crash folder and, where the profile allows them, restarts.
    """

    summary: str
    findings: tuple[Finding, ...] = ()
    instead: Deployment | None = None
    server_failure: str | None = None


Probe = Callable[[Deployment, Address], Probed]
"""Generates through the public port and judges. Runs in a thread; `supervise.start_deadline_s` still counts."""
