"""The effective deployment: what the profile, the flags and SGLang's defaults come to, with the origin of each value.

Frozen, and the only thing that `checks`, `supervisor` and `smoke` know of how a person configured the launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guarded_serve.profile.model import Profile


@dataclass(frozen=True)
class Setting:
    """A server setting that somebody set, and where: a flag, ``file:line``, or the guard with its reason."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Deployment:
    """One deployment, resolved.

    ``server`` holds what was set, by SGLang's own argument name (argparse dest); ``defaults`` SGLang's defaults for
    the rest. ``arguments`` is what `sglang.launch_server` gets: the profile's settings as flags, then the user's flags
    untouched. ``environment`` is what the server process gets on top of ours.
    """

    profile: Profile
    profile_path: Path | None
    server: Mapping[str, Setting]
    defaults: Mapping[str, Any]
    arguments: tuple[str, ...]
    environment: Mapping[str, Setting] = field(default_factory=dict)
    sglang_version: str | None = None  # None: not installed here (a laptop)
    notes: tuple[str, ...] = ()  # what the guard itself set or did, a sentence each; logged at every start
    origins: Mapping[str, str] = field(default_factory=dict)  # of the guard's keys that somebody set: "timing.keep"

    def get(self, name: str, default: Any = None) -> Any:
        """The effective value of an SGLang setting: as set, else SGLang's default, else ``default``."""
        if name in self.server:
            return self.server[name].value
        value = self.defaults.get(name)
        return default if value is None else value

    def is_set(self, name: str) -> bool:
        """Whether somebody set it (rather than SGLang's default)."""
        return name in self.server
