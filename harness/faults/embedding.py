"""Mistakes in the embedding of tokens and of learned positions.

Source of the right formulas: :func:`references.ops.embedding`,
:func:`references.ops.scaled_embedding` and :func:`references.ops.scale`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import ops
from .fault import Fault, Instead, Site
from .stored import NARROW, comparable, grid, lift, named, narrow

Array = NDArray[Any]

_TOKENS = ("embed", "embed_scaled")

#: Channels by which a row of the table is looked for, before all of it is compared.
_LOOKED_AT = 8


def _is_table(site: Site) -> bool:
    return site.op in (ops.embedding, ops.scaled_embedding)


def _scale(site: Site) -> float:
    """What embeddings are multiplied by."""
    if site.op is ops.scaled_embedding:
        return float(site.value(2))
    return float(site.constant("factor") or 1.0)


def _with_scale(site: Site, scale: float, detail: str = "") -> Instead:
    if site.op is ops.scaled_embedding:
        return site.instead(inputs={2: np.asarray(scale)}, detail=detail)
    if site.op is ops.scale:
        return site.instead(factor=scale, detail=detail)

    def scaled(table: Array, token_ids: Array) -> Array:
        rows: Array = ops.embedding(table, token_ids) * scale
        return rows

    return site.instead(op=scaled, detail=detail)


def _scale_missing(site: Site) -> Iterator[Instead]:
    if _scale(site) != 1.0:
        yield _with_scale(site, 1.0)


def _scale_added(site: Site) -> Iterator[Instead]:
    given, root = _scale(site), float(site.call.output.value.shape[-1] ** 0.5)
    if given != 1.0:
        yield _with_scale(site, given * given, "it is applied twice")
        yield _with_scale(site, 1 / given, "it divides")
    else:
        yield _with_scale(site, root, "the root of the number of channels")


def _scale_other(site: Site) -> Iterator[Instead]:
    if not comparable(site) or site.found is None:
        return
    expected, given = site.call.output.value, _scale(site)
    power = float(np.sum(expected * expected))
    scale = given * float(np.sum(site.found * expected)) / power if power else given
    usual = (given, given * given, 1 / given if given else 0.0, 1.0)
    if scale and not any(abs(scale / other - 1) < 1e-6 for other in usual if other):
        root = float(expected.shape[-1] ** 0.5)
        if given != 1.0 or abs(scale / root - 1) > 1e-6:
            yield _with_scale(site, scale, f"by {scale:.6g}")


def _scale_rounding(site: Site) -> Iterator[Instead]:
    if site.op is not ops.scaled_embedding:
        return
    exact = float(site.call.output.value.shape[-1] ** 0.5)
    if site.dtype == "float32":
        for name in NARROW:
            rounded = float(narrow(np.asarray(exact), name))
            if rounded != exact:
                yield _with_scale(site, rounded, f"{rounded:.6g}, rounded to {name}")
    else:
        yield _with_scale(site, exact, f"{exact:.6g}, not rounded to {site.dtype}")


def _pad_row(site: Site) -> Iterator[Instead]:
    if not _is_table(site) or not comparable(site) or site.found is None:
        return
    tokens = site.value(1)
    table = site.value(0)
    silent = np.unique(tokens[(site.found == 0).all(axis=-1)])
    empty = [int(token) for token in silent if table[token].any()]
    if empty and not np.isin(tokens, empty).all():
        zeroed = table.copy()
        zeroed[empty] = 0
        words = ", ".join(map(str, empty[:5]))
        yield site.instead(inputs={0: zeroed}, detail=f"the row of token {words} is 0")


def _other_token(site: Site) -> Iterator[Instead]:
    if not _is_table(site) or not comparable(site) or site.found is None:
        return
    tokens, table = site.value(1), site.value(0)
    for shift in (1, -1):
        moved = np.clip(tokens + shift, 0, len(table) - 1)
        yield site.instead(inputs={1: moved}, detail=f"of the token with the id {shift:+d}")
    rows = _looked_up(site, tokens, table)
    if rows is not None:
        pairs = {int(a): int(b) for a, b in zip(tokens.ravel(), rows.ravel(), strict=True)}
        words = ", ".join(f"{a} has that of {b}" for a, b in pairs.items() if a != b)
        yield site.instead(inputs={1: rows}, detail=words[:80])


def _looked_up(site: Site, tokens: Array, table: Array) -> Array | None:
    """For each token the row of the table that the candidate has there; None if one has none."""
    found = site.call.output.value if site.found is None else site.found
    found = found / _scale(site) if site.op is ops.scaled_embedding else found
    start, rows = table[:, :_LOOKED_AT], tokens.copy()
    for token in np.unique(tokens):
        at = np.argwhere(tokens == token)[0]
        wanted = found[tuple(at)]
        apart = np.abs(start - wanted[:_LOOKED_AT]).max(axis=1)
        best = int(np.argmin(apart))
        if apart[best] > 1e-2 * float(np.abs(wanted).max()):
            return None
        rows[tokens == token] = best
    return None if np.array_equal(rows, tokens) else rows


def _of_head(site: Site) -> Iterator[Instead]:
    """The head's matrix as the table of embeddings."""
    head = site.facts.parameters.get("lm_head.weight")
    own = named(site, 0)
    if not _is_table(site) or head is None or not own or "wpe" in own:
        return
    if head.shape == site.value(0).shape and _gives(site, lift(site, head[site.value(1)])):
        yield site.instead(inputs={0: lift(site, head)})


def _gives(site: Site, rows: Array) -> bool:
    """Whether rows [B, T, C] of a table are nearly what the candidate has."""
    if not comparable(site) or site.found is None:
        return False
    near = 1e-6 if site.dtype == "float32" else 1e-2
    apart = np.abs(rows * _scale(site) - site.found).max()
    return bool(apart <= near * float(np.abs(site.call.output.value).max()))


def _positions(site: Site) -> Iterator[Instead]:
    positions, table = site.value(1), site.value(0)
    for shift in (1, 2, -1, -2):
        if shift < 0 or int(positions.max()) + shift < len(table):
            moved = np.maximum(positions + shift, 0)
            yield site.instead(inputs={1: moved}, detail=f"position {shift:+d}")
    restarted = np.broadcast_to(np.arange(positions.shape[1]), positions.shape)
    if not np.array_equal(restarted, positions):
        yield site.instead(inputs={1: restarted}, detail="every pass begins at 0")


def _positions_missing(site: Site) -> Iterator[Instead]:
    if site.kind == "pos_embed":
        yield site.instead(op=lambda table, positions: 0 * ops.embedding(table, positions))
        return
    yield site.instead(op=lambda tokens, places: tokens + 0 * places)
    yield site.instead(op=lambda tokens, places: tokens + 2 * places, detail="they are added twice")


def _low_precision(site: Site) -> Iterator[Instead]:
    if site.dtype != "float32":
        return
    if _is_table(site):
        rows = site.value(0)[site.value(1)]
        for name in NARROW:
            if _gives(site, narrow(rows, name)):
                table = narrow(site.value(0), name)
                yield site.instead(inputs={0: table}, detail=f"the table is rounded to {name}")
    if name := grid(site):
        yield site.instead(precision=name, detail=f"every value is a {name} number")


FAULTS = (
    Fault(
        id="embed-scale-missing",
        title="Embeddings are not multiplied by their scale",
        topic="embedding.scale",
        kinds=_TOKENS,
        variant=_scale_missing,
        constant="embedding_multiplier",
        symptom="Fluent nonsense: the first layers see a stream that is too small.",
        advice="Gemma multiplies by sqrt(hidden_size), Granite by embedding_multiplier, MiniCPM "
        "by scale_emb. inputs_embeds that come from outside must be scaled already.",
        distinguish="Any prompt; the ratio is the same everywhere.",
        reports=("vllm-project/vllm#52158",),
        common=4,
    ),
    Fault(
        id="embed-scale-added",
        title="The scale of embeddings is applied once too often, or the wrong way round",
        topic="embedding.scale",
        kinds=_TOKENS,
        variant=_scale_added,
        constant="embedding_multiplier",
        symptom="Garbage: the stream begins too large and the first layers hardly change it.",
        advice="Scale in one place: the embedding module, or the model. Models other than Gemma, "
        "T5's and those with a multiplier in the config scale nothing.",
        distinguish="Any prompt; the ratio is the same everywhere.",
        common=3,
    ),
    Fault(
        id="embed-scale-other",
        title="Embeddings are multiplied by another constant",
        topic="embedding.scale",
        kinds=_TOKENS,
        variant=_scale_other,
        constant="embedding_multiplier",
        symptom="Fluent but worse, up to garbage.",
        advice="Compare with hidden_size**0.5, embedding_multiplier or scale_emb of the config.",
        distinguish="Any prompt; the ratio is the same everywhere.",
        common=2,
    ),
    Fault(
        id="embed-scale-rounding",
        title="The root that embeddings are multiplied by is not rounded as the model's dtype is",
        topic="embedding.scale",
        kinds=("embed",),
        variant=_scale_rounding,
        symptom="In half precision every embedding is off by up to 2e-3; in float32 a root that "
        "was rounded to bfloat16 shows in all layers.",
        advice="Round sqrt(hidden_size) to the dtype of the run: 55.5 for 3072 in bfloat16, "
        "55.4256 in float32.",
        distinguish="Any prompt; the ratio is the same everywhere.",
        reports=("huggingface/transformers#29402", "google/gemma_pytorch#37"),
        common=3,
    ),
    Fault(
        id="embed-pad-row",
        title="The embedding of one token is zero, as that of padding",
        topic="embedding.row",
        kinds=_TOKENS,
        variant=_pad_row,
        symptom="Prompts with that token are wrong, all others right; with a tied head its logit "
        "is always 0.",
        advice="padding_idx, or an initialisation that runs after loading, zeroes the row of "
        "pad_token_id, which may be a token in use (0, or the end of text). Restore it from the "
        "checkpoint.",
        distinguish="A prompt with pad_token_id in it.",
        common=4,
    ),
    Fault(
        id="embed-other-token",
        title="Tokens have the embedding of other tokens",
        topic="embedding.row",
        kinds=("embed",),
        variant=_other_token,
        symptom="Text on another subject, or in another language; or a few words are misread.",
        advice="Look for added tokens whose rows were put elsewhere, an offset between vocabulary "
        "and table, a table that was resized, and shards of the vocabulary that start at another "
        "id.",
        distinguish="A prompt with many different tokens, added ones among them.",
        common=3,
    ),
    Fault(
        id="embed-of-head",
        title="The table of embeddings is the head's matrix, which the checkpoint has apart",
        topic="embedding.tie",
        kinds=("embed",),
        variant=_of_head,
        symptom="Garbage from the first layer on.",
        advice="Tie only where tie_word_embeddings is true, and tie the head to the table, not "
        "the table to the head. A tied list in the wrong order keeps the wrong one.",
        distinguish="Any prompt.",
        reports=("huggingface/transformers#48154",),
        common=3,
    ),
    Fault(
        id="embed-positions",
        title="Learned positions are off",
        topic="embedding.position",
        kinds=("pos_embed",),
        variant=_positions,
        symptom="Fluent but worse from the first token on, or from the first decoding step on.",
        advice="GPT-2 counts from 0; OPT's table begins with 2 unused rows, RoBERTa's with "
        "padding_idx + 1. In decoding add the length of the cache.",
        distinguish="One token alone shows an offset; a decoding step shows a restart.",
        common=4,
    ),
    Fault(
        id="embed-positions-missing",
        title="Learned positions are not added, or added twice",
        topic="embedding.position",
        kinds=("pos_embed", "embed_sum"),
        variant=_positions_missing,
        symptom="Words without order.",
        advice="Add the rows of the position table to those of the tokens, once.",
        distinguish="Any prompt.",
        common=2,
    ),
    Fault(
        id="embed-low-precision",
        title="Embeddings of a float32 model are kept in half precision",
        topic="embedding.precision",
        kinds=("embed", "pos_embed", "embed_scaled", "embed_sum"),
        variant=_low_precision,
        symptom="Errors of 1e-3 relative from the first op on.",
        advice="Load the table in the dtype of the checkpoint: quantisers and offloading leave it "
        "in float16 while all else is float32.",
        distinguish="Values on the grid of a narrower dtype.",
        common=3,
    ),
)
