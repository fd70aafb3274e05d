"""Medians with their intervals, and intervals of what is computed from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Interval = tuple[float, float]
PERCENTILES = {"50": 50, "90": 90, "99": 99, "999": 99.9}
REPEATS = 400  # of the bootstrap: enough for the two digits that are printed


def median(values: Sequence[float]) -> float:
    """The median."""
    return float(medians(values))


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


def percentile_interval(values: Sequence[float], percent: float) -> Interval:
    """A 95 % interval of a percentile by order statistics; the extremes if there are few values."""
    ordered, share = np.sort(values), percent / 100
    rank, half = len(ordered) * share, 1.96 * math.sqrt(len(ordered) * share * (1 - share))
    ends = np.clip([math.floor(rank - half) - 1, math.ceil(rank + half)], 0, len(ordered) - 1)
    return float(ordered[ends[0]]), float(ordered[ends[1]])


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


def bootstrap(statistic: Callable[..., Any], *groups: Sequence[float]) -> Interval:
    """A 95 % interval of a statistic of independent groups; the same values give the same one.

    Args:
        statistic: Takes arrays, and works along their last axis.
        groups: The values.
    """
    generator = np.random.default_rng(0)
    drawn = (generator.choice(np.asarray(group), (REPEATS, len(group))) for group in groups)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.asarray(statistic(*drawn))
    found = found[np.isfinite(found)]
    if not len(found):
        return math.nan, math.nan
    return float(percentile(found, 2.5)), float(percentile(found, 97.5))


def medians(values: Any) -> Any:
    """The median along the last axis."""
    return np.median(values, axis=-1)


def means(values: Any) -> Any:
    """The mean along the last axis."""
    return np.mean(values, axis=-1)


def ratio_of_medians(ours: Any, theirs: Any) -> Any:
    """The one median divided by the other."""
    return medians(ours) / medians(theirs)


def ratio_of_means(ours: Any, theirs: Any) -> Any:
    """The one mean divided by the other."""
    return means(ours) / means(theirs)


def difference(ours: Any, theirs: Any) -> Any:
    """The one median less the other."""
    return medians(ours) - medians(theirs)


def difference_of_p99(ours: Any, theirs: Any) -> Any:
    """The one p99 less the other."""
    return percentile(ours, 99) - percentile(theirs, 99)
