"""SGLang's versions as far as the rules know them."""

from __future__ import annotations

import re

Version = tuple[int, int, int]

OLDEST: Version = (0, 5, 16)
NEWEST: Version = (0, 5, 23)


def parse_version(text: str | None) -> Version | None:
    """``0.5.23.post1`` to (0, 5, 23); None where there is no version or it is not one."""
    found = re.match(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})", text or "")
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def rules_version(text: str | None) -> tuple[Version, str | None]:
    """The version whose rules apply, and a sentence where that is a guess (None: it is not)."""
    version = parse_version(text)
    if version is None:
        return NEWEST, f"SGLang is not installed here: judged by the rules of {_text(NEWEST)}"
    if version < OLDEST:
        return OLDEST, f"SGLang {text} is older than the oldest that the rules know: judged by those of {_text(OLDEST)}"
    if version > NEWEST:
        return NEWEST, f"SGLang {text} is newer than the newest that the rules know: judged by those of {_text(NEWEST)}"
    return version, None


def _text(version: Version) -> str:
    return ".".join(map(str, version))
