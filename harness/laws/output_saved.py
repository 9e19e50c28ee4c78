"""Laws of saving: a model that is written and loaded again is the same."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from .candidate import Candidate, Rows
from .examples import batch
from .law import Law, LawBroken
from .sizes import Sizes

#: Keys that say who wrote a config and how, and that no number follows.
_RECORDS = frozenset({"architectures", "dtype", "torch_dtype", "transformers_version"})


def check_resaved(candidate: Candidate, rows: Rows) -> None:
    """Written and loaded again, it has the same logits and the same config."""
    resaved = candidate.resaved()
    try:
        expected, found = candidate.logits(rows), resaved.logits(rows)
        candidate.same("logits of what was saved", expected, found, exact=True)
        _require_config(_followed(candidate), _followed(resaved))
    finally:
        resaved.close()


def _require_config(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old != new:
            raise LawBroken(
                f"{key} of the config that was saved", expected=repr(old), found=repr(new)
            )


def _followed(candidate: Candidate) -> dict[str, Any]:
    """A config with what absent keys mean, without records and keys without a value."""
    sizes = candidate.sizes
    given = {
        key: value
        for key, value in sizes.config.items()
        if key not in _RECORDS and not key.startswith("_") and value is not None
    }
    # Older configs spell a rotation in other keys; layers have it either way.
    for key in ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq"):
        given.pop(key, None)
    if sizes.rotates:
        given["rope"] = [dict(sizes.rope(layer)) for layer in range(sizes.layers)]
    return given


def _fed(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    return batch(sizes, 2, 12).map(lambda rows: {"rows": rows})


LAWS = (
    Law(
        id="output-resaved",
        says="A model that is saved and loaded again has the same logits, and a config in which no "
        "key that a model follows has vanished or another value. A key that is absent has the "
        "value that its family takes then.",
        source="a checkpoint is all that a model is",
        check=check_resaved,
        arguments=_fed,
        needs=("resave",),
        bound="bit for bit",
        mutants=("saved-rope-lost", "saved-longest-lost"),
    ),
)
