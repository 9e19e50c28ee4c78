"""Laws of grouped-query attention: which query head reads which kv head."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from .candidate import Candidate, Change, Rows
from .examples import batch
from .experts import same_logits
from .heads import KEY, OUTPUT, QUERY, VALUE, scale, take
from .law import Law, LawBroken
from .sizes import Sizes

#: A number for each head, in turn: powers of two, by which nothing is rounded.
_POWERS = (1.0, -2.0, 0.5, -1.0, 2.0, -0.5)


def check_repeated(candidate: Candidate, rows: Rows) -> None:
    """Each query head with a copy of its kv head."""
    repeated = candidate.altered(_repeated(candidate.sizes))
    same_logits(candidate, "kv heads repeated for each query head", rows, candidate, repeated)


def check_map(candidate: Candidate, rows: Rows, head: int) -> None:
    """The values of one kv head negated."""
    sizes = candidate.sizes
    signs = [-1.0 if kv == head else 1.0 for kv in range(sizes.kv_heads)]
    negated = candidate.altered(lambda _, tensors: scale(tensors, sizes, VALUE, signs, layer=0))
    name = "layers.0.attn.context"
    before = candidate.taps(rows, "attn.context")[name]
    after = negated.taps(rows, "attn.context")[name]
    of_heads = np.repeat(signs, sizes.heads // sizes.kv_heads)[:, None, None]
    if not before[:, of_heads[:, 0, 0] < 0].any():
        raise LawBroken(f"{name} of the group of kv head {head}", expected="values", found="zeros")
    what = f"{name} with values of kv head {head} negated"
    candidate.same(what, of_heads * np.asarray(before, np.float64), after, exact=True)


def check_reads(candidate: Candidate, rows: Rows, head: int) -> None:
    """The values of one kv head, or what reads its group, taken out."""
    sizes = candidate.sizes
    kept = [float(kv != head) for kv in range(sizes.kv_heads)]
    of_heads = list(np.repeat(kept, sizes.heads // sizes.kv_heads))
    valueless = candidate.altered(lambda _, tensors: scale(tensors, sizes, VALUE, kept, layer=0))
    unread = candidate.altered(lambda _, tensors: scale(tensors, sizes, OUTPUT, of_heads, layer=0))
    whole, without = candidate.logits(rows), valueless.logits(rows)
    if np.array_equal(whole, without):
        raise LawBroken(
            f"logits without values of kv head {head} in layer 0",
            expected="others than with them",
            found="the same, bit for bit",
        )
    what = f"logits without kv head {head} in layer 0: without its readers, and without its values"
    candidate.same(what, unread.logits(rows), without, exact=True)


def check_mha(candidate: Candidate, rows: Rows) -> None:
    """As many kv heads as query heads, and each pair in units of its own."""
    sizes = candidate.sizes
    by = [_POWERS[head % len(_POWERS)] for head in range(sizes.heads)]
    repeated = _repeated(sizes)

    def change(config: dict[str, Any], tensors: dict[str, Any]) -> None:
        repeated(config, tensors)
        whole = Sizes({**sizes.config, "num_key_value_heads": sizes.heads})
        scale(tensors, whole, VALUE, by)
        scale(tensors, whole, OUTPUT, [1 / factor for factor in by])

    what = "heads of units of their own, with a kv head for each"
    same_logits(candidate, what, rows, candidate, candidate.altered(change))


def check_mqa(candidate: Candidate, rows: Rows) -> None:
    """One kv head, and several that are the same."""
    sizes = candidate.sizes
    count = sizes.kv_heads if sizes.kv_heads > 1 else sizes.heads
    many, one = (candidate.altered(_shared(sizes, number)) for number in (count, 1))
    same_logits(candidate, f"one kv head in place of {count} that are alike", rows, many, one)


def check_permuted(
    candidate: Candidate, rows: Rows, order: list[int], within: list[list[int]]
) -> None:
    """Groups in another order, and the query heads of each too."""
    sizes = candidate.sizes
    size = sizes.heads // sizes.kv_heads
    queries = [kv * size + own for kv, inside in zip(order, within, strict=True) for own in inside]

    def change(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        for part in (QUERY, OUTPUT):
            take(tensors, sizes, part, queries)
        for part in (KEY, VALUE):
            take(tensors, sizes, part, order)

    permuted = candidate.altered(change)
    if candidate.gives("attn.context"):
        name = "layers.0.attn.context"
        before, after = (side.taps(rows, "attn.context")[name] for side in (candidate, permuted))
        candidate.same(f"{name} with heads in the order {queries}", before[:, queries], after)
    same_logits(candidate, f"heads in the order {queries}", rows, candidate, permuted)


def _repeated(sizes: Sizes) -> Change:
    """A kv head for each query head, where the config can say so."""
    order = [head // (sizes.heads // sizes.kv_heads) for head in range(sizes.heads)]

    def change(config: dict[str, Any], tensors: dict[str, Any]) -> None:
        if sizes.kv_heads == sizes.heads:
            return
        for part in (KEY, VALUE):
            take(tensors, sizes, part, order)
        config["num_key_value_heads"] = sizes.heads

    return change


def _shared(sizes: Sizes, count: int) -> Change:
    """So many kv heads, all of them as the last one was."""

    def change(config: dict[str, Any], tensors: dict[str, Any]) -> None:
        for part in (KEY, VALUE):
            take(tensors, sizes, part, [sizes.kv_heads - 1] * count)
        config["num_key_value_heads"] = count

    return change


def _prompts(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"rows": batch(sizes, 2, 10)})


def _with_head(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    head = st.integers(0, sizes.kv_heads - 1)
    return st.fixed_dictionaries({"rows": batch(sizes, 2, 10), "head": head})


def _with_order(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    kv, size = sizes.kv_heads, sizes.heads // sizes.kv_heads
    inside = st.permutations(range(size))
    orders = st.fixed_dictionaries(
        {
            "rows": batch(sizes, 2, 10),
            "order": st.permutations(range(kv)),
            "within": st.lists(inside, min_size=kv, max_size=kv),
        }
    )
    same = list(range(kv)), [list(range(size))] * kv
    return orders.filter(lambda given: (given["order"], given["within"]) != same)


def _grouped(sizes: Sizes) -> str:
    return "" if sizes.kv_heads < sizes.heads else "each query head has a kv head of its own"


def _several(sizes: Sizes) -> str:
    return "" if sizes.heads > 1 else "there is one head"


def _groupable(sizes: Sizes) -> str:
    if sizes.family == "gpt2":
        return "its config has no number of kv heads"
    return _several(sizes)


_GQA = "Ainslie et al. 2023, GQA: Training Generalized Multi-Query Transformer Models from"
_GQA += " Multi-Head Checkpoints, section 2.2"
_ROUNDED = (
    "1e-4, times the largest value where that is above 1: a matrix of another shape, or with its "
    "rows in another order, may add up in another order; with experts up to the first choice that "
    "turns on it"
)

LAWS = (
    Law(
        id="gqa-repeated",
        says="A model whose kv heads are repeated, so that each query head has one of its own, has "
        "the logits of the grouped model.",
        source=_GQA,
        check=check_repeated,
        arguments=_prompts,
        applies=_grouped,
        bound=_ROUNDED,
        mutants=("gqa-tiled", "gqa-single-not-shared"),
    ),
    Law(
        id="gqa-map",
        says="Query head h reads kv head h // (H/K), and no other: with the values of one kv head "
        "negated, the context of its group is negated, and that of all other heads is as before.",
        source=_GQA + "; that groups are of heads that lie next to each other is how checkpoints "
        "of all these families are laid out",
        check=check_map,
        arguments=_with_head,
        taps=("attn.context",),
        mutants=("gqa-tiled", "gqa-one-further", "gqa-context-shifted"),
        bound="bit for bit: shapes are the same, and a sign changes no rounding",
    ),
    Law(
        id="gqa-reads",
        says="Taking the values of a kv head out of a layer changes the logits, and is the same as "
        "taking out what of the output projection reads the heads of its group.",
        source=_GQA + ": the map of gqa-map, by logits alone",
        check=check_reads,
        arguments=_with_head,
        mutants=("gqa-tiled", "gqa-one-further"),
        bound="bit for bit: shapes are the same, and zeros are added either way",
    ),
    Law(
        id="gqa-mha",
        says="With as many kv heads as query heads, head h reads kv head h: values of each head in "
        "units of its own, which the output projection takes back, change nothing.",
        source=_GQA + ", figure 2: K = H is multi-head attention",
        check=check_mha,
        arguments=_prompts,
        applies=_several,
        bound=_ROUNDED,
        mutants=("gqa-first-alone", "gqa-one-further"),
    ),
    Law(
        id="gqa-mqa",
        says="With one kv head all query heads read it: it stands for any number of kv heads that "
        "are alike.",
        source="Shazeer 2019, Fast Transformer Decoding: One Write-Head is All You Need, section "
        "3; " + _GQA + ", figure 2: K = 1",
        check=check_mqa,
        arguments=_prompts,
        applies=_groupable,
        bound=_ROUNDED,
        mutants=("gqa-single-not-shared",),
    ),
    Law(
        id="gqa-permuted",
        says="Heads have no order: with kv heads permuted together with their query heads, sinks "
        "and the columns of the output projection, contexts are permuted and logits stay.",
        source="Vaswani et al. 2017, Attention Is All You Need, section 3.2.2: heads are "
        "concatenated and projected, which is a sum over heads",
        check=check_permuted,
        arguments=_with_order,
        applies=_several,
        bound=_ROUNDED,
        mutants=("gqa-context-shifted", "gqa-last-head-lost", "gqa-tiled"),
    ),
)
