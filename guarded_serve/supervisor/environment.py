"""The environment of the server process."""

from __future__ import annotations

from collections.abc import Mapping

from guarded_serve.engine_link import ENVIRONMENT_KEY, PLUGIN_NAME, EngineSettings
from guarded_serve.profile.deployment import Deployment

_OURS_ALONE = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


def server_environment(ours: Mapping[str, str], deployment: Deployment, settings: EngineSettings) -> dict[str, str]:
    """Ours, less what systemd means for us alone, plus the profile's `[env]` and the link to the plugin.

    SGLANG_PLUGINS is a list of the plugins that may load: where somebody set it, ours is added to it.
    """
    environment = _asked_for(ours, deployment)
    return {**environment, **_own(environment), ENVIRONMENT_KEY: settings.to_json()}


def environment_note(ours: Mapping[str, str], deployment: Deployment) -> str:
    """One sentence on what the guard itself changes in the server's environment, whatever the profile says."""
    added = [f"{name}={value}" for name, value in _own(_asked_for(ours, deployment)).items()]
    left_out = [name for name in _OURS_ALONE if name in ours]
    less = f"; without {', '.join(left_out)}, which systemd means for the launcher alone" if left_out else ""
    return f"the server's environment, by the guard: {', '.join([ENVIRONMENT_KEY, *added])}{less}"


def _asked_for(ours: Mapping[str, str], deployment: Deployment) -> dict[str, str]:
    environment = {name: value for name, value in ours.items() if name not in _OURS_ALONE}
    environment.update({name: str(setting.value) for name, setting in deployment.environment.items()})
    return environment


def _own(environment: Mapping[str, str]) -> dict[str, str]:
    """What we add to what was asked for, beside the link to the plugin."""
    own = {}
    names = [name.strip() for name in environment.get("SGLANG_PLUGINS", "").split(",") if name.strip()]
    if names and PLUGIN_NAME not in names:  # empty means any plugin, to SGLang
        own["SGLANG_PLUGINS"] = ",".join([*names, PLUGIN_NAME])
    if "PYTHONUNBUFFERED" not in environment:
        own["PYTHONUNBUFFERED"] = "1"  # lines as they happen, not in blocks of 8 KiB
    return own
