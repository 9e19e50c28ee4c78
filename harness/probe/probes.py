"""The probes: data, and which of them a model gets."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..case import Prompt
from ..result import ProbeInfo
from .traits import Traits
from .vocabulary import Vocabulary

#: Tokens of a row that needs no certain length.
_LENGTH = 12

#: Rows of padded batches, from the longest to a single token.
_RAGGED = (9, 5, 1)

#: A window up to this size is also crossed in passes: longer prompts cost too much to run again.
_SMALL_WINDOW = 64

#: Positions beyond these are no numbers of the dtype any more.
EXACT_POSITIONS = {"bfloat16": 256, "float16": 2048}


@dataclass(frozen=True, slots=True)
class Probe:
    """One input.

    Attributes:
        name: Unique within a run.
        why: What it brings to light, in a sentence.
        topics: Topics of the faults that it can show; see :mod:`harness.faults`.
        rows: Token ids.
        labels: What each row is; empty where that goes without saying.
        prefill: Number of tokens of each forward pass, empty for one.
        decode: Number of decoding steps.
        padding: Side on which rows are padded, None for rows of one length.
    """

    name: str
    why: str
    topics: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]
    labels: tuple[str, ...] = ()
    prefill: tuple[int, ...] = ()
    decode: int = 0
    padding: str | None = None

    @property
    def length(self) -> int:
        """Number of tokens of the longest row."""
        return max(map(len, self.rows))

    def prompt(self) -> Prompt:
        """The probe as a prompt of a case."""
        return Prompt(
            self.name,
            token_ids=self.rows,
            padding=self.padding,
            prefill=self.prefill,
            decode=self.decode,
            greedy=0,
        )

    def info(self) -> ProbeInfo:
        """What a report says of it."""
        return ProbeInfo(
            name=self.name,
            why=self.why,
            topics=self.topics,
            rows=self.labels,
            lengths=tuple(map(len, self.rows)),
            passes=self.prefill or (self.length,),
            decode=self.decode,
            padding=self.padding or "",
        )


def make_probes(
    traits: Traits, words: Vocabulary, *, dtype: str, limit: int, padded: bool = True
) -> list[Probe]:
    """The probes of a model.

    Args:
        traits: The model.
        words: Its vocabulary.
        dtype: Of the candidates.
        limit: Most tokens of a row.
        padded: Whether the candidates take padded batches.
    """
    return [
        _rows(words, min(_LENGTH, limit - 1)),
        *_passes(traits, words, min(_LENGTH - 1, limit - 1)),
        *(_padded(traits, words, limit) if padded else ()),
        *(p for size in traits.windows for p in _window(words, size, limit)),
        *(p for length in traits.grows for p in _growth(words, length, limit)),
        *_positions(traits, words, dtype, limit),
    ]


def _rows(words: Vocabulary, length: int) -> Probe:
    """A batch of different rows of one length."""
    rows: dict[str, tuple[int, ...]] = {"ordinary tokens": words.ordinary(length)}
    if "BOS" in words.special:
        bos = words.special["BOS"]
        rows["the same behind BOS"] = (bos, *words.ordinary(length - 1))
    rows |= {
        "one token again and again": words.ordinary(1, skip=3) * length,
        "smallest rows of the embedding": words.smallest(length),
        "largest rows of the embedding": words.largest(length),
        "first, last and special ids": words.edges(length),
    }
    return Probe(
        name="probe rows",
        why="Rows of a batch that differ: epsilon shows where the mean square is small, positions "
        "where all keys are equal, embedding and head at the ends of the vocabulary.",
        topics=(
            *("input.bos", "input.special", "input.batch", "embedding.row", "norm.eps"),
            *("rope.theta", "rope.pairing", "attention.scale", "attention.gqa", "head.vocab"),
        ),
        rows=tuple(rows.values()),
        labels=tuple(rows),
    )


def _passes(traits: Traits, words: Vocabulary, length: int) -> Iterator[Probe]:
    if length < 2:
        return
    yield Probe(
        name="probe passes",
        why="A prompt in two passes and a decoding step: positions and masks behind a cache.",
        topics=("cache.position", "mask.causal", "rope.position", "rope.position_cache"),
        rows=(words.ordinary(length, skip=20),),
        prefill=((length + 1) // 2, length // 2),
        decode=1,
    )


def _padded(traits: Traits, words: Vocabulary, limit: int) -> Iterator[Probe]:
    lengths = [length for length in _RAGGED if length < limit]
    if len(lengths) < 2:
        return
    rows = tuple(words.ordinary(length, skip=40 + length) for length in lengths)
    for side, decode in (("left", 1), ("right", 0)):
        yield Probe(
            name=f"probe padded {side}",
            why=f"Rows of unequal length, padded on the {side}: who reads pads, who counts them.",
            topics=("mask.padding", "rope.position" if traits.ropes else "embedding.position"),
            rows=rows,
            decode=decode,
            padding=side,
        )


def _window(words: Vocabulary, size: int, limit: int) -> Iterator[Probe]:
    if size + 4 > limit:
        return
    topics = ("mask.window", "cache.window")
    yield Probe(
        name=f"probe window {size}",
        why="As many tokens as the window has, and decoding steps beyond: the oldest key goes.",
        topics=topics,
        rows=(words.ordinary(size),),
        decode=2,
    )
    yield Probe(
        name=f"probe window {size} + 1",
        why="One token more than the window has, at once: the last query must not read the first.",
        topics=topics[:1],
        rows=(words.ordinary(size + 1),),
    )
    if 2 <= size <= _SMALL_WINDOW:
        yield Probe(
            name=f"probe window {size} in passes",
            why="The window is crossed within a pass behind a cache, which has dropped keys.",
            topics=topics,
            rows=(words.ordinary(size + 4),),
            prefill=(size - 1, 5),
            decode=1,
        )


def _growth(words: Vocabulary, length: int, limit: int) -> Iterator[Probe]:
    if length + 2 > limit or length < 2:
        return
    topics = ("rope.scaling", "rope.scaling_length")
    yield Probe(
        name=f"probe length {length} + 2",
        why="Beyond the length at which the rotary embedding begins to change with the length.",
        topics=topics,
        rows=(words.ordinary(length + 2),),
    )
    yield Probe(
        name=f"probe length {length} by decoding",
        why="The same length reached by decoding: keys in the cache keep their rotation.",
        topics=topics,
        rows=(words.ordinary(length - 1),),
        decode=3,
    )


def _positions(traits: Traits, words: Vocabulary, dtype: str, limit: int) -> Iterator[Probe]:
    exact = EXACT_POSITIONS.get(dtype)
    if exact is None or not traits.ropes or exact + 4 > limit:
        return
    yield Probe(
        name=f"probe positions beyond {exact}",
        why=f"Positions that are no {dtype} numbers: angles must be formed in float32.",
        topics=("rope.precision",),
        rows=(words.ordinary(exact + 4),),
    )
