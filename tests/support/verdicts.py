"""Judging a checkpoint from tests: a deployment from plain values, and what the checks of a family found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from guarded_serve.checks.registry import checks_of
from guarded_serve.checks.runner import run_checks
from guarded_serve.facts.gather import gather
from guarded_serve.facts.model import scan_drafter
from guarded_serve.findings import Report, Severity
from guarded_serve.profile.deployment import Deployment, Setting
from guarded_serve.profile.model import Profile

FAMILIES = ("target", "drafter")


def deployment(
    target: Path,
    drafter: Path | None = None,
    *,
    algorithm: str | None = "EAGLE3",
    version: str | None = "0.5.23",
    environment: Mapping[str, str] | None = None,
    profile: Mapping[str, Any] | None = None,
    **server: Any,
) -> Deployment:
    """What `profile.resolve` would make of these settings."""
    settings: dict[str, Any] = {"model_path": str(target), "speculative_algorithm": algorithm}
    if drafter is not None:
        settings["speculative_draft_model_path"] = str(drafter)
    settings.update(server)
    return Deployment(
        profile=Profile.model_validate({"server": {"model_path": str(target)}, **(profile or {})}),
        profile_path=None,
        server={name: Setting(value, "test") for name, value in settings.items() if value is not None},
        defaults={},
        arguments=(),
        environment={name: Setting(value, "test") for name, value in (environment or {}).items()},
        sglang_version=version,
    )


def judge(found: Deployment, families: Iterable[str] = FAMILIES, *, deep: bool = False) -> Report:
    """Gather and judge."""
    facts = gather(found, tuple(families))
    if facts.model is not None:
        wanted = {name: setting.value for name, setting in found.environment.items()}
        facts = replace(facts, model=replace(facts.model, environment=wanted))
    if deep and facts.model is not None:
        facts = replace(facts, model=scan_drafter(facts.model))
    return run_checks(checks_of(tuple(families)), facts, found.profile.preflight.ignore)


def errors(report: Report) -> list[str]:
    """Names of checks with errors, in order, each once."""
    return list(dict.fromkeys(item.check for item in report.findings if item.severity is Severity.ERROR))


def warnings(report: Report) -> list[str]:
    """Names of checks with warnings, in order, each once."""
    return list(dict.fromkeys(item.check for item in report.findings if item.severity is Severity.WARNING))


def message(report: Report, check: str) -> str:
    """The messages of one check's findings, a line each."""
    return "\n".join(item.message for item in report.findings if item.check == check)
