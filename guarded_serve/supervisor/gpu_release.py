"""Whether the GPUs are empty again after a stop: asked of the driver, as the checks before a start ask it."""

from __future__ import annotations

import time

from guarded_serve.findings import Severity
from guarded_serve.profile.deployment import Deployment

WAIT_S = 10.0  # a driver frees the memory of a killed process within seconds
_AGAIN_S = 0.5
_CHECKS = ("gpu.driver", "gpu.memory", "gpu.processes")


def still_held(deployment: Deployment, wait_s: float = WAIT_S) -> tuple[str, ...]:
    """What is held on the deployment's GPUs, a sentence each, by whom as far as that can be seen; empty: nothing.

    Waits for at most about ``wait_s``. What `preflight.ignore` lets pass before a start is passed over here as well.
    """
    from guarded_serve.checks.registry import checks_of  # noqa: PLC0415 - with the checks, only where they ran
    from guarded_serve.checks.runner import run_checks  # noqa: PLC0415
    from guarded_serve.facts.bag import Facts  # noqa: PLC0415
    from guarded_serve.facts.gpus import gather_gpus  # noqa: PLC0415

    checks = [check for check in checks_of(("gpu",)) if check.name in _CHECKS]
    end = time.monotonic() + wait_s
    while True:
        facts = Facts(deployment, gpus=gather_gpus(deployment, deadline_s=wait_s))
        report = run_checks(checks, facts, deployment.profile.preflight.ignore)
        held = tuple(found.message for found in report.findings if found.severity is Severity.ERROR)
        if not held or time.monotonic() + _AGAIN_S >= end:
            return held
        time.sleep(_AGAIN_S)
