"""How an engine stores a tap, and the way from there to the table of taps. Pure functions."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .problems import Reader

Array = NDArray[Any]

#: What a mask's numbers say.
MASK_VALUES = ("visible", "hidden", "additive")

#: Below this, an additive mask hides a key: half of what the narrowest dtype can hold.
_HIDDEN = -3.0e4


@dataclass(frozen=True, slots=True)
class Layout:
    """A note on how one kind of tap lies in the file.

    Attributes:
        axes: Axis letters in stored order, two of them in parentheses where they are merged
            (``BT(HD)``); B may be left out where the batch is 1; empty for the table's order.
        heads: Number of heads in a merged axis.
        pairing: ``half``: a rotated pair is elements i and i + D/2 of a head. ``interleaved``:
            elements 2i and 2i + 1, as in models whose q and k weights were permuted for it.
        repeats: How many times each kv head stands one after another, 1 for once.
        positions: ``last`` where the tap covers only the last positions of a chunk.
        values: What a mask's numbers say: true where a key is ``visible``, or ``hidden``, or
            ``additive``, 0 for a visible key and very negative for a hidden one.
    """

    axes: str = ""
    heads: int = 0
    pairing: str = "half"
    repeats: int = 1
    positions: str = "all"
    values: str = "visible"


STANDARD = Layout()


def read_layout(read: Reader, axes: str) -> Layout:
    """Read a layout note; what does not fit the tap's axes is noted as a problem.

    Args:
        read: The note.
        axes: Axis letters of the tap in the table.
    """
    read.only(tuple(Layout.__dataclass_fields__))
    stored = read.text("axes", required=False)
    heads = _count(read, "heads", 0)
    if stored and (_letters(stored) not in (sorted(axes), sorted(axes.replace("B", "")))):
        read.add("axes", f"the letters {axes}, with or without B", repr(stored), _AXES_ADVICE)
        stored = ""
    if "(" in stored and not heads:
        advice = 'write "heads": 9 beside it'
        read.add("heads", "the number of heads in the merged axis", "none", advice)
        stored = ""
    return Layout(
        axes=stored,
        heads=heads,
        pairing=_choice(read, "pairing", ("half", "interleaved"), when="D" in axes),
        repeats=_count(read, "repeats", 1),
        positions=_choice(read, "positions", ("all", "last"), when="T" in axes),
        values=_choice(read, "values", MASK_VALUES, when=axes == "BTS"),
    )


_AXES_ADVICE = 'write the letters in the order in which they are stored, for example "BT(HD)"'
_STORED = re.compile(r"\(([A-Z])([A-Z])\)|([A-Z])")


def _letters(stored: str) -> list[str]:
    """The letters of a stored order, sorted; empty for one that cannot be read."""
    if _STORED.sub("", stored) or any(a and a + b not in ("HD", "KD") for a, b in _merged(stored)):
        return []
    return sorted(re.findall(r"[A-Z]", stored))


def _merged(stored: str) -> list[tuple[str, str]]:
    return [(a, b) for a, b, _ in _STORED.findall(stored)]


def _count(read: Reader, key: str, default: int) -> int:
    value = read.raw.get(key, default)
    if type(value) is int and default <= value < 2**31:
        return value
    read.add(key, f"a number of {max(default, 1)} or more", repr(value)[:60], f'write "{key}": 2')
    return default


def _choice(read: Reader, key: str, known: tuple[str, ...], *, when: bool) -> str:
    value = read.raw.get(key, known[0])
    if value in known and (when or value == known[0]):
        return str(value)
    if value in known:
        read.add(key, "a tap to which it applies", repr(value), "remove it from this tap")
    else:
        read.add(key, " or ".join(known), repr(value)[:60], "write one of these")
    return known[0]


def stored_sizes(layout: Layout, axes: str, shape: tuple[int, ...]) -> dict[str, int] | None:
    """Size of each axis of a stored tap, None if its shape does not fit its axes.

    Kv heads are counted once, however often they are repeated.
    """
    stored = layout.axes or axes
    parts = _STORED.findall(stored)
    if layout.axes == "" and len(shape) == len(axes) - 1:
        parts = [part for part in parts if part[2] != "B"]
    if len(parts) != len(shape):
        return None
    sizes: dict[str, int] = {}
    for (first, second, single), size in zip(parts, shape, strict=True):
        if single:
            sizes[single] = size
        elif size % layout.heads:
            return None
        else:
            sizes[first], sizes[second] = layout.heads, size // layout.heads
    if "K" in sizes:
        if sizes["K"] % layout.repeats:
            return None
        sizes["K"] //= layout.repeats
    return sizes


def to_standard(array: Array, layout: Layout, axes: str) -> Array:
    """A stored tap in the order of the table of taps; a view where nothing has to move.

    Kv heads that were said to be repeated and are not equal are handed over as they are.

    Args:
        array: As stored; :func:`stored_sizes` must have accepted its shape.
        layout: The note on it.
        axes: Axis letters of the table.
    """
    stored = layout.axes or axes
    letters = re.sub(r"[()]", "", stored)
    if "(" in stored:
        at = stored.index("(")
        array = array.reshape(*array.shape[:at], layout.heads, -1, *array.shape[at + 1 :])
    if array.ndim == len(axes) - 1:
        array = array[None]
        letters = "B" + letters.replace("B", "")
    array = array.transpose([letters.index(axis) for axis in axes])
    if layout.repeats > 1:
        array = _once(array, layout.repeats)
    if layout.pairing == "interleaved":
        array = np.concatenate([array[..., 0::2], array[..., 1::2]], axis=-1)
    if axes == "BTS":
        return _visible(array, layout.values)
    return array.astype(bool) if array.dtype.kind in "bu" else array


def _once(array: Array, repeats: int) -> Array:
    """One of each run of ``repeats`` equal heads; axis 1."""
    first = array[:, ::repeats]
    same = np.array_equal(array, np.repeat(first, repeats, axis=1), equal_nan=True)
    return first if same else array


def _visible(mask: Array, values: str) -> Array:
    if values == "additive":
        return np.asarray(mask.astype(np.float32) > _HIDDEN)
    return np.asarray(mask.astype(bool) == (values == "visible"))
