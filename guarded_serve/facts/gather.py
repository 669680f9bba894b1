"""Gathers facts, once, for the families of checks that were asked for."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from guarded_serve.facts.bag import Facts
from guarded_serve.facts.environment import server_view
from guarded_serve.facts.gpu_choice import other_device
from guarded_serve.facts.gpus import gather_gpus
from guarded_serve.facts.host import gather_host
from guarded_serve.facts.model import gather_models

if TYPE_CHECKING:
    from guarded_serve.profile.deployment import Deployment


def gather(deployment: Deployment, families: Collection[str]) -> Facts:
    """Everything that the judges of these families read, and nothing more."""
    model = gather_models(deployment) if {"drafter", "target"}.intersection(families) else None
    return Facts(
        deployment=deployment,
        model=model,
        other_device=other_device(deployment, server_view(deployment)),
        gpus=gather_gpus(deployment, model=model) if "gpu" in families else None,
        host=gather_host(deployment) if "host" in families else None,
    )
