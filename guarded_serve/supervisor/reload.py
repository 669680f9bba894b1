"""What a profile that is read again changes: limits and baseline at once, everything else at a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from guarded_serve.profile.deployment import Deployment
from guarded_serve.profile.model import Profile, Supervise
from guarded_serve.profile.secret_names import SECRET_SETTINGS

Reload = Callable[[], Deployment]
"""Reads the profile again; raises what a person should read."""

LIVE_SECTIONS = ("supervise", "break_even")
_NOT_LIVE = ("supervise.start_deadline_s",)  # over when the server serves


@dataclass(frozen=True)
class Change:
    """What changed, in words; ``deployment`` is the running one with what is live replaced."""

    live: tuple[str, ...]
    later: tuple[str, ...]
    limits: Supervise
    deployment: Deployment


def what_changes(running: Deployment, fresh: Deployment) -> Change:
    """Compare two deployments of one launch."""
    live: list[str] = []
    later: list[str] = []
    for name, before, after in _profile_changes(running.profile, fresh.profile):
        text = f"{name} = {after} (was {before})"
        (live if name.partition(".")[0] in LIVE_SECTIONS and name not in _NOT_LIVE else later).append(text)
    names = sorted(set(running.server) | set(fresh.server))
    for name in names:
        before, after = running.get(name), fresh.get(name)
        if before != after:
            later.append(f"server.{name}" + ("" if name in SECRET_SETTINGS else f" = {after} (was {before})"))
    for name in sorted(set(running.environment) | set(fresh.environment)):
        if _value(running, name) != _value(fresh, name):
            later.append(f"env.{name}")
    profile = running.profile.model_copy(update={section: getattr(fresh.profile, section) for section in LIVE_SECTIONS})
    return Change(tuple(live), tuple(later), profile.supervise, replace(running, profile=profile))


def _profile_changes(before: Profile, after: Profile) -> Iterator[tuple[str, Any, Any]]:
    for section in sorted(type(before).model_fields):
        if section in ("server", "env"):
            continue
        old, new = getattr(before, section), getattr(after, section)
        for key in type(old).model_fields:
            if getattr(old, key) != getattr(new, key):
                yield f"{section}.{key}", getattr(old, key), getattr(new, key)


def _value(deployment: Deployment, name: str) -> Any:
    setting = deployment.environment.get(name)
    return None if setting is None else setting.value
