"""The configuration's own faults, found where it is read (`profile.resolve`), as checks like all others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from guarded_serve.checks.interface import Check, check
from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts

_RULES = {
    "profile.file": "The profile can be read.",
    "profile.syntax": "The profile is TOML.",
    "profile.unknown_section": "Every section of the profile exists.",
    "profile.unknown_key": "Every key of the profile exists.",
    "profile.type": "Every value of the profile has its key's type.",
    "profile.value": "Every value of the profile is one that its key may have, preflight.ignore included.",
    "profile.combination": "The settings can be in force together.",
    "profile.config": "The --config file can be read, and SGLang knows its keys.",
    "profile.prompts": "The prompts of the probe can be read.",
    "profile.flags": "SGLang knows every flag and takes its value.",
    "profile.sglang": "The installed SGLang can say which settings it has.",
    "profile.engine": "A start has SGLang in the launcher's own Python.",
    "target.model_path": "A model is given.",
}


def _make(name: str, rule: str) -> Check:
    def judge(self: Check, facts: Facts) -> Iterator[Finding]:
        yield from (finding for finding in facts.configuration if finding.check == self.name)

    judge.__doc__ = rule
    return check(name, exit_code=ExitCode.PROFILE, source="profile/load.py, profile/resolve.py")(judge)


def unlisted(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Names that reading the configuration came up with and that no check here stands for."""
    return tuple({finding.check for finding in findings} - set(_RULES))


CHECKS = tuple(_make(name, rule) for name, rule in _RULES.items())
