"""Constants of ops, fitted to what a candidate computed."""

from typing import Any

from numpy.typing import NDArray

from ..faults.fault import Facts
from ..replay.call import Made
from ..result import Fit

Array = NDArray[Any]


def fit_constants(made: Made, found: Array, bound: Array, facts: Facts) -> tuple[Fit, ...]:
    """Fit the constants of one op.

    Args:
        made: The op and its evaluation in float64 on the candidate's own inputs.
        found: What the candidate has, float64 or booleans, of the shape of the output.
        bound: Rounding bound of the op in units of ``u``.
        facts: The config, for where a constant is written.
    """
    return ()
