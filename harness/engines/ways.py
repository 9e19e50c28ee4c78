"""Other ways to run the same tokens, which a law says come to the same.

They are no part of :class:`harness.engines.protocol.Engine`: an engine that has some of them says
so in an attribute ``abilities`` and takes ``way`` in its ``open``. What it does not say it is not
asked for.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import EngineError
from ..padding import Padding
from .protocol import Array, Emit, Engine, Session, TokenIds, takes_padding

#: What an engine may say that it can, each with what it means.
ABILITIES = {
    "beams": "generate(token_ids, count, cache, beams): greedy or beam search of its own",
    "blank": "Way.blank: columns in front that hold a token of no row",
    "crop": "Session.crop(length): go back to the first columns of a sequence",
    "first": "Way.first: positions begin at another number than 0",
    "hidden_states": "hidden_states(token_ids): what a caller is given besides logits",
    "keep": "Session.feed(..., keep=n): logits of the last n positions alone",
    "packed": "Way.lengths: several sequences one behind the other in a row",
    "reorder": "Session.reorder(rows): let rows of the batch go on from others",
    "resave": "resaved(folder): write the model as a checkpoint and load that",
    "threads": "Way.threads: number of threads",
}

#: Prefixes of abilities that come in kinds: ``cache:static``, ``mask:boolean``.
KINDS = {
    "cache": "Way.cache: a kind of KV cache other than the usual one",
    "dtype": "in_dtype(dtype, folder): load a checkpoint in another dtype",
    "mask": "Way.mask: a form in which the causal mask is handed over",
    "rope": "checkpoints of a type of rope scaling that not every engine takes",
}


#: A quantised cache has numbers of so many bits, one range for so many neighbouring channels of a
#: position, and is rounded when so many columns have come; until then they are kept as they are.
CACHE_BITS, CACHE_GROUP, CACHE_RECENT = 4, 8, 4

#: Columns that a static cache has room for.
CACHE_ROOM = 64

#: Kinds of KV cache, each with what it is.
CACHES = {
    "unwindowed": "keeps all columns, of layers with windows too",
    "recorded": "goes back to the columns before the last forward pass, over windows too",
    "static": f"has room for {CACHE_ROOM} columns from the beginning",
    "quantised": f"rounds to {CACHE_BITS} bits, by a range of each {CACHE_GROUP} neighbouring "
    f"channels of a position, when {CACHE_RECENT} columns have come",
    "float8": "rounds to 8-bit floats (e4m3), scaled by the largest of the first forward pass",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How tokens are run, where that is not as usual.

    Attributes:
        first: Position of the first token.
        mask: Form of the causal mask that is handed over, empty for none: then the engine makes
            its own.
        cache: Kind of KV cache, empty for the usual one.
        lengths: Lengths of the sequences that lie one behind the other in each row, empty for one
            sequence a row. None sees another, and positions begin anew.
        threads: Number of threads, None for the usual one.
        blank: Number of columns in front of the prompt in which every row has a pad. They are fed
            like others, in front of those of ``padding`` where there is some.
    """

    first: int = 0
    mask: str = ""
    cache: str = ""
    lengths: tuple[int, ...] = ()
    threads: int | None = None
    blank: int = 0

    @property
    def needs(self) -> frozenset[str]:
        """Abilities that it takes."""
        return frozenset(
            ability
            for ability, wanted in (
                ("first", self.first),
                (f"mask:{self.mask}", self.mask),
                (f"cache:{self.cache}", self.cache),
                ("packed", self.lengths),
                ("threads", self.threads),
                ("blank", self.blank),
            )
            if wanted
        )


class AbleSession(Session, Protocol):
    """One sequence, with what an engine may be able to besides."""

    def feed(
        self, token_ids: TokenIds, emit: Emit | None = None, *, keep: int | None = None
    ) -> Array:
        """Run the next tokens; logits of the last ``keep`` positions alone, of all if None."""
        ...

    def crop(self, length: int) -> None:
        """Forget all columns behind the first ``length``."""
        ...

    def reorder(self, rows: Sequence[int]) -> None:
        """Let row ``i`` of the batch go on from what row ``rows[i]`` was."""
        ...


class AbleEngine(Engine, Protocol):
    """An engine with all abilities."""

    @property
    def abilities(self) -> frozenset[str]:
        """Names from :data:`ABILITIES`, and kinds of :data:`KINDS`."""
        ...

    def open(
        self, *, cache: bool, padding: Padding | None = None, way: Way | None = None
    ) -> AbstractContextManager[AbleSession]:
        """Begin a new sequence in some way."""
        ...

    def generate(
        self, token_ids: TokenIds, count: int, *, cache: bool, beams: int = 1
    ) -> NDArray[np.int64]:
        """The ``count`` tokens [B, count] that its own search puts behind token ids [B, T]."""
        ...

    def hidden_states(self, token_ids: TokenIds) -> list[Array]:
        """What callers are given as hidden states: layers + 1 arrays [B, T, C]."""
        ...

    def resaved(self, folder: Path) -> "AbleEngine":
        """Write the model into an empty folder and load it from there."""
        ...

    def in_dtype(self, dtype: str, folder: Path) -> "AbleEngine":
        """Load a checkpoint as this engine would, in another dtype."""
        ...


def abilities(engine: Engine) -> frozenset[str]:
    """What an engine says that it can besides computing logits."""
    said: frozenset[str] = getattr(engine, "abilities", frozenset())
    return said | (frozenset({"padding"}) if takes_padding(engine) else frozenset())


def begin_in(
    engine: Engine, way: Way | None, *, cache: bool, padding: Padding | None = None
) -> AbstractContextManager[Session]:
    """Begin a new sequence in some way.

    Raises:
        EngineError: The engine does not say that it can.
    """
    wanted = (way.needs if way else frozenset()) | ({"padding"} if padding else frozenset())
    lacking = wanted - abilities(engine)
    if lacking:
        raise EngineError(
            f"engine {engine.name}",
            expected=f"one that is able to: {', '.join(sorted(lacking))}",
            found=f"one that says it is able to: {', '.join(sorted(abilities(engine))) or 'none'}",
            advice="teach the engine, or leave these laws out",
        )
    arguments: dict[str, Any] = {}
    if padding is not None:
        arguments["padding"] = padding
    if way is not None and way.needs:
        arguments["way"] = way
    return cast(AbleEngine, engine).open(cache=cache, **arguments)
