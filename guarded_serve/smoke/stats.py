"""Confidence intervals for ratios, paired by prompt, in plain Python.

Acceptance is the ratio of two sums over prompts (tokens over verifications), a gain the ratio of two times for the same
prompts. Both are judged on the logarithm of the ratio, by the scatter between prompts (linearised: each prompt's part
in the ratio) and, for times, also by the scatter between repeats of the whole set of prompts, which is how a busy
machine shows. Repeats that follow each other are alike: in recorded runs neighbours were correlated by 0.44 and 0.51,
so the variance of their mean is (1 + 0.45) / (1 - 0.45) = 2.6 times what independent ones would have. The terms add up
as variances; Student's t with Welch's degrees of freedom makes an interval of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, variance

CONFIDENCE = 0.99
ALIKE = 2.6
"""How many times the variance of a mean of consecutive repeats exceeds that of independent ones."""


@dataclass(frozen=True)
class Interval:
    """An estimate and the limits between which the true value lies with probability `CONFIDENCE`."""

    estimate: float
    low: float
    high: float

    @property
    def plus_minus(self) -> float:
        """Half its width, relative to the estimate."""
        return (self.high - self.low) / 2 / self.estimate if self.estimate else math.inf


def ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """sum(above) / sum(below), where each pair is one prompt's. Raises ValueError without any ``below``."""
    if not sum(below):
        raise ValueError("nothing to divide by")
    estimate = sum(above) / sum(below)
    if estimate <= 0:
        return Interval(estimate, 0.0, 0.0 if len(above) > 1 else math.inf)
    return _interval(estimate, [(_scatter(_parts(above, below)), len(above) - 1)])


def share(hits: Sequence[int], tries: Sequence[int]) -> Interval:
    """sum(hits) / sum(tries) between 0 and 1, on the ratio itself, so that 0 is a value like any other.

    Where no prompt differs from another, Wilson's limits for so many tries keep it honest.
    """
    total = sum(tries)
    if not total:
        raise ValueError("nothing to divide by")
    estimate = sum(hits) / total
    mean = total / len(tries)
    parts = [(hit - estimate * count) / mean for hit, count in zip(hits, tries, strict=True)]
    error = math.sqrt(_scatter(parts)) * t_quantile(len(parts) - 1) if len(parts) > 1 else 1.0
    low, high = _wilson(estimate, total)
    return Interval(estimate, max(0.0, min(low, estimate - error)), min(1.0, max(high, estimate + error)))


def ratio_of_ratios(
    above: Sequence[float], below: Sequence[float], other_above: Sequence[float], other_below: Sequence[float]
) -> Interval:
    """(sum(above) / sum(below)) over (sum(other_above) / sum(other_below)), all four of the same prompts."""
    estimate = sum(above) / sum(below) / (sum(other_above) / sum(other_below))
    mine, theirs = _parts(above, below), _parts(other_above, other_below)
    parts = [left - right for left, right in zip(mine, theirs, strict=True)]
    return _interval(estimate, [(_scatter(parts), len(parts) - 1)])


def gain(baseline: Sequence[Sequence[float]], drafted: Sequence[Sequence[float]]) -> Interval:
    """How many times faster: time without over time with the drafter, for the same prompts.

    Each argument holds a row a repeat, and in it a time a prompt, in the same order everywhere. A prompt's time is the
    median of its repeats.
    """
    slow, fast = medians(baseline), medians(drafted)
    terms = [(_scatter(_parts(slow, fast)), len(slow) - 1)]
    for repeats in (baseline, drafted):
        totals = [math.log(sum(row)) for row in repeats]
        if len(totals) > 1:
            terms.append((variance(totals) * min(1.0, ALIKE / len(totals)), len(totals) - 1))
    return _interval(sum(slow) / sum(fast), terms)


def medians(repeats: Sequence[Sequence[float]]) -> list[float]:
    """Column by column."""
    return [_median(sorted(column)) for column in zip(*repeats, strict=True)]


def unrest(repeats: Sequence[Sequence[float]]) -> float:
    """Relative standard error of the mean time of a repeat: how much the machine moved between repeats."""
    totals = [math.log(sum(row)) for row in repeats]
    return math.sqrt(_scatter(totals)) if len(totals) > 1 else math.inf


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _parts(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """What each prompt adds to the logarithm of the ratio, times the number of prompts."""
    mean_above, mean_below = fmean(above), fmean(below)
    return [left / mean_above - right / mean_below for left, right in zip(above, below, strict=True)]


def _scatter(values: Sequence[float]) -> float:
    """Variance of their mean."""
    return variance(values) / len(values) if len(values) > 1 else math.inf


def _interval(estimate: float, terms: Sequence[tuple[float, int]]) -> Interval:
    total = sum(term for term, _ in terms)
    if not math.isfinite(total):
        return Interval(estimate, 0.0, math.inf)
    if total == 0:
        return Interval(estimate, estimate, estimate)
    freedom = total**2 / sum(term**2 / degrees for term, degrees in terms if term)
    width = math.sqrt(total) * t_quantile(freedom)
    return Interval(estimate, estimate * math.exp(-width), estimate * math.exp(min(width, 700.0)))


def _wilson(estimate: float, tries: int) -> tuple[float, float]:
    z = t_quantile(1e6)
    middle = estimate + z * z / (2 * tries)
    width = z * math.sqrt(estimate * (1 - estimate) / tries + z * z / (4 * tries * tries))
    below = 1 + z * z / tries
    return (middle - width) / below, (middle + width) / below


@lru_cache(maxsize=4096)
def t_quantile(degrees: float, confidence: float = CONFIDENCE) -> float:
    """Student's t: the value that is not exceeded either way with this probability. ``degrees`` may be a fraction.

    With t = sqrt(degrees) * tan(angle) the density is cos(angle) ** (degrees - 1) on a bounded range, which Simpson's
    rule integrates; bisection finds the angle. Beyond 1000 degrees it is the normal distribution for our purposes.
    """
    degrees = min(max(degrees, 1.0), 1000.0)
    constant = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    low, high = 0.0, math.pi / 2
    for _ in range(50):
        angle = (low + high) / 2
        if 2 * constant * _power_of_cosine(degrees - 1, angle) < confidence:
            low = angle
        else:
            high = angle
    return math.sqrt(degrees) * math.tan(low)


def _power_of_cosine(power: float, end: float, pieces: int = 200) -> float:
    """The integral of cos(x) ** power from 0 to ``end``."""
    step = end / pieces
    heights = [math.pow(math.cos(index * step), power) for index in range(pieces + 1)]
    return step / 3 * (heights[0] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]) + heights[-1])
