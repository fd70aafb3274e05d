"""Medians with their intervals, and percentiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Interval = tuple[float, float]
PERCENTILES = {"50": 50, "90": 90, "99": 99, "999": 99.9}


def median(values: Sequence[float]) -> float:
    """The median."""
    return float(np.median(values))


def median_interval(values: Sequence[float]) -> Interval:
    """A 95 % interval of the median by order statistics; the extremes if there are few values."""
    ordered = np.sort(values)
    middle, half = len(ordered) / 2, 0.98 * math.sqrt(len(ordered))
    ends = np.clip([math.floor(middle - half), math.ceil(middle + half)], 0, len(ordered) - 1)
    return float(ordered[ends[0]]), float(ordered[ends[1]])


def percentile(values: Any, percent: float) -> Any:
    """The smallest value that is not exceeded by so many percent of those along the last axis."""
    # Not numpy's, which takes the 1,000th of 1,000 values for 99.9 %, because 0.999 is no binary
    # fraction.
    ordered = np.sort(values, axis=-1)
    return ordered[..., max(0, math.ceil(ordered.shape[-1] * percent / 100) - 1)]


def tails(nanoseconds: Sequence[int]) -> dict[str, float]:
    """The median, the high percentiles and the maximum in us, as they stand in a row."""
    found = {
        f"p{name}_us": micro(percentile(nanoseconds, percent))
        for name, percent in PERCENTILES.items()
    }
    return {**found, "max_us": micro(max(nanoseconds))}


def micro(nanoseconds: float) -> float:
    """In us, as it stands in a row."""
    return round(float(nanoseconds) / 1e3, 1)
