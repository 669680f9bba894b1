"""Percentiles in fixed memory: a histogram with buckets 0.5 % wide, so that any percentile is right within 0.25 %."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

WIDTH = 0.005
PER_E = 1 / math.log1p(WIDTH)  # buckets to a factor of e
ZERO = -(1 << 30)  # the bucket of what is not above zero


@dataclass
class LogHistogram:
    """Counts of positive numbers. Zero and less are counted as zero."""

    count: int = 0
    total: float = 0.0
    highest: float = 0.0
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, value: float) -> None:
        """Count one number in."""
        self.count += 1
        self.total += value
        self.highest = max(self.highest, value)
        bucket = math.floor(math.log(value) * PER_E) if value > 0 else ZERO
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def merge(self, other: LogHistogram) -> None:
        """Count all of another histogram in."""
        self.count += other.count
        self.total += other.total
        self.highest = max(self.highest, other.highest)
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    @property
    def mean(self) -> float | None:
        """None when empty."""
        return self.total / self.count if self.count else None

    def percentile(self, percent: float) -> float | None:
        """The smallest bucket's middle that at least ``percent`` of the numbers do not exceed; None when empty."""
        if not self.count:
            return None
        wanted = max(math.ceil(self.count * percent / 100), 1)
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                return 0.0 if bucket == ZERO else min(math.exp((bucket + 0.5) / PER_E), self.highest)
        return self.highest
