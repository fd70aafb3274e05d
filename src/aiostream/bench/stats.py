"""Medians with their intervals, and intervals of what is computed from them."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

Interval = tuple[float, float]
PERCENTILES = {"50": 50, "90": 90, "99": 99, "999": 99.9}
REPEATS = 400  # of the bootstrap: enough for the two digits that are printed


def median_interval(values: Sequence[float]) -> Interval:
    """A 95 % interval of the median by order statistics; the extremes where there are too few values for one."""
    ordered = sorted(values)
    half = 0.98 * math.sqrt(len(ordered))
    low = max(0, math.floor(len(ordered) / 2 - half))
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + half))
    return ordered[low], ordered[high]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that is not exceeded by so many percent of them."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def percentile_interval(values: Sequence[float], percent: float) -> Interval:
    """A 95 % interval of a percentile by order statistics; the extremes where there are too few values for one."""
    ordered = sorted(values)
    share = percent / 100
    rank, half = len(ordered) * share, 1.96 * math.sqrt(len(ordered) * share * (1 - share))
    low = max(0, math.floor(rank - half) - 1)
    high = min(len(ordered) - 1, math.ceil(rank + half))
    return ordered[low], ordered[high]


def tails(nanoseconds: Sequence[int]) -> dict[str, float]:
    """The median, the high percentiles and the maximum in us, as they stand in a row."""
    ordered = sorted(nanoseconds)
    found = {
        f"p{name}_us": round(percentile(ordered, float(percent)) / 1e3, 1)
        for name, percent in PERCENTILES.items()
    }
    return {**found, "max_us": round(ordered[-1] / 1e3, 1)}


def bootstrap(statistic: Callable[..., float], *groups: Sequence[float]) -> Interval:
    """A 95 % interval of a statistic of one or more independent groups of values, the same each time for the same values."""
    generator = random.Random(0)
    found = []
    for _ in range(REPEATS):
        try:
            found.append(statistic(*(generator.choices(group, k=len(group)) for group in groups)))
        except ZeroDivisionError:
            continue
    if not found:
        return math.nan, math.nan
    found.sort()
    return found[int(0.025 * len(found))], found[min(len(found) - 1, int(0.975 * len(found)))]


def ratio_of_medians(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The one median divided by the other."""
    return statistics.median(ours) / statistics.median(theirs)


def ratio_of_means(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The one mean divided by the other."""
    return statistics.fmean(ours) / statistics.fmean(theirs)
