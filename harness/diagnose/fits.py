"""Constants of ops, fitted to what a candidate computed, and whether they are the config's."""

import math
from typing import Any

from numpy.typing import NDArray

from ..faults.fault import Facts
from ..fitting.estimate import Estimate
from ..fitting.seen import Seen
from ..fitting.table import FITTERS, fit_op
from ..replay.call import Made
from ..result import Fit
from ..taps import split
from .written import where_written

Array = NDArray[Any]


def fit_constants(made: Made, found: Array, bound: Array, facts: Facts) -> tuple[Fit, ...]:
    """Fit the constants of one op.

    Args:
        made: The op and its evaluation in float64 on the candidate's own inputs.
        found: What the candidate has, float64 or booleans, of the shape of the output.
        bound: Rounding bound of the op in units of ``u``.
        facts: The config, for where a constant is written.

    Returns:
        Those that the numbers say something of: a value that could as well be half or twice the
        configured one is left out.
    """
    if made.op not in FITTERS or made.tap is None:
        return ()
    at = split(made.tap)
    seen = Seen(made.op, made.call, found, bound, at.kind, facts.config)
    return tuple(
        Fit(
            constant=name,
            configured=one.configured,
            fitted=one.value,
            error=one.error,
            tolerated=one.systematic,
            excluded=one.excludes,
            written=where_written(name, one.configured, facts.config, at.kind, at.layer),
        )
        for name, one in fit_op(seen)
        if _tells(one)
    )


def _tells(one: Estimate) -> bool:
    """Whether the numbers determine a constant, or exclude the configured value."""
    if not math.isfinite(one.error) or not math.isfinite(one.value):
        return False
    return one.excludes or one.margin < 0.5 * (abs(one.configured) or 1.0)
