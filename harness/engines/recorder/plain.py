"""Any Python value as JSON has it."""

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """A value as JSON knows it; numbers that are not finite and unknown objects become texts."""
    if value is None or isinstance(value, bool | int):
        return value if value is None or isinstance(value, bool) else int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(each) for each in value), key=str)
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a number of NumPy or torch
        return plain(value.item())
    return str(value)
