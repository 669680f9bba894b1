"""Deployments for the GPU and host checks: SGLang settings as keywords, the profile's sections as plain values."""

from __future__ import annotations

from typing import Any

from guarded_serve.profile.deployment import Deployment, Setting
from guarded_serve.profile.model import Profile


def deployment(gpus: dict[str, Any] | None = None, metrics_port: int = 0, **server: Any) -> Deployment:
    """A deployment with these settings set by flags."""
    return Deployment(
        profile=Profile.model_validate({"gpus": gpus or {}, "metrics": {"port": metrics_port}}),
        profile_path=None,
        server={name: Setting(value, "flag") for name, value in server.items()},
        defaults={},
        arguments=(),
    )
