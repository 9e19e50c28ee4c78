"""Mistakes in which keys a query may read.

Source of what is right: :func:`references.ops.visible`; each rule says what is seen otherwise.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .attending import hidden, softmax
from .fault import Fault, Instead, Site, Variant

Array = NDArray[Any]

#: Of the distances [B, T, S] between queries and keys, and of the window or None: what is seen.
Rule = Callable[[Array, int | None], Array]

_MASK = ("attn.mask",)
_PROBS = ("attn.probs",)

#: Sizes that are tried where the candidate does not show its mask.
_SIZES = (*range(1, 65), 128, 256, 512, 1024, 2047, 2048, 4096)

#: What people add to scores in place of minus infinity.
_VALUES = (-1.0, -2.0, -5.0, -8.0, -10.0, -16.0, -20.0, -50.0, -100.0, -1e3, -1e4)


def masked(
    *,
    queries: Array,
    keys: Array,
    rule: Rule,
    window: int | None = None,
    real: Array | None = None,
    alone: bool = False,
) -> Array:
    """Booleans [B, T, S] by another rule; a query that sees nothing sees itself, or all keys."""
    distance = queries[:, :, None] - keys[:, None, :]
    seen = rule(distance, window)
    if real is not None:
        seen = seen & real[:, None, :]
    blind = ~seen.any(axis=-1, keepdims=True)
    instead = distance == 0 if alone else np.ones_like(seen)
    result: Array = seen | (blind & instead)
    return result


def _causal(distance: Array, window: int | None) -> Array:
    seen: Array = distance >= 0
    return seen if window is None else seen & (distance < window)


def _by(site: Site, rule: Rule, detail: str = "", **constants: Any) -> Instead:
    return site.instead(op=partial(masked, rule=rule), detail=detail, **constants)


def _window(site: Site) -> int | None:
    size = site.constant("window")
    return None if size is None else int(size)


def _missing(site: Site) -> Iterator[Instead]:
    yield _by(site, lambda d, w: d > -np.inf, "every key is seen")
    if site.constant("real") is not None:
        yield _by(site, lambda d, w: d > -np.inf, "every key is seen, pads as well", real=None)
    if _window(site) is not None:
        yield _by(site, lambda d, w: np.abs(d) < w, "the window reaches into the future as well")
        yield _by(site, lambda d, w: d < w, "only the window's lower end is kept")


def _reversed(site: Site) -> Iterator[Instead]:
    yield _by(site, lambda d, w: d <= 0, "the future and the token itself are seen")
    yield _by(site, lambda d, w: d < 0, "the future alone is seen")


def _strict(site: Site) -> Iterator[Instead]:
    size = _window(site)
    for alone in (True, False):
        first = "the first one sees itself" if alone else "the first one sees all"
        yield _by(site, lambda d, w: _causal(d, w) & (d > 0), first, alone=alone)
        if size is not None:
            what = f"{size} tokens before it are seen, {first}"
            yield _by(site, lambda d, w: (d > 0) & (d <= w), what, alone=alone)


def _late(site: Site) -> Iterator[Instead]:
    yield _by(site, lambda d, w: (d >= -1) & ((w is None) | (d < (w or 0))), "one token ahead")


def _window_missing(site: Site) -> Iterator[Instead]:
    if _window(site) is not None:
        yield site.instead(window=None, detail=f"all keys before are seen, not {_window(site)}")


def _window_changed(by: int) -> Variant:
    def variant(site: Site) -> Iterator[Instead]:
        size = _window(site)
        if size is not None and size + by > 0:
            yield site.instead(window=size + by, detail=f"{size + by} keys are seen, not {size}")

    return variant


def _configured_window(site: Site) -> int | None:
    size = site.config("sliding_window", "attention_window_size")
    return int(size) if isinstance(size, int) and size > 0 else None


def _window_everywhere(site: Site) -> Iterator[Instead]:
    size = _configured_window(site)
    if _window(site) is None and size is not None:
        yield site.instead(window=size, detail=f"this layer has full attention, not {size} keys")


def _window_swapped(site: Site) -> Iterator[Instead]:
    yield from _window_missing(site)
    yield from _window_everywhere(site)


def _window_size(site: Site) -> Iterator[Instead]:
    found, right = site.found, _window(site)
    near = () if right is None else (right, right - 1, right + 1)
    sizes: tuple[int, ...] = _SIZES
    if found is not None and found.dtype == bool and found.shape == site.call.output.value.shape:
        distance = _distance(site)
        sizes = (int(distance[found].max(initial=0)) + 1,)
    for size in sizes:
        if size not in near and size != _configured_window(site):
            yield site.instead(window=size, detail=f"a window of {size} keys")


def _distance(site: Site) -> Array:
    queries, keys = np.asarray(site.constant("queries")), np.asarray(site.constant("keys"))
    distance: Array = queries[:, :, None] - keys[:, None, :]
    return distance


def _top_left(site: Site) -> Iterator[Instead]:
    batch, length, keys = site.call.output.value.shape
    if length == keys:
        return
    indices: dict[str, Any] = {
        "queries": np.tile(np.arange(length), (batch, 1)),
        "keys": np.tile(np.arange(keys), (batch, 1)),
    }
    yield site.instead(**indices, detail="query i sees the first i + 1 keys of the cache")


def _past_hidden(site: Site) -> Iterator[Instead]:
    length, keys = site.call.output.value.shape[1:]
    if length < keys:
        new = np.arange(keys) >= keys - length
        real = site.constant("real")
        yield site.instead(
            real=np.broadcast_to(new, np.asarray(site.constant("keys")).shape)
            & (True if real is None else real),
            detail="keys of the cache are hidden, only new tokens are seen",
        )


def _padding_ignored(site: Site) -> Iterator[Instead]:
    if site.constant("real") is not None:
        yield site.instead(real=None, detail="pads are seen")
        columns = np.arange(np.asarray(site.constant("keys")).shape[1])
        length = np.asarray(site.constant("queries")).shape[1]
        rows = np.tile(columns, (len(site.constant("real")), 1))
        indices: dict[str, Any] = {"keys": rows, "queries": rows[:, len(columns) - length :]}
        yield site.instead(**indices, real=None, detail="pads are seen, and counted")


def _padding_flipped(site: Site) -> Iterator[Instead]:
    real = site.constant("real")
    if real is None:
        return
    columns = np.arange(real.shape[1])
    length = np.asarray(site.constant("queries")).shape[1]
    rows = np.tile(columns, (len(real), 1))
    indices: dict[str, Any] = {"keys": rows, "queries": rows[:, len(columns) - length :]}
    for changed, what in (
        (real[:, ::-1], "the other side is hidden"),
        (~real, "tokens are hidden"),
    ):
        yield site.instead(real=changed, detail=what)
        yield site.instead(real=changed, **indices, detail=what)


def _row_of_batch(site: Site) -> Iterator[Instead]:
    right = site.call.output.value
    real = site.constant("real")
    if real is None or len(right) < 2:
        return
    length, keys = right.shape[1:]
    itself = np.arange(keys) == keys - length + np.arange(length)[:, None]
    for row in range(len(right)):
        # Queries that are pads, whose mask means nothing in this row, but does in others.
        blind = ~real[row, keys - length :, None]
        for pads in (right[row], np.zeros_like(itself), itself, np.ones_like(itself)):
            mask = np.where(blind, pads, right[row])
            same = np.broadcast_to(mask, right.shape)
            what = f"the mask of row {row} is used for all"
            yield site.instead(op=partial(_constant, same), detail=what)


def _constant(result: Array, **constants: Any) -> Array:
    return result


def leaking(scores: Array, visible: Array, *, value: float) -> Array:
    """Softmax where a number is added to the scores of hidden keys."""
    return softmax(scores + hidden(np.zeros_like(scores), visible, value))


def filled(scores: Array, visible: Array, *, value: float) -> Array:
    """Softmax where a number replaces the scores of hidden keys."""
    return softmax(hidden(scores, visible, value))


def masked_after(scores: Array, visible: Array, *, divided: bool) -> Array:
    """Softmax over all keys, and hidden ones set to 0 afterwards."""
    probs = hidden(softmax(scores), visible, 0.0)
    return probs / probs.sum(axis=-1, keepdims=True) if divided else probs


def _value(site: Site) -> Iterator[Instead]:
    for value in _VALUES:
        yield site.instead(op=leaking, value=value, detail=f"{value:g} is added")
        yield site.instead(op=filled, value=value, detail=f"{value:g} stands for hidden scores")


def _multiplied(site: Site) -> Iterator[Instead]:
    yield site.instead(op=filled, value=0.0, detail="hidden scores are 0")
    yield site.instead(op=leaking, value=1.0, detail="1 is added to hidden scores, 0 to others")
    yield site.instead(op=leaking, value=-1.0, detail="0 is added to hidden scores, 1 to others")


def _after_softmax(site: Site) -> Iterator[Instead]:
    yield site.instead(op=masked_after, divided=False, detail="rows do not sum to 1")


_CONFIG_ADVICE = (
    "Read sliding_window together with use_sliding_window, max_window_layers and layer_types of "
    "the config, and give each layer its own mask."
)
_COUNT_ADVICE = (
    "A window of W is W keys with the token itself: key j is seen where 0 <= i - j < W. Use the "
    "same count in the mask and in the cache, which keeps W - 1 keys before a new token."
)

FAULTS = (
    Fault(
        id="mask-missing",
        title="The causal mask is missing",
        topic="mask.causal",
        kinds=_MASK,
        variant=_missing,
        symptom="Perplexity too good to be true; logits of earlier tokens change with later ones; "
        "with a cache, token by token, all is well.",
        advice="Give the kernel a mask or is_causal=True; look for a path that passes None for "
        "'causal' to a kernel that takes it for 'no mask'.",
        distinguish="Change the last token: no earlier logit may move.",
        reports=(
            "huggingface/transformers#48748",
            "huggingface/transformers#30652",
            "huggingface/text-embeddings-inference#882",
        ),
        common=5,
    ),
    Fault(
        id="mask-reversed",
        title="The mask hides the past and shows the future",
        topic="mask.causal",
        kinds=_MASK,
        variant=_reversed,
        symptom="Garbage, and perplexity that later tokens change.",
        advice="Keep the lower triangle (tril), or negate a mask whose true means hidden.",
        distinguish="Change the last token: no earlier logit may move.",
        common=3,
    ),
    Fault(
        id="mask-strict",
        title="A token does not see itself",
        topic="mask.causal",
        kinds=_MASK,
        variant=_strict,
        symptom="NaN at the first position, or text that lags by a word.",
        advice="Hide from the first diagonal above the main one on (triu with diagonal=1); a "
        "window counts the token itself.",
        distinguish="One token alone.",
        reports=("microsoft/onnxruntime#25927",),
        common=3,
    ),
    Fault(
        id="mask-late",
        title="A token sees the one after it",
        topic="mask.causal",
        kinds=_MASK,
        variant=_late,
        symptom="Perplexity near 1 on a prompt, ordinary text when it is decoded.",
        advice="Hide from the first diagonal above the main one on (triu with diagonal=1, not 2).",
        distinguish="Change the last token: no earlier logit may move.",
        common=3,
    ),
    Fault(
        id="mask-window-missing",
        title="The sliding window is ignored",
        topic="mask.window",
        kinds=_MASK,
        variant=_window_missing,
        symptom="Right up to the window's length, worse beyond it.",
        advice=_CONFIG_ADVICE,
        distinguish="A prompt longer than the window.",
        reports=(
            "huggingface/transformers#35924",
            "huggingface/transformers#33586",
            "ggml-org/llama.cpp#7709",
            "huggingface/candle#3698",
            "sgl-project/sglang#4823",
            "unslothai/unsloth#8253",
        ),
        common=5,
    ),
    Fault(
        id="mask-window-wide",
        title="The window has one key too many",
        topic="mask.window",
        kinds=_MASK,
        variant=_window_changed(1),
        symptom="Right up to the window's length, a little off beyond it.",
        advice=_COUNT_ADVICE,
        distinguish="Row W of a prompt of W + 1 tokens: key 0 must be hidden.",
        reports=(
            "huggingface/transformers#29623",
            "ml-explore/mlx-lm#390",
            "vllm-project/vllm#3385",
        ),
        common=5,
    ),
    Fault(
        id="mask-window-narrow",
        title="The window has one key too few",
        topic="mask.window",
        kinds=_MASK,
        variant=_window_changed(-1),
        symptom="Right up to the window's length, a little off beyond it.",
        advice=_COUNT_ADVICE,
        distinguish="Row W - 1 of a prompt of W tokens: key 0 must be seen.",
        reports=("microsoft/onnxruntime#25927", "huggingface/transformers#26792"),
        common=4,
    ),
    Fault(
        id="mask-window-everywhere",
        title="A layer of full attention has the sliding window",
        topic="mask.window",
        kinds=_MASK,
        variant=_window_everywhere,
        symptom="Long prompts lose what is far away.",
        advice=_CONFIG_ADVICE,
        distinguish="A prompt longer than the window, and the mask of each layer.",
        reports=("huggingface/transformers#35896", "huggingface/transformers#36351"),
        common=4,
    ),
    Fault(
        id="mask-window-swapped",
        title="Full and sliding layers are exchanged",
        topic="mask.window",
        kinds=_MASK,
        variant=_window_swapped,
        symptom="Off beyond the window's length.",
        advice="Look at the pattern: whether every N-th layer is full or sliding, and whether "
        "layers are counted from 0.",
        distinguish="The masks of a sliding and of a full layer.",
        reports=("Comfy-Org/ComfyUI#11409", "huggingface/transformers#38783"),
        common=3,
    ),
    Fault(
        id="mask-window-size",
        title="The window has another size",
        topic="mask.window",
        kinds=_MASK,
        variant=_window_size,
        constant="window",
        symptom="Off beyond the shorter of two windows.",
        advice="Read sliding_window from the config; null means no window, not a default.",
        distinguish="A prompt longer than both windows.",
        reports=("unslothai/unsloth#8253",),
        common=2,
    ),
    Fault(
        id="mask-corner",
        title="The causal triangle is aligned at the first key of the cache",
        topic="mask.causal",
        kinds=_MASK,
        variant=_top_left,
        symptom="The prompt is right, the next tokens are not; without a cache all is well.",
        advice="With a cache query i is token S - T + i: pass an explicit mask of shape [T, S], as "
        "is_causal of fused kernels counts from the top left.",
        distinguish="A second chunk of several tokens on a cache.",
        reports=(
            "pytorch/pytorch#108108",
            "huggingface/candle#3437",
            "huggingface/transformers#30482",
        ),
        common=5,
    ),
    Fault(
        id="mask-past-hidden",
        title="Keys of the cache are hidden from new tokens",
        topic="mask.causal",
        kinds=_MASK,
        variant=_past_hidden,
        symptom="The prompt is right, the next tokens ignore it.",
        advice="Build the mask over all S keys, not over the T new ones.",
        distinguish="A second chunk on a cache.",
        reports=("huggingface/candle#3743",),
        common=4,
    ),
    Fault(
        id="mask-padding-ignored",
        title="Pads are read like tokens",
        topic="mask.padding",
        kinds=_MASK,
        variant=_padding_ignored,
        symptom="A row of a batch differs from the same row alone.",
        advice="Pass attention_mask on to the attention, in decoding with a column for every token "
        "so far.",
        distinguish="The same row alone and in a padded batch.",
        reports=("huggingface/candle#1798", "huggingface/candle#1085", "turboderp/exllama#101"),
        common=5,
    ),
    Fault(
        id="mask-padding-flipped",
        title="The padding mask hides the wrong columns",
        topic="mask.padding",
        kinds=_MASK,
        variant=_padding_flipped,
        symptom="Padded rows are garbage, the longest row is right.",
        advice="Let true (or 1) of attention_mask mean a token, and take the mask from the same "
        "tokenizer call as the ids, so that both are padded on one side.",
        distinguish="A batch of rows of unequal length.",
        common=3,
    ),
    Fault(
        id="mask-row-of-batch",
        title="One row's mask is used for the whole batch",
        topic="mask.padding",
        kinds=_MASK,
        variant=_row_of_batch,
        symptom="One row of a batch is right, others are not.",
        advice="Give the mask the shape [B, 1, T, S] with a row for each sequence.",
        distinguish="A batch of rows of unequal length.",
        reports=("huggingface/candle#3582", "huggingface/candle#3879"),
        common=3,
    ),
    Fault(
        id="mask-value",
        title="Hidden scores are lowered by too little",
        topic="mask.value",
        kinds=_PROBS,
        variant=_value,
        symptom="A small leak of the future, larger where scores are large.",
        advice="Use minus infinity or the lowest number of the dtype; -10000 is enough only as "
        "long as scores stay small, and smaller numbers are not.",
        distinguish="Change the last token: no earlier logit may move.",
        common=3,
    ),
    Fault(
        id="mask-multiplied",
        title="The mask is multiplied or added as 0 and 1",
        topic="mask.value",
        kinds=_PROBS,
        variant=_multiplied,
        symptom="The future leaks strongly.",
        advice="Replace hidden scores by minus infinity before the softmax (where, masked_fill); a "
        "boolean mask must not be cast to numbers and added.",
        distinguish="Change the last token: no earlier logit may move.",
        common=3,
    ),
    Fault(
        id="mask-after-softmax",
        title="The mask is applied after the softmax",
        topic="mask.value",
        kinds=_PROBS,
        variant=_after_softmax,
        symptom="Probabilities of a row sum to less than 1, least for early tokens.",
        advice="Mask the scores, not the probabilities.",
        distinguish="Sum of the probabilities of each row.",
        common=2,
    ),
)
