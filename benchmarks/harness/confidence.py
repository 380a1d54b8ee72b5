"""Confidence intervals of measured rates."""

import math

_Z = 1.96
"""Standard deviations to either side that hold 95 % of a normal distribution."""


def wilson(events: int, trials: int) -> tuple[float, float]:
    """The 95 % confidence interval of a rate of `events` in `trials` (Wilson 1927), which holds for rare events too."""
    share = events / trials
    middle = share + _Z**2 / (2 * trials)
    spread = _Z * math.sqrt(share * (1 - share) / trials + _Z**2 / (4 * trials**2))
    scale = 1 + _Z**2 / trials
    return max(0.0, (middle - spread) / scale), (middle + spread) / scale
