"""All checks, in the order in which they run and print: what one needs stands before it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from guarded_serve.checks import (
    drafter_bytes,
    drafter_class,
    drafter_config,
    drafter_engine,
    drafter_files,
    drafter_origin,
    drafter_weights,
    gpu,
    host,
    other_drafters,
    profile,
    target,
    vocab_map,
)
from guarded_serve.checks.interface import Check


def ordered(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Checks as given, but none before one that it needs."""
    waiting = {check.name: check for check in checks}
    done: dict[str, Check] = {}

    def take(check: Check) -> None:
        for name in check.needs:
            if name in waiting and name not in done:
                take(waiting[name])
        done.setdefault(check.name, check)

    for check in waiting.values():
        take(check)
    return tuple(done.values())


CHECKS: tuple[Check, ...] = ordered(
    (
        *profile.CHECKS,
        *target.CHECKS,
        *drafter_files.CHECKS,
        *drafter_class.CHECKS,
        *drafter_weights.CHECKS,
        *drafter_config.CHECKS,
        *vocab_map.CHECKS,
        *drafter_origin.CHECKS,
        *drafter_bytes.CHECKS,
        *drafter_engine.CHECKS,
        *other_drafters.CHECKS,
        *gpu.CHECKS,
        *host.CHECKS,
    )
)


def checks_of(families: Collection[str]) -> tuple[Check, ...]:
    """The checks of these families."""
    return tuple(check for check in CHECKS if check.family in families)
