"""Fitted values in words."""

import math


def in_words(value: float, error: float) -> str:
    """A value with its standard error, with as many digits as that leaves: ``99,000 +- 2``."""
    if not (error > 0 and math.isfinite(error) and math.isfinite(value)):
        return f"{value:,.6g}"
    places = -math.floor(math.log10(error))
    if value and not 1e-3 <= abs(value) < 1e9:
        digits = max(1, places + math.floor(math.log10(abs(value))))
        return f"{value:.{min(digits, 12)}e} +- {error:.0e}"
    return f"{value:,.{min(max(places, 0), 12)}f} +- {error:.1g}"
