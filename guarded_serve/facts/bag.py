"""All facts in one frozen value, gathered once; the judges in `checks/` read it and nothing else.

A part that was not gathered (its family was not asked for) is None. A part that could not be read is a value that
says so, never an empty one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guarded_serve.facts.gpus import GpuFacts
    from guarded_serve.facts.host import HostFacts
    from guarded_serve.facts.model import ModelFacts
    from guarded_serve.findings import Finding
    from guarded_serve.profile.deployment import Deployment


@dataclass(frozen=True)
class Facts:
    """What is known before anything starts."""

    deployment: Deployment
    gpus: GpuFacts | None = None
    other_device: str | None = None  # what the deployment runs on where that is not CUDA; then `gpus` is None
    host: HostFacts | None = None
    model: ModelFacts | None = None
    configuration: tuple[Finding, ...] = ()  # what reading profile and flags found
