"""How fast the pairs of a head turn, by a config: the papers' formulas in float64.

Written from the papers for the laws alone, so that neither an engine nor the reference is its own
judge.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sizes import Sizes

Floats = NDArray[np.float64]

#: Unit roundoff of float32, in which engines form angles whatever their dtype is.
SINGLE = 2.0**-24


@dataclass(frozen=True, slots=True)
class Turning:
    """How the pairs of a layer's heads turn.

    Attributes:
        speeds: [P] radians per position, one a pair.
        factor: What cosine and sine are multiplied with.
        slack: [P] radians per position by which a float32 computation of the speeds may be off.
    """

    speeds: Floats
    factor: float
    slack: Floats

    def angles(self, positions: Floats) -> Floats:
        """Angles [T, P] at positions [T]."""
        return positions[:, None] * self.speeds

    def off(self, positions: Floats) -> Floats:
        """How far float32 angles [T, P] may be off.

        A position below 2^24 is a float32 number. Its product with a speed has the error of the
        speed, and is rounded once.
        """
        return np.abs(positions)[:, None] * (self.slack + SINGLE * np.abs(self.speeds))


@dataclass(frozen=True, slots=True)
class _Head:
    """What the formulas take.

    Attributes:
        rope: Rope parameters of the layer.
        size: Number of rotated elements of a head.
        longest: ``max_position_embeddings``.
        length: Largest position so far and one.
    """

    rope: Mapping[str, Any]
    size: int
    longest: int
    length: int

    @property
    def theta(self) -> float:
        """Base of the speeds."""
        return float(self.rope["rope_theta"])

    @property
    def scale(self) -> float:
        """Factor by which the context was stretched."""
        return float(self.rope["factor"])

    @property
    def trained(self) -> float:
        """Length before it was stretched."""
        return float(self.rope.get("original_max_position_embeddings") or self.longest)

    @property
    def exponents(self) -> Floats:
        """[P], from 0 to nearly 1."""
        return np.arange(0, self.size, 2) / self.size

    def plain(self, theta: float | None = None) -> Floats:
        """Speeds [P] without any scaling (Su et al. 2021, RoFormer, section 3.2.2)."""
        return np.asarray((self.theta if theta is None else theta) ** -self.exponents)

    def roundings(self, theta: float | None = None) -> Floats:
        """Roundings [P] in plain speeds, in parts of them and units.

        The exponent is rounded once, which the power multiplies by its logarithm; the power
        itself may be off by one in the last place, which is two units; its reciprocal is rounded.
        """
        return 3 + self.exponents * abs(math.log(self.theta if theta is None else theta))


def turning(sizes: Sizes, layer: int, length: int) -> Turning:
    """How the pairs of a layer turn.

    Args:
        sizes: Of the model.
        layer: Index of the layer.
        length: Largest position of the sequence and one, on which some types of scaling depend.

    Raises:
        LookupError: A type of scaling that has no formula here.
    """
    rope = sizes.rope(layer)
    head = _Head(rope, rotated(sizes, layer), sizes.longest, length)
    return _TYPES[str(rope.get("rope_type") or "default")](head)


def rotated(sizes: Sizes, layer: int) -> int:
    """Number of elements of a head that are rotated, from its first on."""
    share = sizes.rope(layer).get("partial_rotary_factor")
    return int(sizes.head_dim * float(1.0 if share is None else share))


def _turning(head: _Head, kept: Floats | float, wrong: Floats | float = 0.0) -> Turning:
    """Plain speeds times what is kept of them, which is off by some units."""
    plain = head.plain()
    slack = plain * (kept * (head.roundings() + 2) + wrong) * SINGLE
    return Turning(plain * kept, 1.0, np.asarray(slack))


def _default(head: _Head) -> Turning:
    """Su et al. 2021, RoFormer, section 3.2.2."""
    return _turning(head, 1.0)


def _linear(head: _Head) -> Turning:
    """Chen et al. 2023, Extending Context Window via Positional Interpolation, equation 4."""
    return _turning(head, 1.0 / head.scale)


def _dynamic(head: _Head) -> Turning:
    """Another base for every length beyond the trained one.

    Source: Peng et al. 2023, YaRN, section 3.3, with the base of appendix A.1; how far a length is
    stretched as the configs of Hugging Face mean it.
    """
    grown = head.scale * max(head.length, head.longest) / head.longest
    stretch = grown - (head.scale - 1)
    power = head.size / (head.size - 2)
    theta = head.theta * stretch**power
    plain = head.plain(theta)
    # The subtraction makes what was rounded before it larger, in parts of what is left.
    base = 4 + 2 * power * grown / stretch
    slack = plain * (head.roundings(theta) + head.exponents * base) * SINGLE
    return Turning(plain, 1.0, slack)


def _llama3(head: _Head) -> Turning:
    """Slow pairs stretched, fast ones kept, and a passage that is linear in the number of turns.

    Source: Grattafiori et al. 2024, The Llama 3 Herd of Models, section 3.4.2, with the keys of the
    Llama 3.1 model card.
    """
    low, high = float(head.rope["low_freq_factor"]), float(head.rope["high_freq_factor"])
    turns = head.trained * head.plain() / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    between = (turns > 0.99 * low) & (turns < 1.01 * high)
    off = (turns * (head.roundings() + 3) + low) / (high - low)
    return _turning(
        head, share + (1 - share) / head.scale, np.where(between, off * (1 - 1 / head.scale), 0.0)
    )


def _yarn(head: _Head) -> Turning:
    """Slow pairs stretched, fast ones kept, and a passage that is linear in the pair's number.

    Source: Peng et al. 2023, YaRN, section 3.2 and equation 22; the passage and the whole pairs at
    its ends as in the authors' code. Two magnitudes in place of one: DeepSeek-AI 2024, DeepSeek-V2,
    section 3.1.4.
    """
    rope = head.rope

    def pair(turns: float) -> float:
        return (
            head.size * math.log(head.trained / (turns * 2 * math.pi)) / (2 * math.log(head.theta))
        )

    first, last = pair(float(rope.get("beta_fast") or 32)), pair(float(rope.get("beta_slow") or 1))
    if rope.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head.size - 1)
    width = last - first or 0.001
    numbers = np.arange(head.size // 2)
    slow = (numbers - first) / width
    between = (slow > 0) & (slow < 1)
    slow = np.clip(slow, 0.0, 1.0)
    off = 4 * np.maximum(numbers, max(first, abs(last), 1)) / width
    made = _turning(
        head, 1 - slow + slow / head.scale, np.where(between, off * (1 - 1 / head.scale), 0.0)
    )
    return Turning(made.speeds, _yarn_factor(head), made.slack)


def _yarn_factor(head: _Head) -> float:
    given = head.rope.get("attention_factor")
    if given is not None:
        return float(given)

    def magnitude(of: float) -> float:
        return 0.1 * of * math.log(head.scale) + 1.0 if head.scale > 1 else 1.0

    over, under = head.rope.get("mscale"), head.rope.get("mscale_all_dim")
    return magnitude(over) / magnitude(under) if over and under else magnitude(1.0)


def _longrope(head: _Head) -> Turning:
    """Each pair divided by a factor of its own, by another beyond the trained length.

    Source: Ding et al. 2024, LongRoPE, section 3; Abdin et al. 2024, Phi-3 Technical Report, with
    the keys of its model cards, for the two lists and the magnitude.
    """
    rope = head.rope
    long = head.length > head.trained
    by = np.asarray(rope["long_factor" if long else "short_factor"], dtype=np.float64)
    stretched = head.longest / head.trained
    given = rope.get("attention_factor")
    if given is None:
        more = math.log(stretched) / math.log(head.trained) if stretched > 1 else 0.0
        given = math.sqrt(1 + more)
    made = _turning(head, 1 / by, 1 / by)
    return Turning(made.speeds, float(given), made.slack)


_TYPES: Mapping[str, Callable[[_Head], Turning]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
