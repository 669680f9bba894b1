"""Secrets never reach our output: API keys, tokens and passwords, from the settings and from the environment."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from guarded_serve.profile.deployment import Deployment
from guarded_serve.profile.secret_names import MASK, SECRET_SETTINGS, is_secret_name

_SHORTEST = 6  # a shorter value would mask ordinary text


class Redactor:
    """Replaces known secret values by `MASK`."""

    def __init__(self, values: Iterable[str]) -> None:
        kept = sorted({value for value in values if len(value) >= _SHORTEST}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, kept))) if kept else None
        self._bytes = re.compile(b"|".join(re.escape(value.encode()) for value in kept)) if kept else None

    @classmethod
    def of(cls, deployment: Deployment) -> Redactor:
        """From the server's settings and the environment it will get."""
        environment = {**os.environ, **{name: str(set_.value) for name, set_ in deployment.environment.items()}}
        values = [str(deployment.get(name)) for name in SECRET_SETTINGS if deployment.get(name)]
        values += [value for name, value in environment.items() if is_secret_name(name)]
        return cls([*values, *_typed(deployment.arguments)])

    def text(self, text: str) -> str:
        """The text with every secret masked."""
        return self._pattern.sub(MASK, text) if self._pattern else text

    def block(self, data: bytes) -> bytes:
        """The same for raw output."""
        return self._bytes.sub(MASK.encode(), data) if self._bytes else data


def _typed(arguments: Sequence[str]) -> Iterator[str]:
    """What stands behind a secret's flag, written in full: no value is known of a command line that is refused."""
    flags = {f"--{name.replace('_', '-')}" for name in SECRET_SETTINGS}
    for word, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        name, joined, value = word.partition("=")
        if name in flags and (joined or not following.startswith("--")):
            yield value if joined else following
