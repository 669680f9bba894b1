"""All GPU checks, in the order in which they are run and printed."""

from __future__ import annotations

from guarded_serve.checks import gpu_busy, gpu_driver, gpu_fit, gpu_health
from guarded_serve.checks.interface import Check

CHECKS: tuple[Check, ...] = (*gpu_driver.CHECKS, *gpu_busy.CHECKS, *gpu_health.CHECKS, *gpu_fit.CHECKS)
