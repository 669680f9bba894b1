"""The environment as the server process will see it: ours, with the profile's `[env]` over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guarded_serve.profile.deployment import Deployment

_TRUE = ("true", "1", "yes", "y")
"""What SGLang takes for true (`srt/environ.py: EnvBool`)."""


def server_view(deployment: Deployment, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """``environment``: ours, by default the real one."""
    view = dict(os.environ if environment is None else environment)
    view.update({name: str(setting.value) for name, setting in deployment.environment.items()})
    return view


def is_true(value: str | None) -> bool:
    """Whether SGLang reads a switch as on."""
    return value is not None and value.lower() in _TRUE
