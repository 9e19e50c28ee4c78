"""RoPE scaling of a GGUF file as the `rope_scaling` entry of a config.json.

Linear and YaRN scaling are metadata. Llama 3's scaling is stored only as its result, one divisor
per rotated pair in `rope_freqs.weight`; the parameters are recovered and must give back the same
divisors, or the file is refused.
"""

import math
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ...errors import CheckpointError
from .architecture import Source

_TENSOR = "rope_freqs.weight"
_USUAL_LLAMA3 = (1.0, 4.0, 8192)  # low and high frequency factor, original context of Llama 3
_TOLERANCE = 2e-6  # a few float32 roundings of values that go through one division each

Divisors = npt.NDArray[np.float64]


def read_rope_scaling(source: Source, *, theta: float, head_dim: int) -> dict[str, Any] | None:
    """Build the `rope_scaling` entry; None where nothing is scaled.

    Args:
        source: The file and its metadata.
        theta: Base of the rotation frequencies.
        head_dim: D; there are D / 2 frequencies.

    Raises:
        CheckpointError: If the scaling is of an unknown kind, incomplete, or given as divisors
            that no parameters reproduce.
    """
    kind = source.facts.get("rope.scaling.type", "none")
    if _TENSOR in source.file.tensors:
        if kind != "none":
            _refuse(source, f"{_TENSOR} or rope.scaling.type", f"both, the latter {kind!r}")
        return _read_divisors(source, theta=theta, head_dim=head_dim)
    if kind == "none":
        parameters = (key for key in source.facts if key.startswith("rope.scaling."))
        loose = sorted(key for key in parameters if key != "rope.scaling.type")
        if loose:
            _refuse(source, "rope.scaling.type beside its parameters", ", ".join(loose))
        return None
    if kind not in ("linear", "yarn"):
        _refuse(source, "rope.scaling.type none, linear or yarn", repr(kind))
    return _read_parameters(source, kind)


def _read_parameters(source: Source, kind: str) -> dict[str, Any]:
    facts = source.facts
    if "rope.scaling.factor" not in facts:
        _refuse(source, f"rope.scaling.factor for {kind} scaling", "no such key")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": float(facts["rope.scaling.factor"])}
    if kind == "yarn":
        if "rope.scaling.original_context_length" not in facts:
            _refuse(source, "rope.scaling.original_context_length for yarn", "no such key")
        scaling["original_max_position_embeddings"] = facts["rope.scaling.original_context_length"]
        for side in ("fast", "slow"):
            if f"rope.scaling.yarn_beta_{side}" in facts:
                scaling[f"beta_{side}"] = float(facts[f"rope.scaling.yarn_beta_{side}"])
    return scaling


def _read_divisors(source: Source, *, theta: float, head_dim: int) -> dict[str, Any] | None:
    divisors = source.file.dequantise(_TENSOR).astype(np.float64)
    if divisors.shape != (head_dim // 2,):
        _refuse(source, f"{_TENSOR} of shape [{head_dim // 2}]", str(list(divisors.shape)))
    if not (np.isfinite(divisors).all() and (divisors > 0).all()):
        _refuse(source, f"positive divisors in {_TENSOR}", f"{divisors.min()} among them")
    if np.all(divisors == 1.0):
        return None
    if np.ptp(divisors) == 0.0:
        return {"rope_type": "linear", "factor": float(divisors[0])}
    scaling = recover_llama3(divisors, theta=theta)
    if scaling is None:
        _refuse(
            source,
            f"divisors in {_TENSOR} that Llama 3's scaling can produce",
            f"{divisors.min():g} to {divisors.max():g}, which no parameters reproduce",
        )
    return scaling


def llama3_divisors(
    *, theta: float, pairs: int, factor: float, low: float, high: float, context: float
) -> Divisors:
    """By what Llama 3's scaling divides each rotation frequency, float64 [pairs].

    Source: Llama Team, The Llama 3 Herd of Models (2024), and Meta's reference implementation
    for 3.1: wavelengths below context / high stay, those above context / low are stretched by
    `factor`, those between are interpolated in 1 / wavelength.
    """
    cycles = context / (2 * math.pi * theta ** (np.arange(pairs) / pairs))  # in the context [R]
    smooth = np.clip((cycles - low) / (high - low), 0.0, 1.0)
    divisors: Divisors = 1.0 / ((1.0 - smooth) / factor + smooth)
    return divisors


def recover_llama3(divisors: Divisors, *, theta: float) -> dict[str, Any] | None:
    """Find Llama 3 parameters that give back these divisors.

    The divisors depend on ratios of low, high and context only, so where the usual ones do not
    fit, low is 1 by convention.

    Args:
        divisors: float64 [pairs], as stored in float32.
        theta: Base of the rotation frequencies.

    Returns:
        The `rope_scaling` entry, or None if no parameters reproduce the divisors.
    """
    factor = float(str(np.float32(divisors.max())))
    candidates = [_USUAL_LLAMA3]
    fitted = _fit_ramp(divisors, theta=theta, factor=factor)
    if fitted is not None:
        candidates.append(fitted)
    for low, high, context in candidates:
        made = llama3_divisors(
            theta=theta, pairs=divisors.size, factor=factor, low=low, high=high, context=context
        )
        if np.allclose(made, divisors, rtol=_TOLERANCE, atol=0.0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": context,
            }
    return None


def _fit_ramp(
    divisors: Divisors, *, theta: float, factor: float
) -> tuple[float, float, int] | None:
    """Low, high and context from the interpolated frequencies, which lie on a line."""
    frequencies = theta ** (-np.arange(divisors.size) / divisors.size) / (2 * math.pi)
    between = (divisors > 1.0) & (divisors < divisors.max())
    if between.sum() < 2:
        return None
    smooth = (1.0 / divisors[between] - 1.0 / factor) / (1.0 - 1.0 / factor)
    slope, offset = np.polyfit(frequencies[between], smooth, 1)
    # smooth = (context * f - low) / (high - low) with low = 1.
    if slope <= 0 or offset >= 0:
        return None
    span = -1.0 / offset
    return 1.0, round(1.0 + span, 4), round(slope * span)


def _refuse(source: Source, expected: str, found: str) -> NoReturn:
    raise CheckpointError(
        str(source.file.path),
        expected=expected,
        found=found,
        advice="use the checkpoint in its original format, whose config.json says how RoPE scales",
    )
