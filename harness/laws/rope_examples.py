"""Arguments of laws of rotary position embedding: prompts, positions, types of scaling."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from .rope_formulas import rotated
from .sizes import Sizes

#: Rope parameters by layer type, under "" where all layers share them; none for the model's own.
Ropes = Mapping[str, Mapping[str, Any]]

#: The last first position that is tried, and the largest offset at which scores are compared.
FAR, OFFSET = 100_000, 4_096

#: No shorter than this is the length that a stretched model was trained on.
_SHORT = 8

#: As long as models are: then some pairs turn often within the trained length, and some do not.
_LONG = 4_096

_Arguments = st.SearchStrategy[dict[str, Any]]


def partial(sizes: Sizes) -> bool:
    """Whether a part of each head is rotated."""
    return any(rotated(sizes, layer) < sizes.head_dim for layer in range(sizes.layers))


def prompts(sizes: Sizes) -> _Arguments:
    """Two tokens or more: at position 0 nothing turns."""
    return st.fixed_dictionaries({"rows": _rows(sizes, 2, 14)})


def far(sizes: Sizes) -> _Arguments:
    """A few tokens at a far position."""
    return st.fixed_dictionaries({"rows": _rows(sizes, 1, 5), "first": st.integers(1, FAR)})


def shifts(sizes: Sizes) -> _Arguments:
    """Tokens, and by how much their positions are shifted."""
    return st.fixed_dictionaries({"rows": _rows(sizes, 2, 10), "offset": st.integers(1, OFFSET)})


def _rows(sizes: Sizes, low: int, high: int) -> st.SearchStrategy[list[list[int]]]:
    """One row; longer than the model was made for where it is to show."""
    ids = st.integers(0, sizes.vocab - 1)
    return st.lists(ids, min_size=low, max_size=high).map(lambda row: [row])


def scalings(sizes: Sizes) -> _Arguments:
    """The model's own rope parameters, or any type of scaling; positions on both sides of it."""
    return _scaled(sizes, st.sampled_from(list(_TYPES)), own=True)


def longropes(sizes: Sizes) -> _Arguments:
    """LongRoPE, with lists for every layer type."""
    return _scaled(sizes, st.just("longrope"), own=False)


def _scaled(sizes: Sizes, types: st.SearchStrategy[str], *, own: bool) -> _Arguments:
    kinds = sorted(
        {sizes.kind(layer) for layer in range(sizes.layers)} if sizes.ropes_apart else {""}
    )
    size, share = rotated(sizes, 0), sizes.rope(0).get("partial_rotary_factor")

    def of(longest: int) -> _Arguments:
        each = types.flatmap(lambda kind: _parameters(kind, longest, size, share))
        # On both sides of any length that a type of scaling may turn on.
        beyond = longest + 1 if longest < _LONG else _SHORT
        length = st.one_of(st.integers(beyond, beyond + 8), st.integers(2, _SHORT))
        return st.fixed_dictionaries(
            {
                "rows": length.flatmap(lambda count: _rows(sizes, count, count)),
                "ropes": st.fixed_dictionaries(dict.fromkeys(kinds, each)),
                "longest": st.just(longest),
            }
        )

    altered = st.sampled_from([_LONG, 32, 16, 64]).flatmap(of)
    if not own:
        return altered
    as_it_is = st.fixed_dictionaries({"rows": _rows(sizes, 2, 20), "ropes": st.just({})})
    return st.integers(0, 3).flatmap(lambda choice: altered if choice else as_it_is)


def _parameters(
    kind: str, longest: int, size: int, share: float | None
) -> st.SearchStrategy[dict[str, Any]]:
    """Parameters of a type of scaling that a model of some length may have."""
    given: dict[str, Any] = {
        "rope_type": st.just(kind),
        "rope_theta": st.sampled_from([1e4, 500.0, 1e6]),
    }
    if share is not None:
        given["partial_rotary_factor"] = st.just(share)
    factors = [factor for factor in (2.0, 4.0, 8.0) if longest / factor >= _SHORT]
    if kind == "longrope":
        lists = st.lists(st.floats(1.0, 8.0, width=16), min_size=size // 2, max_size=size // 2)
        given |= {"short_factor": lists, "long_factor": lists}
        trained = st.sampled_from([int(longest / factor) for factor in factors])
        given["original_max_position_embeddings"] = trained
        return _with(given, {"attention_factor": st.sampled_from([1.0, 1.25])})
    optional = _TYPES[kind]
    return st.sampled_from(factors).flatmap(
        lambda factor: _with(given | _scaling(kind, factor, longest), optional)
    )


def _scaling(kind: str, factor: float, longest: int) -> dict[str, Any]:
    if kind == "default":
        return {}
    made: dict[str, Any] = {"factor": st.just(factor)}
    if kind in ("llama3", "yarn"):
        made["original_max_position_embeddings"] = st.just(int(longest / factor))
    if kind == "llama3":
        made |= {"low_freq_factor": st.just(1.0), "high_freq_factor": st.sampled_from([4.0, 2.0])}
    return made


def _with(
    given: dict[str, Any], optional: Mapping[str, st.SearchStrategy[Any]]
) -> st.SearchStrategy[dict[str, Any]]:
    if "mscale" not in optional:
        return st.fixed_dictionaries(given, optional=dict(optional))
    others = {name: what for name, what in optional.items() if not name.startswith("mscale")}
    # Two magnitudes stand together, in place of the factor.
    both = {name: what for name, what in optional.items() if name.startswith("mscale")}
    apart = {name: what for name, what in others.items() if name != "attention_factor"}
    return st.one_of(
        st.fixed_dictionaries(given, optional=others),
        st.fixed_dictionaries(given | both, optional=apart),
    )


#: Types of scaling, each with the parameters that may be left out.
_TYPES: Mapping[str, Mapping[str, st.SearchStrategy[Any]]] = {
    "default": {},
    "linear": {},
    "dynamic": {},
    "llama3": {},
    "yarn": {
        "beta_fast": st.sampled_from([16.0, 4.0]),
        "beta_slow": st.sampled_from([0.5, 2.0]),
        "truncate": st.booleans(),
        "attention_factor": st.sampled_from([1.0, 0.75]),
        "mscale": st.sampled_from([0.7, 1.0]),
        "mscale_all_dim": st.sampled_from([0.5, 1.0]),
    },
}
