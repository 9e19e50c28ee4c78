"""The seam of the reference: every intermediate is made by a ``step``.

The model calls ``step(tap, op, *inputs, **constants)`` and goes on with what it gets back. It
never looks inside: an input is a :class:`Weight`, None, or whatever an earlier step returned.
Another step turns the same model into a recorder, a float64 oracle or a replay of somebody
else's run; :class:`Compute` is the plain one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

#: An array of any library of the array API standard.
Array = Any

#: What a step returns and takes: opaque to the model.
Handle = Any

Op = Callable[..., Array]


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter as stored, before it is lifted to the dtype of the computation.

    Attributes:
        name: Its name in the checkpoint.
        array: The stored array, often memory-mapped.
    """

    name: str
    array: Array


class Step(Protocol):
    """How one intermediate is made."""

    def __call__(self, tap: str | None, op: Op, *inputs: Handle, **constants: Any) -> Handle:
        """Make one intermediate.

        Args:
            tap: Name of the intermediate, None for one that nobody compares.
            op: A function of :mod:`references.ops`.
            *inputs: Weights, None, or results of earlier steps.
            **constants: What the config fixes: epsilon, scale, frequencies, positions.

        Returns:
            What the model goes on with.
        """
        ...


class Compute:
    """The plain step: runs each op in one array library and one dtype.

    Args:
        lift: Turns a stored parameter into an array of the computation's library and dtype.
        dtype: The dtype that every floating result must have. NumPy promotes float32 to float64
            silently when a float64 scalar takes part, so each step is checked.
    """

    def __init__(self, lift: Callable[[Weight], Array], dtype: Any) -> None:
        self._lift = lift
        self._dtype = dtype

    def __call__(self, tap: str | None, op: Op, *inputs: Handle, **constants: Any) -> Array:
        """Run the op on lifted inputs."""
        arrays = [self._lift(x) if isinstance(x, Weight) else x for x in inputs]
        result = op(*arrays, **constants)
        if result.dtype != self._dtype and "bool" not in str(result.dtype):
            raise TypeError(f"{tap or op.__name__}: computed {result.dtype}, not {self._dtype}")
        return result
