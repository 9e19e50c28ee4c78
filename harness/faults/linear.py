"""A linear map at which a mistake is tried, and a cheap look at whether it can be one.

The product with a whole matrix costs as much as the op itself, and a catalogue has many mistakes in
matrices. So each is first screened on a few positions and output channels.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract import UNIT_LIMIT
from ..references_seam import ops
from ..replay.call import Operand
from .fault import Instead, Site
from .stored import lift, named, narrow

Array = NDArray[Any]

_LINEAR = (ops.linear, ops.linear_heads, ops.linear_merged)
_AFFINE = (ops.affine, ops.affine_merged)

#: Positions and channels that a screen looks at.
_POSITIONS, _CHANNELS = 4, 96

#: A screen lets pass what is within so many times the limit.
_SLACK = 4.0

#: A mistake in fewer of the output channels is one in these channels.
_SPARSE = 0.3

#: Kinds of taps that a linear map makes.
MAPS = (
    *("attn.q", "attn.k", "attn.v", "attn.qkv", "attn.out"),
    *("mlp.router", "mlp.gate", "mlp.up", "mlp.fc", "mlp.out"),
    *("logits", "logits_uncapped", "logits_unscaled"),
)


class Linear:
    """``x @ weight.T + bias`` with N positions, M outputs and L inputs.

    Args:
        site: Where.

    Attributes:
        x: [N, L], heads side by side.
        weight: [M, L], as a view of what the site has.
        bias: [M], None if there is none.
        expected: [N, M] that the op gives.
        found: [N, M] that the candidate has.
    """

    def __init__(self, site: Site) -> None:
        if site.found is None:
            raise TypeError(f"{site.tap}: the candidate has nothing there")
        self.site = site
        self.affine = site.op in _AFFINE
        x = site.value(0)
        if x.ndim == 4:
            x = np.moveaxis(x, 1, 2)  # [B, T, H, D]
        self.x: Array = x.reshape(x.shape[0] * x.shape[1], -1)
        self.weight: Array = self._outputs_first(site.value(1))
        biased = len(site.call.inputs) > 2 and site.call.inputs[2] is not None
        self.bias: Array | None = site.value(2) if biased else None
        self.expected = self.rows(site.call.output.value)
        self.found = self.rows(site.found)

    @staticmethod
    def at(site: Site) -> "Linear | None":
        """The linear map at a site; None if there is none, or nothing to compare it with."""
        found = site.found
        if site.op not in (*_LINEAR, *_AFFINE) or found is None:
            return None
        if found.shape != site.call.output.value.shape:
            return None
        if Linear not in site.known:  # what a screen looks at is found once for all mistakes
            site.known[Linear] = Linear(site)
        linear: Linear = site.known[Linear]
        return linear

    @property
    def name(self) -> str:
        """Name of the weight in the checkpoint, empty if it is no parameter."""
        return named(self.site, 1)

    @cached_property
    def error(self) -> Array:
        """[N, M] of found less expected."""
        error: Array = self.found - self.expected
        return error

    @cached_property
    def positions(self) -> Array:
        """Those that a screen looks at: the one of the largest error and some others."""
        some = slice(None, None, 1 + self.expected.shape[1] // 512)
        error = np.abs(self.found[:, some] - self.expected[:, some])
        worst = int(np.argmax(error.max(axis=1)))
        spread = np.linspace(0, len(self.x) - 1, min(_POSITIONS, len(self.x))).astype(int)
        return np.unique([worst, *spread])

    @cached_property
    def channels(self) -> Array:
        """Output channels that a screen looks at: the worst of one position and some others."""
        at = self.positions[-1]
        error = np.abs(self.found[at] - self.expected[at])
        most = min(_CHANNELS // 2, error.size)
        worst = np.argpartition(error, -most)[-most:]
        return np.unique(np.concatenate([worst, self.spread]))

    @cached_property
    def spread(self) -> Array:
        """Output channels at even distances."""
        count = self.expected.shape[1]
        return np.unique(np.linspace(0, count - 1, min(_CHANNELS // 2, count)).astype(int))

    @cached_property
    def sparse(self) -> bool:
        """Whether most output channels are right."""
        rows, channels = self.weight[self.spread], self.spread
        bias = None if self.bias is None else self.bias[channels]
        wrong = ~self._close(self.x, rows, bias, self.found[:, channels])
        return bool(np.mean(wrong.any(axis=0)) < _SPARSE)

    def stored(self, name: str, rows: Array | None = None) -> Array:
        """Some outputs of a stored weight, [M, L]; all of them if none are named."""
        array = self.site.facts.parameters[name]
        if rows is None:
            return self._outputs_first(lift(self.site, array))
        return self._outputs_first(lift(self.site, array[:, rows] if self.affine else array[rows]))

    def held(self, weight: Array) -> Array:
        """A weight as a candidate of that dtype holds it."""
        dtype = self.site.dtype
        return weight if dtype == "float32" else narrow(weight, dtype)

    def plausible(self, rows: Array, *, bias: Array | None = None, x: Array | None = None) -> bool:
        """Whether other weights give what the candidate has at the sampled channels.

        Args:
            rows: Weights [m, L] of :attr:`channels`.
            bias: Bias [m] of those; the op's own if None.
            x: Inputs [n, L] of :attr:`positions`; the op's own if None.
        """
        given = self.x[self.positions] if x is None else x
        own = self.bias[self.channels] if self.bias is not None and bias is None else bias
        found = self.found[np.ix_(self.positions, self.channels)]
        return bool(self._close(given, rows, own, found, slack=_SLACK).all())

    def explained_by(self, x: Array) -> bool:
        """Whether another input [B, T, L] gives what the candidate has at the sampled channels."""
        given = x.reshape(-1, x.shape[-1])[self.positions]
        return self.plausible(self.weight[self.channels], x=given)

    def _close(
        self, x: Array, rows: Array, bias: Array | None, found: Array, *, slack: float = 1.0
    ) -> Array:
        """Where a map of inputs [n, L] to outputs [n, m] gives these to rounding."""
        shift = 0.0 if bias is None else bias
        made = x @ rows.T + shift
        rounding = self.site.call.precision
        terms = 4 * rows.shape[1] * rounding.float32_ratio**2
        bound = np.abs(made) + np.sqrt(terms * (x**2 @ (rows**2).T / 6 + made**2 / 3))
        bound += np.abs(shift)
        allowed = slack * UNIT_LIMIT * rounding.unit_roundoff * bound + rounding.underflow
        close: Array = np.abs(found - made) <= allowed
        return close

    def instead(
        self,
        *,
        weight: Array | None = None,
        bias: Array | None = None,
        detail: str = "",
    ) -> Instead:
        """The map with another weight [M, L] or another bias [M]."""
        inputs: dict[int, Array | Operand | None] = {}
        if weight is not None:
            inputs[1] = weight.T if self.affine else weight
        if bias is not None and len(self.site.call.inputs) > 2:
            inputs[2] = bias
        changed = self.site.instead(inputs=inputs, detail=detail)
        if bias is not None and len(self.site.call.inputs) == 2:
            operands = (*changed.inputs, Operand(bias))
            changed = Instead(changed.op, operands, changed.constants, detail)
        return changed

    def screened(self, make: Callable[[Array | slice], Array], detail: str) -> list[Instead]:
        """The map with another weight, if the screen lets it pass.

        Args:
            make: From output channels to their weights [m, L].
            detail: See :class:`~harness.faults.fault.Instead`.
        """
        if not self.plausible(self.held(make(self.channels))):
            return []
        return [self.instead(weight=self.held(make(slice(None))), detail=detail)]

    def _outputs_first(self, weight: Array) -> Array:
        return weight.T if self.affine else weight

    def rows(self, y: Array) -> Array:
        """[N, M] of an output, whose heads lie side by side."""
        if y.ndim == 4:
            y = np.moveaxis(y, 1, 2)
        return y.reshape(y.shape[0] * y.shape[1], -1)
