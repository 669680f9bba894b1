"""Deployments for the GPU and host checks: SGLang settings as keywords, the profile's sections as plain values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from guarded_serve.profile.deployment import Deployment, Setting

GPUS = {"devices": "visible", "max_used_mib": 64, "graphics_mib": 0, "selftest": False, "wait_s": 120}


def deployment(gpus: dict[str, Any] | None = None, metrics_port: int = 0, **server: Any) -> Deployment:
    """A deployment with these settings set by flags."""
    profile = SimpleNamespace(
        gpus=SimpleNamespace(**{**GPUS, **(gpus or {})}),
        metrics=SimpleNamespace(port=metrics_port),
        engine=SimpleNamespace(cpu_kernels=False),
    )
    return Deployment(
        profile=profile,  # type: ignore[arg-type]
        profile_path=None,
        server={name: Setting(value, "flag") for name, value in server.items()},
        defaults={},
        arguments=(),
    )
