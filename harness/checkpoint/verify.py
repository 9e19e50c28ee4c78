"""Checks that a checkpoint holds exactly the tensors that a model reads, all of them finite."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import CheckpointError
from .checkpoint import Checkpoint
from .names import collapse_names

_CHUNK = 1 << 22  # elements looked at in one go
_SHOWN = 8
_LISTED = 20  # more than the tensors of one layer, so that an absent layer is told in full

Shape = tuple[int, ...]


def check_tensors(
    checkpoint: Checkpoint, expected: Mapping[str, Shape], *, derived: Collection[str] = ()
) -> None:
    r"""Require exactly the tensors that the model reads, each in its shape.

    Args:
        checkpoint: What was loaded.
        expected: Tensor name to shape, for every tensor that the model reads.
        derived: Regular expressions, matched against the whole name, of tensors that files may
            carry but that hold no information of their own, such as
            `model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq`.

    Raises:
        CheckpointError: One error with all missing, unexpected and misshapen tensors, or with
            all that are stored as whole numbers.
    """
    found = {name: array.shape for name, array in checkpoint.tensors.items()}
    compare_shapes(str(checkpoint.path), found, expected, derived=derived)
    _refuse_integers(checkpoint, expected)


def compare_shapes(
    where: str,
    found: Mapping[str, Shape],
    expected: Mapping[str, Shape],
    *,
    derived: Collection[str] = (),
) -> None:
    """Like `check_tensors`, for names and shapes wherever they come from.

    Raises:
        CheckpointError: If nothing is expected or if the two sides differ.
    """
    if not expected:
        raise CheckpointError(
            where,
            expected="at least one tensor to check",
            found="none",
            advice="a check of nothing proves nothing; pass the tensors that the model reads",
        )
    patterns = [re.compile(pattern) for pattern in derived]
    missing = [name for name in expected if name not in found]
    unexpected = [
        name
        for name in found
        if name not in expected and not any(p.fullmatch(name) for p in patterns)
    ]
    misshapen = [
        f"{name} expected {list(shape)}, found {list(found[name])}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    if missing or unexpected or misshapen:
        raise CheckpointError(
            where,
            expected=f"exactly the {len(expected)} tensors that the model reads",
            found=_describe(missing, unexpected, misshapen),
            advice="config and weights do not belong together, or the model reads too little: "
            "a tensor that nobody reads (a bias, say) changes the result silently",
        )


def _refuse_integers(checkpoint: Checkpoint, names: Iterable[str]) -> None:
    kinds = {name: checkpoint.tensors[name].dtype for name in names}
    whole = [name for name, dtype in kinds.items() if dtype.kind in "iub"]
    if whole:
        raise CheckpointError(
            str(checkpoint.path),
            expected="floating-point weights",
            found=f"{', '.join(sorted({kinds[name].name for name in whole}))} in {len(whole)} "
            f"tensors: {collapse_names(whole)}",
            advice="a quantised checkpoint has to be converted to float32, bfloat16 or float16",
        )


def _describe(missing: list[str], unexpected: list[str], misshapen: list[str]) -> str:
    lines = ["a different set"]
    if missing:
        lines.append(f"missing ({len(missing)}): {collapse_names(missing, limit=_LISTED)}")
    if unexpected:
        names = collapse_names(unexpected, limit=_LISTED)
        lines.append(f"unexpected, read by nobody ({len(unexpected)}): {names}")
    if misshapen:
        more = len(misshapen) - _SHOWN
        rest = f"; and {more} more" if more > 0 else ""
        lines.append(f"misshapen ({len(misshapen)}): {'; '.join(misshapen[:_SHOWN])}{rest}")
    return "\n  ".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class NonFinite:
    """How many values of one tensor are NaN or infinite.

    Attributes:
        name: The tensor.
        nan: Number of NaN values.
        inf: Number of infinite values, of either sign.
        first: Index of the first such value.
    """

    name: str
    nan: int
    inf: int
    first: Shape

    def __str__(self) -> str:
        return f"{self.name} ({self.nan} NaN, {self.inf} infinite, first at {list(self.first)})"


def find_nonfinite(checkpoint: Checkpoint, names: Iterable[str]) -> tuple[NonFinite, ...]:
    """Look for NaN and infinity, chunk by chunk, so that no tensor has to fit in memory.

    Args:
        checkpoint: What was loaded.
        names: The tensors to look at; integers and booleans are finite by nature.

    Returns:
        One record per tensor that has such values, in the order of `names`.

    Raises:
        CheckpointError: If there is no name, or a name is not in the checkpoint.
    """
    wanted = list(names)
    absent = [name for name in wanted if name not in checkpoint.tensors]
    if absent or not wanted:
        raise CheckpointError(
            str(checkpoint.path),
            expected="names of tensors in the checkpoint",
            found=f"absent ones: {collapse_names(absent)}" if absent else "no name at all",
            advice="take the names from checkpoint.tensors",
        )
    records = (_scan(checkpoint, name) for name in wanted)
    return tuple(record for record in records if record is not None)


def check_finite(checkpoint: Checkpoint, names: Iterable[str]) -> None:
    """Require that no named tensor holds NaN or infinity.

    Raises:
        CheckpointError: One error that lists all that do, with number and first index; also if
            there is no name, or a name is not in the checkpoint.
    """
    bad = find_nonfinite(checkpoint, names)
    if bad:
        more = f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        raise CheckpointError(
            str(checkpoint.path),
            expected="finite weights",
            found=f"{len(bad)} tensors with NaN or infinity: "
            f"{'; '.join(str(record) for record in bad[:_SHOWN])}{more}",
            advice="the weights are damaged or overflowed when they were converted; fetch them "
            "again or convert them from a wider dtype",
        )


def _scan(checkpoint: Checkpoint, name: str) -> NonFinite | None:
    array = checkpoint.tensors[name]
    if array.dtype.kind in "iub":
        return None
    flat = array.reshape(-1)
    nan = inf = 0
    first = -1
    for start in range(0, flat.size, _CHUNK):
        chunk = flat[start : start + _CHUNK]
        bad = ~np.isfinite(chunk)
        if bad.any():
            if first < 0:
                first = start + int(bad.argmax())
            nans = int(np.isnan(chunk).sum())
            nan, inf = nan + nans, inf + int(bad.sum()) - nans
    if first < 0:
        return None
    index = tuple(int(i) for i in np.unravel_index(first, array.shape))
    return NonFinite(name=name, nan=nan, inf=inf, first=index)
