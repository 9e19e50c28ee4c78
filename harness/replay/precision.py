"""Unit roundoff and underflow of the dtypes that candidates compute in."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ..errors import UsageError

DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


@dataclass(frozen=True, slots=True)
class Precision:
    """How a candidate's dtype rounds.

    Attributes:
        name: Of the dtype.
        unit_roundoff: Half the distance from 1 to the next number: 2**-24 for float32, 2**-8 for
            bfloat16, 2**-11 for float16 (Higham 2002, section 2.1).
        underflow: Absolute error that an operation may make near zero: the smallest normal number
            where denormals may be flushed, the smallest denormal for float16.
        float32_ratio: Unit roundoff of float32 over that of this dtype. Narrow models form
            angles, norms and softmax in float32.
    """

    name: str
    unit_roundoff: float
    underflow: float
    float32_ratio: float


def precision(dtype: str) -> Precision:
    """The precision of a dtype by its name.

    Raises:
        UsageError: The dtype is none that replay can judge.
    """
    if dtype not in DTYPES:
        raise UsageError(
            "dtype", expected=" or ".join(DTYPES), found=dtype, advice="choose one of them"
        )
    info = ml_dtypes.finfo(DTYPES[dtype])
    roundoff = float(info.eps) / 2
    tiny = info.smallest_subnormal if dtype == "float16" else info.smallest_normal
    return Precision(dtype, roundoff, float(tiny), 2.0**-24 / roundoff)
