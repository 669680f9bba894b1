"""API keys: from a file or a systemd credential, and to SGLang without standing on its command line.

SGLang takes its keys as flags only, and a command line can be read by every user of the machine. So they go into a YAML
file in the launch's own folder (mode 0700), which SGLang reads through `--config`. It reads one such file: where the
deployment has a `--config` of its own, keys stay where they were written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from guarded_serve.profile.deployment import Deployment, Setting

KEY_FILE_VARIABLE = "GUARDED_SERVE_API_KEY_FILE"
CREDENTIAL = "api-key"
_FLAGS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password")


def with_api_key(deployment: Deployment, environment: Mapping[str, str] = os.environ) -> Deployment:
    """The deployment with the key from `KEY_FILE_VARIABLE`'s file or the credential, where no key is set otherwise.

    Raises OSError when the file that was named cannot be read, ValueError when it is empty.
    """
    path = environment.get(KEY_FILE_VARIABLE, "")
    folder = environment.get("CREDENTIALS_DIRECTORY", "")
    if not path and folder and (Path(folder) / CREDENTIAL).is_file():
        path = str(Path(folder) / CREDENTIAL)
    if not path or deployment.get("api_key"):
        return deployment
    key = Path(path).read_text(encoding="utf-8").strip()
    if not key:
        raise ValueError(f"{path} holds no API key")
    return replace(
        deployment,
        server={**deployment.server, "api_key": Setting(key, path)},
        arguments=(*deployment.arguments, "--api-key", key),
    )


def out_of_sight(arguments: Sequence[str], folder: Path) -> tuple[str, ...]:
    """The arguments with the keys moved into ``folder``/server.yaml, where SGLang can take them from there."""
    if any(argument == "--config" or argument.startswith("--config=") for argument in arguments):
        return tuple(arguments)
    rest: list[str] = []
    moved: dict[str, str] = {}
    waiting = iter(arguments)
    for argument in waiting:
        flag, equals, value = argument.partition("=")
        if flag in _FLAGS:
            moved[flag[2:]] = value if equals else next(waiting, "")
        else:
            rest.append(argument)
    if not moved:
        return tuple(arguments)
    file = folder / "server.yaml"
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as target:  # noqa: PTH123
        target.writelines(f"{name}: {json.dumps(value)}\n" for name, value in moved.items())
    return ("--config", str(file), *rest)
