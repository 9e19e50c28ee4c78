"""Mistakes in what a model is fed: token ids, and positions under padding.

The rows of the embedding that a candidate shows tell which ids it was fed.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .fault import Fault, Instead, Site

Array = NDArray[Any]

_EMBED = ("embed",)
_PLACES = ("pos_embed", "attn.q_rope", "attn.k_rope")

#: Most that ids are taken to be shifted by.
_OFFSETS = (1, -1, 2, -2, 3, -3, 256, -256)

#: Ids that are named, at most.
_NAMED = 4


def _fed(site: Site, ids: Array, detail: str) -> Iterator[Instead]:
    """Other ids [B, T], where the table has rows for all of them."""
    right = site.value(1)
    inside = ids.size and ids.min() >= 0 and ids.max() < len(site.value(0))
    if inside and not np.array_equal(ids, right):
        yield site.instead(inputs={1: ids.astype(np.int64)}, detail=detail)


def _recovered(site: Site) -> Array | None:
    """[B, T] ids whose rows of the table the candidate has; None where any of it is no row."""
    found, table = site.found, site.value(0)
    if found is None or found.ndim != 3 or found.shape[-1] != table.shape[-1]:
        return None
    rows = found.astype(np.float64)
    if len(site.call.inputs) > 2:
        rows = rows / float(site.value(2))
    rows = rows.reshape(-1, rows.shape[-1])
    # One element tells most rows apart; the few that are left are compared whole.
    element = int(np.abs(rows).sum(axis=0).argmax())
    order = np.argsort(table[:, element])
    values, wanted = table[order, element], rows[:, element]
    slack = 4 * site.call.precision.unit_roundoff * np.abs(wanted)
    lows = np.searchsorted(values, wanted - slack, side="left")
    highs = np.searchsorted(values, wanted + slack, side="right")
    ids = []
    for row, low, high in zip(rows, lows, highs, strict=True):
        like = order[low:high]
        if not len(like):
            return None
        ids.append(like[np.argmin(np.sum((table[like] - row) ** 2, axis=1))])
    recovered: Array = np.array(ids, dtype=np.int64).reshape(found.shape[:2])
    return recovered


def _prefixed(site: Site) -> Iterator[Instead]:
    ids = site.value(1)
    if site.chunk == 0:
        longer = np.concatenate([ids[:, :1], ids], axis=1)
        yield from _fed(site, longer, f"id {int(ids[0, 0])} twice")
        yield from _fed(site, longer[:, :-1], f"id {int(ids[0, 0])} twice, the last id is cut off")


def _bos_of(site: Site) -> int | None:
    bos = site.config("bos_token_id")
    bos = bos[0] if isinstance(bos, list) and bos else bos
    return bos if isinstance(bos, int) else None


def _bos_added(site: Site) -> Iterator[Instead]:
    ids, bos = site.value(1), _bos_of(site)
    if site.chunk or bos is None or bool((ids[:, 0] == bos).all()):
        return
    longer = np.concatenate([np.full_like(ids[:, :1], bos), ids], axis=1)
    yield from _fed(site, longer, f"id {bos} in front")
    yield from _fed(site, longer[:, :-1], f"id {bos} in front, the last id is cut off")


def _first_lost(site: Site) -> Iterator[Instead]:
    ids = site.value(1)
    if site.chunk == 0 and ids.shape[1] > 1:
        yield from _fed(site, ids[:, 1:], f"id {int(ids[0, 0])} is missing")


def _eos_added(site: Site) -> Iterator[Instead]:
    ids = site.value(1)
    given = site.config("eos_token_id")
    for eos in given if isinstance(given, list) else [given]:
        if isinstance(eos, int) and site.chunk == 0:
            longer = np.concatenate([ids, np.full_like(ids[:, :1], eos)], axis=1)
            yield from _fed(site, longer, f"id {eos} behind the prompt")


def _moved(site: Site) -> Iterator[Instead]:
    ids = site.value(1)
    if site.chunk or ids.shape[1] < 2:
        return
    ends = (site.config("pad_token_id"), site.config("eos_token_id"), _bos_of(site), 0)
    for by, where in ((-1, "left"), (1, "right")):
        rolled = np.roll(ids, by, axis=1)
        yield from _fed(site, rolled, f"one to the {where}, around the end")
        for end in dict.fromkeys(e for e in ends if isinstance(e, int)):
            filled = rolled.copy()
            filled[:, -1 if by < 0 else 0] = end
            yield from _fed(site, filled, f"one to the {where}, with id {end}")


def _backwards(site: Site) -> Iterator[Instead]:
    yield from _fed(site, site.value(1)[:, ::-1], "the last id is first")


def _offset(site: Site) -> Iterator[Instead]:
    ids, vocab = site.value(1), len(site.value(0))
    for by in _OFFSETS:
        yield from _fed(site, (ids + by) % vocab, f"every id {by:+d}")
        yield from _fed(site, np.clip(ids + by, 0, vocab - 1), f"every id {by:+d}, clipped")


def _others(site: Site) -> Iterator[Instead]:
    """Any other ids: those that the rows are of."""
    found, right = _recovered(site), site.value(1)
    if found is None:
        return
    if found.shape != right.shape:
        lengths = f"{found.shape[1]} ids, not {right.shape[1]}"
        yield from _fed(site, found, f"{lengths}: {found[0, :_NAMED].tolist()} ...")
        return
    wrong = np.argwhere(found != right)
    words = [
        f"{int(found[b, t])} for {int(right[b, t])} at position {t}" for b, t in wrong[:_NAMED]
    ]
    more = f" and {len(wrong) - _NAMED} others" if len(wrong) > _NAMED else ""
    yield from _fed(site, found, ", ".join(words) + more)


def _one_lost(site: Site) -> Iterator[Instead]:
    """One id in the middle is not there, or is there twice."""
    found, right = _recovered(site), site.value(1)
    if found is None or found.shape[0] != right.shape[0] or site.chunk:
        return
    short, long = sorted((found, right), key=lambda ids: ids.shape[1])
    if long.shape[1] - short.shape[1] != 1:
        return
    differs = (long[:, :-1] != short).any(axis=0)
    at = int(np.argmax(differs)) if differs.any() else short.shape[1]
    if at and np.array_equal(np.delete(long, at, axis=1), short):
        gone = short is found
        what = "is missing" if gone else "is one too many"
        yield from _fed(site, found, f"id {int(long[0, at])} at position {at} {what}")


def _other_side(site: Site) -> Iterator[Instead]:
    """Rows of a batch that begin in other columns: each row moved around by its pads."""
    found, right = _recovered(site), site.value(1)
    if found is None or found.shape != right.shape or len(right) < 2:
        return
    moved, shifts = right.copy(), []
    for row, ids in enumerate(right):
        fits = [by for by in range(len(ids)) if np.array_equal(np.roll(ids, by), found[row])]
        if not fits:
            return
        shifts.append(fits[0])
        moved[row] = np.roll(ids, fits[0])
    if 0 in shifts and len(set(shifts)) > 1:
        yield from _fed(site, moved, f"rows moved around by {shifts} columns")


def _unpadded_places(site: Site) -> Iterator[Instead]:
    """Positions that count pads: those of the columns."""
    learned = site.kind == "pos_embed"
    given = site.value(1) if learned else np.asarray(site.constant("positions"))
    longest = given[int(np.argmax(given[:, -1]))]
    columns = np.broadcast_to(longest, given.shape).copy()
    if np.array_equal(columns, given):
        return
    detail = "every column counts, pads as well"
    if learned:
        yield site.instead(inputs={1: columns}, detail=detail)
    else:
        yield site.instead(positions=columns, detail=detail)


_TEMPLATE = (
    "Tokenise once: a chat template writes BOS itself, so that its text must be tokenised with "
    "add_special_tokens=False. Compare token ids before anything else."
)


def _fault(fault: str, title: str, topic: str, variant: Callable[..., Any], **words: Any) -> Fault:
    given = {"kinds": _EMBED, "advice": _TEMPLATE, "distinguish": "The token ids."} | words
    return Fault(id=fault, title=title, topic=topic, variant=variant, **given)


FAULTS = (
    _fault(
        *("input-bos-doubled", "The first token is fed twice", "input.bos", _prefixed),
        symptom="Slightly worse answers; all positions are one too high.",
        reports=(
            "ggml-org/llama.cpp#7107",
            "ggml-org/llama.cpp#7332",
            "abetlen/llama-cpp-python#1501",
            "InfiniTensor/InfiniLM#388",
            "princeton-pli/retaining-by-doing#5",
        ),
        common=5,
    ),
    _fault(
        *("input-bos-added", "A BOS is fed that the prompt does not have", "input.bos", _bos_added),
        symptom="Slightly worse answers; all positions are one too high.",
        advice="Qwen and others are trained without BOS: follow add_bos_token of the tokenizer.",
        reports=("ggml-org/llama.cpp#7107",),
        common=4,
    ),
    _fault(
        *(
            "input-bos-missing",
            "The first token of the prompt is missing",
            "input.bos",
            _first_lost,
        ),
        symptom="Clearly worse answers from models that lean on BOS, Gemma's most.",
        advice="Add BOS where the tokenizer's config does (add_bos_token, or a template); "
        "compare token ids before anything else.",
        common=4,
    ),
    _fault(
        *("input-eos-added", "An EOS is fed behind the prompt", "input.tokens", _eos_added),
        symptom="The model begins a new text in place of going on.",
        advice="Turn add_eos_token off for prompts.",
        common=3,
    ),
    _fault(
        *(
            "input-token-lost",
            "A token of the prompt is lost or doubled",
            "input.tokens",
            _one_lost,
        ),
        symptom="Slightly worse answers; positions behind it are off by one.",
        advice="Look for white space that is stripped or added at the seams of a template.",
        reports=("ggml-org/llama.cpp#6914",),
        common=3,
    ),
    _fault(
        *("input-shifted", "Token ids are shifted by one position", "input.tokens", _moved),
        symptom="Each logit predicts the token after the next, or the one that it has seen.",
        advice="Shift labels, not inputs, and shift them once.",
        common=3,
    ),
    _fault(
        *("input-reversed", "Token ids are fed in reverse order", "input.tokens", _backwards),
        symptom="Garbage.",
        advice="Feed the first token first.",
        common=1,
    ),
    _fault(
        *("input-offset", "Every token id is off by the same number", "input.tokens", _offset),
        symptom="Garbage.",
        advice="Look for a token added at the front of the vocabulary, or for a table that was "
        "resized or cut at its beginning.",
        common=2,
    ),
    _fault(
        *("input-tokens", "Other tokens are fed", "input.tokens", _others),
        symptom="Answers to another prompt.",
        advice="Use the tokenizer files of this checkpoint; look for another pre-tokenizer, for "
        "added tokens that are split, for text that is normalised twice.",
        reports=("ggml-org/llama.cpp#6914",),
        common=1,
    ),
    _fault(
        *("input-padding-side", "Rows are padded on the other side", "input.padding", _other_side),
        symptom="Padded rows are wrong, the longest row is right.",
        advice="Set padding_side of the tokenizer: left for decoding.",
        distinguish="A batch of rows of unequal length.",
        reports=("huggingface/transformers#48161",),
        common=4,
    ),
    _fault(
        "input-padding-positions",
        "Pads are counted in the positions",
        "input.padding",
        _unpadded_places,
        kinds=_PLACES,
        symptom="A left-padded row differs from the same row alone.",
        advice="Make position_ids from the mask: cumsum(mask) - 1, for each row of its own.",
        distinguish="The same row alone and left-padded in a batch.",
        reports=("TransformerLensOrg/TransformerLens#1609", "unslothai/unsloth#3699"),
        common=5,
    ),
)
