"""API keys: from a file or a systemd credential, and to SGLang without standing on its command line.

SGLang takes its keys as flags only, and a command line can be read by every user of the machine. So they go into a YAML
file in the launch's own folder (mode 0700), which SGLang reads through `--config`. It reads one such file: where the
deployment has a `--config` of its own, keys stay where they were written, and so does a key with a leading dash.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
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
        arguments=(*deployment.arguments, *([f"--api-key={key}"] if key.startswith("-") else ["--api-key", key])),
    )


def out_of_sight(deployment: Deployment, folder: Path) -> tuple[str, ...]:
    """The deployment's arguments, with the keys that SGLang can take from there moved into ``folder``/server.yaml."""
    rest, moved = _parted(deployment)
    if not moved:
        return tuple(rest)
    file = folder / "server.yaml"
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as target:  # noqa: PTH123
        target.writelines(f"{name[2:]}: {json.dumps(value)}\n" for name, value in moved.items())
    return ("--config", str(file), *rest)


def exposed(deployment: Deployment) -> tuple[str, ...]:
    """A note for each key that has to stay on the server's command line."""
    rest, _ = _parted(deployment)
    names = [flag for flag in _FLAGS if any(_secret_flag(deployment, *pair) == flag for pair in _pairs(rest))]
    why = "its --config file is the deployment's own" if _has_config(rest) else "its --config takes no leading dash"
    return tuple(
        f"{flag} stays on SGLang's command line, which every user of this machine can read: {why}" for flag in names
    )


def hidden(deployment: Deployment) -> tuple[str, ...]:
    """A note where `out_of_sight` moves keys: the server's command line then has a `--config` that nobody wrote."""
    moved = _parted(deployment)[1]
    if not moved:
        return ()
    return (f"{', '.join(moved)}: handed to SGLang in a private file (--config), not on its command line",)


def _parted(deployment: Deployment) -> tuple[list[str], dict[str, str]]:
    """The arguments that stay, and the keys to move, by flag; none where SGLang could not read them from a file.

    What a file says is put on a command line of SGLang's as two words, where a value with a leading dash is a flag.
    """
    arguments = deployment.arguments
    if _has_config(arguments):
        return list(arguments), {}
    rest: list[str] = []
    moved: dict[str, str] = {}
    skip = False
    for word, following in _pairs(arguments):
        if skip:
            skip = False
            continue
        flag = _secret_flag(deployment, word, following)
        _, equals, value = word.partition("=")
        value = value if equals else following
        if flag is None:
            rest.append(word)
        elif value.startswith("-"):
            rest.append(word)
            moved.pop(flag, None)  # this one comes later and wins
        else:
            moved[flag] = value
            skip = not equals
    return rest, moved


def _pairs(arguments: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Each word with the one after it."""
    return itertools.zip_longest(arguments, arguments[1:], fillvalue="")


def _has_config(arguments: Iterable[str]) -> bool:
    return any(argument == "--config" or argument.startswith("--config=") for argument in arguments)


def _secret_flag(deployment: Deployment, word: str, following: str) -> str | None:
    """Which key's flag this word is; an abbreviation, as argparse takes it, is known by its value as well."""
    name, equals, value = word.partition("=")
    if name in _FLAGS:
        return name
    value = value if equals else following
    for flag in _FLAGS:
        if len(name) > 2 and flag.startswith(name) and value and value == deployment.get(flag[2:].replace("-", "_")):
            return flag
    return None
