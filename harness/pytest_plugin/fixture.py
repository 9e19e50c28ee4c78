"""What the ``parity`` fixture hands to a test."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .outcome import failure, logits_beyond, record, stem_of

if TYPE_CHECKING:
    from ..result import RunResult


class Parity:
    """Compares engines with a checkpoint, and keeps what it came to with the test.

    Args:
        item: The test.
    """

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._count = 0

    def check(
        self,
        engine: Any,
        *,
        checkpoint: str | Path,
        token_ids: Sequence[Sequence[int]] | None = None,
        prompt: str | Mapping[str, str] | None = None,
        padding: str | None = None,
        pad_token: int | None = None,
        dtype: str | None = None,
        decode: int = 0,
        greedy: int = 0,
        probe: bool = False,
        name: str | None = None,
    ) -> "RunResult":
        """Compare, write the report, and hand back the result without judging it.

        Where an exception or an interrupt ends the comparison, the report has what was compared
        by then.

        Args:
            engine: A transformers model in memory, an engine, the name of one (``hf:sdpa``), or a
                list of these.
            checkpoint: The files that say what is right: a folder, a GGUF file, a hub id or
                ``package:PKG/FILE``.
            token_ids: Rows of token ids, [B, T] of one length, or with ``padding``.
            prompt: A text in place of them, or several by name.
            padding: ``left`` or ``right``, the side on which shorter rows are filled up.
            pad_token: What they are filled up with: the config's, or 0, if not given.
            dtype: Of engines that are given by name; float32 if not given.
            decode: Number of decoding steps after each prompt that are compared too.
            greedy: Number of greedy tokens to compare.
            probe: Whether to run probes as well, or alone.
            name: Of the comparison; the test's name if not given.

        Raises:
            ParityError: The checkpoint, an engine or the input cannot be used.
        """
        result, _ = self._compare(
            engine,
            checkpoint=checkpoint,
            token_ids=token_ids,
            prompt=prompt,
            padding=padding,
            pad_token=pad_token,
            dtype=dtype,
            decode=decode,
            greedy=greedy,
            probe=probe,
            name=name,
        )
        return result

    def assert_parity(
        self, engine: Any, *, checkpoint: str | Path, logits_within: float | None = None, **how: Any
    ) -> "RunResult":
        """As :meth:`check`, and fail the test unless the verdict is pass or rounding.

        Args:
            engine: As for :meth:`check`.
            checkpoint: As for :meth:`check`.
            logits_within: Demand besides that the logits of every candidate, at all positions of
                the prompts, are so close to the float64 reference. It adds to the verdict and
                never softens it.
            **how: The other arguments of :meth:`check`.
        """
        __tracebackhide__ = True
        from ..errors import ParityError

        try:
            result, where = self._compare(engine, checkpoint=checkpoint, **how)
        except ParityError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        if result.exit_code != 0:
            raise pytest.fail.Exception(failure(result, where), pytrace=False)
        beyond = "" if logits_within is None else logits_beyond(result, logits_within)
        if beyond:
            raise pytest.fail.Exception(f"{beyond}\n\n{where}".rstrip(), pytrace=False)
        return result

    def _compare(
        self, engine: Any, *, name: str | None = None, **how: Any
    ) -> tuple["RunResult", str]:
        from .. import check

        result: RunResult = check(engine, name=name or self._item.name, on_stop=self._record, **how)
        return result, self._record(result)

    def _record(self, result: "RunResult") -> str:
        """Write the report of a comparison, also of one that stops; the error goes on then."""
        self._count += 1
        return record(self._item, result, stem_of(self._item.nodeid, self._count))
