"""Whole forward passes with a mistake in them, for a candidate that gives too little to replay.

That is weaker evidence than replay: all mistakes whose effect on the logits looks alike explain
about as much, and two at once explain each a part.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..faults.fault import Facts, Fault, Instead, Site
from ..references_seam import model as models
from ..references_seam import step as seam
from ..replay.call import Call, Operand
from ..replay.lane import rounded
from ..replay.precision import precision
from ..taps import split

Array = NDArray[Any]

#: Positions of the prompt that are run; those behind them are not needed for the logits before.
POSITIONS = 64

#: Forward passes at most: as many as so many multiplications pay for, within these two numbers.
_MULTIPLICATIONS, _FEWEST, _MOST = 2e11, 64, 600

#: Ways of one mistake that are tried at most.
_WAYS = 16

#: A mistake that explains more than this explains all; so many further ones are still tried, for
#: another may do so as well.
_ALL, _AFTER = 0.999, 12


@dataclass(frozen=True, slots=True)
class Explained:
    """A mistake in a whole forward pass.

    Attributes:
        fault: The mistake.
        detail: What is special here.
        share: Part of the squared difference of the logits that it takes away, up to 1.
    """

    fault: Fault
    detail: str
    share: float


def rank(
    model: models.Model,
    facts: Facts,
    tokens: NDArray[np.int64],
    logits: Array,
    *,
    dtype: str,
    faults: Sequence[Fault],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Explained]:
    """Run the most plausible mistakes and rank them by how much of the difference each explains.

    Args:
        model: The reference.
        facts: Config and parameters.
        tokens: Token ids [B, T], up to :data:`POSITIONS` of them.
        logits: What the candidate has, [B, T, V].
        dtype: Of the candidate: parameters are rounded to it.
        faults: What to try; the most common first, as long as the budget of passes lasts.
        progress: Told how many passes are done, and of how many.
    """
    plain = _Forward(facts, dtype)
    truth = plain.run(model, tokens)
    total = float(np.sum((logits - truth) ** 2))
    found: list[Explained] = []
    trials = list(islice(_trials(plain.sites, faults), _budget(facts, tokens)))
    end = len(trials)
    for done, (fault, index, detail) in enumerate(trials):
        if done >= end:
            break
        progress(done, len(trials))
        with_mistake = _Forward(facts, dtype, fault=fault, index=index).run(model, tokens)
        left = float(np.sum((logits - with_mistake) ** 2))
        if np.isfinite(left):
            found.append(Explained(fault, detail, 1 - left / max(total, 1e-300)))
            if found[-1].share > _ALL:
                end = min(end, done + 1 + _AFTER)
    return sorted(found, key=lambda explained: -explained.share)


def _budget(facts: Facts, tokens: NDArray[np.int64]) -> int:
    """Number of forward passes that a model of this size and a prompt of this length may take."""
    one = tokens.size * sum(int(np.asarray(p).size) for p in facts.parameters.values())
    return int(min(max(_MULTIPLICATIONS / one, _FEWEST), _MOST))


def _trials(sites: Sequence[Site], faults: Sequence[Fault]) -> Iterator[tuple[Fault, int, str]]:
    """Mistakes with the index of each of their ways, the first way of the most common first."""
    ways: list[tuple[int, int, Fault, str]] = []
    for fault in faults:
        site = next((site for site in sites if site.kind in fault.kinds), None)
        several = () if site is None else islice(fault.variant(site), _WAYS)
        ways += [
            (n, -fault.common, fault, w.detail) for n, w in enumerate(several) if not w.precision
        ]
    for index, _, fault, detail in sorted(ways, key=lambda way: (max(0, way[0] - 2), way[1])):
        yield fault, index, detail


class _Forward:
    """A step in float32 that makes a mistake wherever it can be made.

    Attributes:
        sites: One op of each kind of tap, those of the first layer.
    """

    def __init__(
        self, facts: Facts, dtype: str, *, fault: Fault | None = None, index: int = 0
    ) -> None:
        self._facts = facts
        self._dtype = dtype
        self._fault = fault
        self._index = index
        self._kinds: set[str] = set()
        self.sites: list[Site] = []

    def run(self, model: models.Model, tokens: NDArray[np.int64]) -> Array:
        """Logits [B, T, V]."""
        with np.errstate(all="ignore"):
            logits, _ = model.prefill(self, tokens)
        return np.asarray(logits)

    def __call__(
        self, tap: str | None, op: seam.Op, *inputs: seam.Handle, **constants: Any
    ) -> Array:
        operands = tuple(self._operand(x) for x in inputs)
        values = (None if x is None else x.value for x in operands)
        result: Array = op(*values, **constants)
        if tap is None or not self._wants(tap):
            return result
        call = Call(Operand(result), operands, constants, precision(self._dtype))
        site = Site(tap, op, call, None, self._facts, 0, self._dtype)
        if self._fault is None:
            self._kinds.add(site.kind)
            self.sites.append(site)
            return result
        instead = next(islice(self._fault.variant(site), self._index, None), None)
        return result if instead is None else _evaluated(instead, result)

    def _wants(self, tap: str) -> bool:
        kind = split(tap).kind
        if self._fault is not None:
            return kind in self._fault.kinds
        return kind not in self._kinds

    def _operand(self, value: seam.Handle) -> Operand | None:
        if value is None:
            return None
        if not isinstance(value, seam.Weight):
            return Operand(np.asarray(value))
        array = np.asarray(value.array)
        if array.dtype.kind in "iub":
            return Operand(array, name=value.name)
        # Half the digits suffice to weigh mistakes, and a stored float32 array need not be copied.
        narrow = rounded(array, self._dtype).astype(np.float32, copy=False)
        return Operand(narrow, name=value.name)


def _evaluated(instead: Instead, usual: Array) -> Array:
    """What the mistake makes; the usual where the rest of the model could not take its shape."""
    values = (None if x is None else x.value for x in instead.inputs)
    value: Array = instead.op(*values, **instead.constants)
    return value.astype(usual.dtype) if value.shape == usual.shape else usual
