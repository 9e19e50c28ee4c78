"""What probes show of each kind of fault, and what stays hidden: sentences with their numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..contract import UNIT_LIMIT
from ..result import Sight
from .mistakes import MISTAKES, other_epsilon
from .probes import EXACT_POSITIONS, Probe
from .traits import Traits
from .vocabulary import Vocabulary
from .witness import MARGIN, Moved, Testimony, rows_of

#: What is said of a mistake that no op of the model can make.
_ABSENT = {
    "attention.softcap": "scores have no cap",
    "head.softcap": "logits have no cap",
    "embedding.scale": "the embedding is not scaled",
    "mlp.router": "there are no experts",
    "weights.bias": "the checkpoint has none",
}


#: Topics whose constant is also fitted over all elements; see :mod:`harness.fitting`.
_FITTED = ("norm.eps", "rope.theta", "attention.scale")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What sentences are made of.

    Attributes:
        traits: The model.
        words: Its vocabulary.
        probes: The probes; the first is the one that was witnessed.
        testimony: What that one says.
        dtype: Of the candidates.
        limited_by: Why rows are not longer.
        unpadded: Candidates that take no padding.
    """

    traits: Traits
    words: Vocabulary
    probes: Sequence[Probe]
    testimony: Testimony
    dtype: str
    limited_by: str
    unpadded: tuple[str, ...] = ()

    @property
    def longest(self) -> int:
        """Positions of the longest probe, decoding steps included."""
        return max(probe.length + probe.decode for probe in self.probes)

    def with_topic(self, topic: str) -> Probe | None:
        """The first probe that can show a topic."""
        return next((probe for probe in self.probes if topic in probe.topics), None)


def make_sights(seen: Evidence) -> tuple[Sight, ...]:
    """What is shown and what stays hidden, those shown first."""
    sights = [
        *_measured(seen),
        *_input(seen),
        *_positions(seen),
        *_masks(seen),
        *_weights(seen),
    ]
    return tuple(sorted(sights, key=lambda sight: not sight.shown))


def _shown(topic: str, probe: Probe, why: str) -> Sight:
    return Sight(topic, topic.split(".")[0], shown=True, probe=probe.name, why=why)


def _hidden(topic: str, why: str) -> Sight:
    return Sight(topic, topic.split(".")[0], shown=False, probe="", why=why)


def _measured(seen: Evidence) -> Iterator[Sight]:
    """Mistakes that were tried at every op of the first probe."""
    probe = seen.probes[0]
    for mistake in MISTAKES:
        topic, what = mistake.topic, mistake.what
        if topic == "mask.window":  # told by the windows themselves
            continue
        over, under = seen.testimony.shows(topic), seen.testimony.hides(topic)
        if not over and not under:
            if topic in _ABSENT:
                yield _hidden(topic, _ABSENT[topic])
            continue
        if not over and _told_by_length(topic, seen):
            continue
        if topic == "norm.eps":
            _, eps = next(iter(seen.testimony.mean_squares.values()))
            what = f"epsilon {other_epsilon(eps):g} for {eps:g}"
        if over:
            places = _places(over[0], len(over), len(over) + len(under), probe)
            yield _shown(topic, probe, f"{what} moves {places}")
        if under:
            yield _hidden(topic, _under(topic, what, under, len(over) + len(under), seen))


def _told_by_length(topic: str, seen: Evidence) -> bool:
    """Whether other probes show it, as they are longer."""
    if topic == "rope.scaling":
        return bool(seen.traits.grows)
    return topic == "rope.precision" and seen.with_topic(topic) is not None


def _places(first: Moved, count: int, total: int, probe: Probe) -> str:
    size = "" if np.isinf(first.units) else f" by {_number(first.units)} rounding units"
    more = f"; {count} of {total} such taps" if total > 1 else ""
    return f"{first.tap}{size} (row: {rows_of(probe.labels, first.row)}){more}"


def _under(topic: str, what: str, under: Sequence[Moved], total: int, seen: Evidence) -> str:
    most = under[0]
    many = f"{len(under)} of {total} taps" if total > 1 else most.tap
    reason = f"{what} moves {many} by at most {_number(most.units)} rounding units"
    near = "near" if most.units > UNIT_LIMIT - MARGIN else "below"
    reason += f" ({most.tap}), {near} the limit of {UNIT_LIMIT:g}"
    if topic in _FITTED:
        reason += "; a constant fitted over all elements may tell"
    least = [
        (square / eps, tap)
        for tap, (square, eps) in seen.testimony.mean_squares.items()
        if tap in {m.tap for m in under}
    ]
    if least and topic == "norm.eps":
        ratio, tap = min(least)
        reason += f": the smallest mean square there is {_number(ratio)} times eps, at {tap}"
    return reason


def _input(seen: Evidence) -> Iterator[Sight]:
    first = seen.probes[0]
    if "BOS" in seen.words.special:
        bos = seen.words.special["BOS"]
        yield _shown("input.bos", first, f"rows with and without BOS, id {bos}, in front")
    else:
        yield _hidden("input.bos", "the config names no BOS")
    named = ", ".join(f"{name} {token}" for name, token in seen.words.special.items())
    if named:
        yield _shown("input.special", first, f"special ids among others: {named}")
    yield _shown("input.batch", first, f"{len(first.rows)} different rows in one batch")
    yield _hidden(
        "input.tokenizer", "probes are token ids: no tokenizer and no chat template takes part"
    )


def _positions(seen: Evidence) -> Iterator[Sight]:
    traits = seen.traits
    passes = seen.with_topic("cache.position")
    if passes is not None:
        sizes = ", ".join(map(str, passes.prefill))
        yield _shown("cache.position", passes, f"passes of {sizes} tokens and a decoding step")
    yield from _scaling(seen)
    if traits.longest is None or seen.longest < traits.longest:
        end = "" if traits.longest is None else f" to {traits.longest - 1:,}"
        topic = "rope.position_cache" if traits.ropes else "embedding.position"
        reason = f"positions {seen.longest:,}{end or ' and up'} are not run"
        yield _hidden(topic, f"{reason}: a table that ends sooner does not show")
    beyond = seen.with_topic("rope.precision")
    if beyond is not None:
        exact = EXACT_POSITIONS[seen.dtype]
        why = f"positions beyond {exact:,}, where rounded ones and their angles are far off"
        yield _shown("rope.precision", beyond, why)
    elif traits.ropes:
        kind = "float16" if seen.dtype == "float16" else "bfloat16"
        exact = EXACT_POSITIONS[kind]
        if seen.longest <= exact + 1:
            why = f"positions rounded to {kind} differ beyond {exact:,}, which are not run"
            yield _hidden("rope.precision", why)


def _scaling(seen: Evidence) -> Iterator[Sight]:
    traits = seen.traits
    if not traits.ropes:
        yield _hidden("rope.theta", "there is no rotary embedding: positions are learned")
        return
    if all(rope.kind == "default" for rope in traits.ropes):
        yield _hidden("rope.scaling", "frequencies are not scaled: type default")
    for length in traits.grows:
        probe = next((p for p in seen.probes if p.name.startswith(f"probe length {length} ")), None)
        if probe is None:
            why = f"frequencies change beyond {length:,} positions: {seen.limited_by}"
            yield _hidden("rope.scaling_length", why)
        else:
            why = f"frequencies change beyond {length:,} positions, reached at once and by decoding"
            yield _shown("rope.scaling_length", probe, why)


def _masks(seen: Evidence) -> Iterator[Sight]:
    padded = seen.with_topic("mask.padding")
    if padded is not None:
        yield _shown("mask.padding", padded, "rows padded on the left, and on the right")
    elif seen.unpadded:
        yield _hidden("mask.padding", f"{', '.join(seen.unpadded)} takes no padded batches")
    traits = seen.traits
    for size, layers in traits.windows.items():
        probe = next((p for p in seen.probes if p.name.startswith(f"probe window {size}")), None)
        of = f"window {size:,} of {layers} of {traits.layers} layers"
        if probe is None:
            yield _hidden("mask.window", f"{of}: {seen.limited_by}")
        else:
            yield _shown("mask.window", probe, f"{of}, filled exactly and overrun by one")
    if not traits.windows:
        length = seen.longest
        yield _hidden(
            "mask.window",
            f"no layer has a window; one of {length:,} tokens or more in an engine does not show",
        )
    if traits.heads and traits.kv_heads in (1, traits.heads):
        why = "one kv head for all" if traits.kv_heads == 1 else "as many kv heads as heads"
        yield _hidden("attention.gqa", f"{why}: all orders are equal")


def _weights(seen: Evidence) -> Iterator[Sight]:
    traits, words = seen.traits, seen.words
    read = {token for probe in seen.probes for row in probe.rows for token in row}
    if traits.tied:
        yield _shown(
            "head.tie",
            seen.probes[0],
            f"the head is the embedding: another one changes {words.size:,} logits",
        )
    yield _rows_read(seen, len(read))
    unchosen = seen.testimony.unchosen
    if unchosen:
        tap = max(unchosen, key=lambda tap: unchosen[tap][0])
        count, total = unchosen[tap]
        if count:
            why = f"up to {count} of {total} experts of a layer are chosen by no token, at {tap}"
            yield _hidden("mlp.experts", why)
        else:
            yield _shown("mlp.experts", seen.probes[0], f"each of {total} experts is chosen")


def _rows_read(seen: Evidence, read: int) -> Sight:
    words, topic = seen.words, "embedding.row"
    if read == words.size:
        return _shown(topic, seen.probes[0], f"all {read:,} rows are read, over all probes")
    empty = int(np.count_nonzero(words.mean_squares == 0))
    note = f" ({empty:,} rows are all 0)" if empty else ""
    others = "the others are compared in engines that show their parameters"
    if seen.traits.tied:
        return _hidden(
            topic, f"{read:,} of {words.size:,} are read{note}; {others}, and as the head"
        )
    return _hidden(topic, f"{read:,} of {words.size:,} are read{note}; {others}, else nowhere")


def _number(value: float) -> str:
    """Two digits: ``0.03``, ``57``, ``5.6e+04``."""
    return f"{value:.0f}" if 10 <= value < 1e4 else f"{value:.2g}"
