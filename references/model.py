"""A model of any family: config, parameters, and the rule that cache and position agree."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import families
from .blocks import Chunk
from .cache import KVCache
from .errors import InputError
from .step import Array, Handle, Step
from .weights import Weights

TokenIds = NDArray[np.int64]

#: [B, T], true where a column of the batch holds a token and false where it is padding.
Real = NDArray[np.bool_]


class Model:
    """A decoder language model.

    Args:
        raw: config.json as written.
        arrays: Stored parameters by name. They are read only when a step lifts them.
        defaults: What transformers takes for absent config keys; see
            :class:`references.config.ConfigReader`.

    Attributes:
        config: The family's own config.
        shapes: Name and shape of every parameter that the config implies.
        derived: Regular expressions of tensors that a checkpoint may carry without need.

    Raises:
        ConfigError: The config has a family, key or value that is not implemented.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        arrays: Mapping[str, Array],
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self._family = families.load(str(raw.get("model_type")))
        self.config: families.Config = self._family.read_config(raw, defaults or {})
        self.shapes = self._family.parameters(self.config)
        self.derived = self._family.DERIVED
        self._weights = Weights(arrays)

    def prefill(
        self, step: Step, token_ids: TokenIds, *, real: Real | None = None, first: int = 0
    ) -> tuple[Handle, KVCache]:
        """Begin a new sequence: token ids [B, T] to logits [B, T, V] and the cache behind them.

        Args:
            step: Makes every intermediate.
            token_ids: [B, T] integers.
            real: [B, T], false at padding; None where there is none.
            first: Position of the first token.
        """
        cache = KVCache(self.config.layers, first=first)
        return self.extend(step, token_ids, cache, position=0, real=real), cache

    def extend(
        self,
        step: Step,
        token_ids: TokenIds,
        cache: KVCache,
        *,
        position: int,
        real: Real | None = None,
    ) -> Handle:
        """Go on with a sequence: token ids [B, T] to logits [B, T, V].

        Padding changes nothing for tokens: each is at the position that is the number of tokens
        before it in its row, and reads tokens alone. What comes out at padding means nothing.

        Args:
            step: Makes every intermediate.
            token_ids: [B, T] integers.
            cache: Of the sequence so far; is extended.
            position: Of the first new token. It must be the number of positions in the cache, of
                columns where the batch is padded.
            real: [B, T], false at padding; None where there is none.

        Raises:
            CacheError: The position is another than the cache's length, or the batch another size.
            InputError: Token ids that are no [B, T] array of rows of the embedding; padding of
                another shape, or behind tokens that a window goes back to.
        """
        self.require_tokens(token_ids)
        batch, length = token_ids.shape
        _require_real(real, token_ids.shape)
        cache.require(position, batch=batch)
        seen = cache.note(real, length=length)
        chunk = Chunk(cache=cache, start=position, length=length, batch=batch, real=seen)
        return self._family.forward(step, self._weights, self.config, token_ids, chunk)

    def require_tokens(self, token_ids: TokenIds) -> None:
        """Refuse token ids that the model has no row for.

        Raises:
            InputError: They are no [B, T] array of rows of the embedding.
        """
        if token_ids.ndim != 2 or token_ids.size == 0 or token_ids.dtype.kind not in "iu":
            raise InputError(
                "token ids",
                expected="integers of shape [B, T], with at least one token",
                found=f"{token_ids.dtype} of shape {list(token_ids.shape)}",
                advice="give one list of ids for each sequence of the batch",
            )
        low, high = int(token_ids.min()), int(token_ids.max())
        if low < 0 or high >= self.config.vocab:
            raise InputError(
                "token ids",
                expected=f"0 to {self.config.vocab - 1}, the rows of the embedding",
                found=str(low if low < 0 else high),
                advice="use the tokenizer that belongs to this checkpoint",
            )


def _require_real(real: Real | None, shape: tuple[int, ...]) -> None:
    if real is not None and (real.dtype != np.bool_ or real.shape != shape):
        raise InputError(
            "padding",
            expected=f"booleans of the shape of the token ids, {list(shape)}",
            found=f"{real.dtype} of shape {list(real.shape)}",
            advice="say of each token id whether it is a token, true, or padding, false",
        )
