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
    environment = {name: value for name, value in ours.items() if name not in _OURS_ALONE}
    environment.update({name: str(setting.value) for name, setting in deployment.environment.items()})
    names = [name.strip() for name in environment.get("SGLANG_PLUGINS", "").split(",") if name.strip()]
    if names:  # empty means any plugin, to SGLang
        environment["SGLANG_PLUGINS"] = ",".join(names if PLUGIN_NAME in names else [*names, PLUGIN_NAME])
    environment[ENVIRONMENT_KEY] = settings.to_json()
    environment.setdefault("PYTHONUNBUFFERED", "1")  # lines as they happen, not in blocks of 8 KiB
    return environment
