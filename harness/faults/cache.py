"""Mistakes in the KV cache and in what is computed on it."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..replay.call import Operand
from .attending import rotations, start_of, turned
from .fault import Fault, Instead, Site

Array = NDArray[Any]

_HELD = ("attn.keys", "attn.values")
_KEYS = ("attn.keys",)

_NARROW = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}

#: Significant bits of each dtype of a model.
_BITS = {"float32": 24, "float16": 11, "bfloat16": 8}


def _past(site: Site) -> Array | None:
    """What the cache held before this forward pass, None at the start of a sequence."""
    operand = site.call.inputs[0]
    return None if operand is None else operand.value


def _cut(site: Site, joined: Array) -> Array:
    keep = site.constant("keep")
    return joined if keep is None else joined[:, :, -keep:]


def _as(site: Site, result: Array, detail: str) -> Instead:
    """A cache that holds something else."""

    def op(*inputs: Any, **constants: Any) -> Array:
        return result

    return site.instead(op=op, detail=detail)


def _other_past(site: Site, past: Array | Operand, detail: str) -> Instead:
    return site.instead(inputs={0: past}, detail=detail)


def _earlier_sequence(site: Site) -> Iterator[Instead]:
    """More is held than this sequence has tokens, and the end of it is right."""
    right, found = site.call.output.value, site.found
    if found is None or found.ndim != 4 or site.constant("keep") is not None:
        return
    extra = found.shape[2] - right.shape[2]
    if extra > 0 and found.shape[:2] == right.shape[:2] and found.shape[3] == right.shape[3]:
        front = found[:, :, :extra].astype(np.float64)
        words = f"{extra} positions in front that this sequence did not make"
        yield _as(site, np.concatenate([front, right], axis=2), words)


def _foreign(site: Site) -> Iterator[Instead]:
    """What is new is right, what was held before is something else."""
    past, found, new = _past(site), site.found, site.value(1)
    if past is None or found is None or found.shape != site.call.output.value.shape:
        return
    length = found.shape[2] - new.shape[2]
    if length > 0 and np.allclose(found[:, :, length:], new, rtol=1e-6, atol=1e-30):
        changed = found[:, :, :length].astype(np.float64)
        kept = past[:, :, past.shape[2] - length :]
        wrong = np.flatnonzero((changed != kept).any(axis=(0, 1, 3)))
        words = f"{len(wrong)} of {length} cached positions are not what was stored"
        yield _as(site, np.concatenate([changed, new], axis=2), words)


def _step_lost(site: Site) -> Iterator[Instead]:
    past, new = _past(site), site.value(1)
    if past is None:
        return
    ends = ((-1, "last"), (0, "first")) if site.constant("keep") is None else ((-1, "last"),)
    for gone, where in ends:
        shorter = np.delete(past, gone, axis=2)
        yield _as(
            site,
            _cut(site, np.concatenate([shorter, new], axis=2)),
            f"the {where} cached position is gone",
        )
        empty = past.copy()
        empty[:, :, gone] = 0
        yield _other_past(site, empty, f"the {where} cached position is 0")


def _new_alone(site: Site) -> Iterator[Instead]:
    if _past(site) is not None:
        yield _as(site, site.value(1), "nothing is kept from one forward pass to the next")


def _past_alone(site: Site) -> Iterator[Instead]:
    past = _past(site)
    if past is not None:
        yield _as(site, _cut(site, past), "new positions are stored after they should be read")


def _in_front(site: Site) -> Iterator[Instead]:
    past, new = _past(site), site.value(1)
    if past is not None:
        yield _as(site, np.concatenate([new, past], axis=2), "new positions before those held")


def _turned(times: int) -> Callable[[Site], Iterator[Instead]]:
    """The past rotated once more, or once less."""

    def variant(site: Site) -> Iterator[Instead]:
        past = _past(site)
        if past is None:
            return
        length = past.shape[2]
        positions = start_of(site) - length + np.arange(length)
        ratio = site.call.precision.float32_ratio
        for rotation in rotations(site, past.shape[-1]):
            what = "by the positions that they were stored with"
            yield _other_past(site, turned(past, times * positions, rotation, ratio), what)
            if times > 0:
                step = np.full(length, start_of(site))
                what = "by the position of the new token"
                yield _other_past(site, turned(past, step, rotation, ratio), what)

    return variant


def _window_cut(site: Site) -> Iterator[Instead]:
    keep, past = site.constant("keep"), _past(site)
    if keep is None or past is None:
        return
    joined = np.concatenate([past, site.value(1)], axis=2)
    for other in (keep - 1, keep + 1):
        if 0 < other <= joined.shape[2] and min(keep, joined.shape[2]) != other:
            yield _as(site, joined[:, :, -other:], f"{other} positions are held, not {keep}")


def _narrow(site: Site) -> Iterator[Instead]:
    past, new = _past(site), site.value(1)
    for name, dtype in _NARROW.items():
        if name == site.dtype or ml_dtypes.finfo(dtype).nmant + 1 >= _BITS[site.dtype]:
            continue
        cast = partial(_cast, dtype=dtype)
        yield site.instead(inputs={1: cast(new), 0: _map(cast, past)}, detail=f"held in {name}")
        if past is not None:
            yield _other_past(site, cast(past), f"what is cached is held in {name}")


def _cast(x: Array, dtype: Any) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(dtype).astype(np.float64)


def _map(change: Callable[[Array], Array], past: Array | None) -> Array | None:
    return None if past is None else change(past)


def _integers(site: Site) -> Iterator[Instead]:
    past, new = _past(site), site.value(1)
    ways: dict[str, tuple[int, ...]] = {
        "token and head": (3,),
        "token": (1, 3),
        "channel": (2,),
        "head": (2, 3),
        "tensor": (1, 2, 3),
    }
    for bits in (8, 4):
        for what, axes in ways.items():
            cast = partial(_quantised, axes=axes, bits=bits)
            detail = f"int{bits}, one scale for each {what}"
            yield site.instead(inputs={1: cast(new), 0: _map(cast, past)}, detail=detail)
            if past is not None:
                yield _other_past(site, cast(past), f"{detail}; what is new is not rounded")


def _quantised(x: Array, *, axes: tuple[int, ...], bits: int) -> Array:
    """Multiples of the largest value over ``2 ** (bits - 1) - 1``, as symmetric schemes have it."""
    most = 2 ** (bits - 1) - 1
    scale = np.abs(x).max(axis=axes, keepdims=True) / most
    rounded: Array = np.rint(x / np.where(scale == 0, 1, scale)) * scale
    return rounded


def _rows_exchanged(site: Site) -> Iterator[Instead]:
    past = _past(site)
    if past is None or past.shape[0] < 2:
        return
    for by in (1, -1) if past.shape[0] > 2 else (1,):
        yield _other_past(site, np.roll(past, by, axis=0), f"rows of the batch moved by {by}")
    first = np.broadcast_to(past[:1], past.shape).copy()
    yield _other_past(site, first, "every row holds what the first row stored")


def _places(site: Site, positions: Array, detail: str) -> Instead:
    """Other learned positions [B, T]; rows of the table that are not there are clipped."""
    there = np.clip(positions, 0, len(site.value(0)) - 1)
    return site.instead(inputs={1: there}, detail=detail)


def _restarted(site: Site) -> Iterator[Instead]:
    if site.chunk:
        positions = site.value(1)
        yield _places(site, positions - positions.min(), "positions begin again at 0")


def _shifted(site: Site) -> Iterator[Instead]:
    for by in (1, 2, -1, -2):
        yield _places(site, site.value(1) + by, f"positions {by:+d}")


def _stuck(site: Site) -> Iterator[Instead]:
    if site.chunk:
        last = sum(t.shape[1] for t in site.facts.tokens[:1])
        for at in (last - 1, last):
            yield _places(site, np.full_like(site.value(1), at), f"always {at}")


_RESET = "Begin each sequence with a cache of its own, or reset it when a prompt begins."
_COUNT = "Take positions from the length of the cache, or count every token fed so far."

FAULTS = (
    Fault(
        id="cache-stale",
        title="The cache still holds an earlier sequence",
        topic="cache.stale",
        kinds=_HELD,
        variant=_earlier_sequence,
        symptom="The first prompt is right, the second seems to remember the first.",
        advice=_RESET,
        distinguish="Two prompts in a row.",
        reports=("huggingface/candle#2937",),
        common=5,
    ),
    Fault(
        id="cache-foreign",
        title="The cache holds what was not stored in it",
        topic="cache.stale",
        kinds=_HELD,
        variant=_foreign,
        symptom="The prompt is right, the next tokens are not.",
        advice="Look for slots that are overwritten, for another layer's or another sequence's "
        "cache, for a buffer that is reused before it is read. " + _RESET,
        distinguish="Taps of keys and values over two forward passes.",
        reports=("huggingface/transformers#48947", "huggingface/transformers#48280"),
        common=1,
        fallback=True,
    ),
    Fault(
        id="cache-step-lost",
        title="One cached position is lost",
        topic="cache.stale",
        kinds=_HELD,
        variant=_step_lost,
        symptom="Text that repeats or skips words once it is decoded.",
        advice="Write at the index of the token, before the index is counted up, and read up to "
        "and with the new token.",
        distinguish="Two decoding steps or more.",
        reports=("huggingface/transformers#37574", "huggingface/transformers#37873"),
        common=3,
    ),
    Fault(
        id="cache-not-extended",
        title="New tokens see themselves alone",
        topic="cache.stale",
        kinds=_HELD,
        variant=_new_alone,
        symptom="The prompt is right, the next tokens ignore it.",
        advice="Pass the cache to every forward pass and keep what it returns; look for an "
        "argument of another name that is swallowed silently.",
        distinguish="One decoding step.",
        reports=("huggingface/transformers#31981", "huggingface/candle#3743"),
        common=4,
    ),
    Fault(
        id="cache-read-early",
        title="The cache is read before new positions are stored",
        topic="cache.stale",
        kinds=_HELD,
        variant=_past_alone,
        symptom="Decoded text lags by a token.",
        advice="Store new keys and values first, then read all of them.",
        distinguish="One decoding step.",
        reports=("huggingface/transformers#37574",),
        common=2,
    ),
    Fault(
        id="cache-prepended",
        title="New positions are put in front of the cached ones",
        topic="cache.position",
        kinds=_HELD,
        variant=_in_front,
        symptom="Right for one token at a time, wrong for chunks and windows.",
        advice="Concatenate [past, new] along the positions.",
        distinguish="A second chunk of several tokens.",
        common=2,
    ),
    Fault(
        id="cache-rotated-again",
        title="Cached keys are rotated a second time",
        topic="cache.position",
        kinds=_KEYS,
        variant=_turned(1),
        symptom="The prompt is right, decoded text falls apart.",
        advice="Rotate keys once: either before they are stored, or, all of them, each time that "
        "they are read.",
        distinguish="One decoding step.",
        common=4,
    ),
    Fault(
        id="cache-unrotated",
        title="Keys are cached before they are rotated, and read like rotated ones",
        topic="cache.position",
        kinds=_KEYS,
        variant=_turned(-1),
        symptom="The prompt is right, decoded text falls apart.",
        advice="Store rotated keys, or rotate all of them each time that they are read.",
        distinguish="One decoding step.",
        common=3,
    ),
    Fault(
        id="cache-window",
        title="The sliding cache is cut at another length",
        topic="cache.window",
        kinds=_HELD,
        variant=_window_cut,
        symptom="Right until the window is full, a little off from there on.",
        advice="With a window of W keep W - 1 positions before a new token: W with itself.",
        distinguish="Decoding at the very length of the window and beyond it.",
        reports=(
            "huggingface/transformers#37574",
            "ml-explore/mlx-lm#390",
            "pytorch/executorch#20346",
        ),
        common=4,
    ),
    Fault(
        id="cache-narrow",
        title="The cache holds a narrower dtype",
        topic="cache.precision",
        kinds=_HELD,
        variant=_narrow,
        symptom="Small errors, from the prompt on or from the first decoded token on.",
        advice="Make the cache in the model's dtype, or compare with an engine that does not.",
        distinguish="Keys that are numbers of the narrower dtype.",
        common=4,
    ),
    Fault(
        id="cache-integers",
        title="The cache holds integers",
        topic="cache.precision",
        kinds=_HELD,
        variant=_integers,
        symptom="Errors of a percent, from the prompt on or from the first decoded token on.",
        advice="Turn the quantisation of the cache off, or judge it by its own error.",
        distinguish="At most 255 values for each scale.",
        common=3,
    ),
    Fault(
        id="cache-rows",
        title="Rows of the batch read each other's cache",
        topic="cache.stale",
        kinds=_HELD,
        variant=_rows_exchanged,
        symptom="Alone each sequence is right, in a batch they mix.",
        advice="Reorder the cache together with the sequences (beams), and index it by row.",
        distinguish="A batch of two rows or more, and one decoding step.",
        common=2,
    ),
    Fault(
        id="position-restarted",
        title="Learned positions begin again at 0 with every forward pass on a cache",
        topic="cache.position",
        kinds=("pos_embed",),
        variant=_restarted,
        symptom="The prompt is right, decoded text falls apart; without a cache all is well.",
        advice=_COUNT,
        distinguish="One decoding step.",
        reports=("ml-explore/mlx-lm#93", "huggingface/candle#1517"),
        common=5,
    ),
    Fault(
        id="position-shifted",
        title="Learned positions are shifted",
        topic="cache.position",
        kinds=("pos_embed",),
        variant=_shifted,
        symptom="A little worse everywhere; or right for the prompt and off with a cache.",
        advice=_COUNT + " GPT-2 counts from 0, OPT and RoBERTa's kin from padding_idx + 1.",
        distinguish="The first token alone.",
        common=4,
    ),
    Fault(
        id="position-stuck",
        title="Learned positions do not advance as tokens are decoded",
        topic="cache.position",
        kinds=("pos_embed",),
        variant=_stuck,
        symptom="Repetition after some tokens; without a cache all is well.",
        advice=_COUNT,
        distinguish="Two decoding steps or more.",
        common=3,
    ),
)
