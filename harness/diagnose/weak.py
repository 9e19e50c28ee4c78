"""Causes for candidates of which no op could be replayed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..faults.fault import Catalogue, Facts
from ..replay.lockstep import LogitsSeen
from ..result import CandidateVerdict, Cause, Diagnosis, Evidence, RunResult, Verdict
from ..subject import Subject
from .forward import POSITIONS, Explained, rank

Array = NDArray[Any]

#: A mistake that explains less than this is no cause.
_SHARE = 0.5

#: Causes that are listed at most.
_LISTED = 5

#: Stage, what of it is done, and how much there is.
Progress = Callable[[str, int, int], None]


class Weak:
    """Keeps what a later look at the logits alone needs.

    Args:
        catalogue: The mistakes to try.
        subject: The model.
    """

    def __init__(self, catalogue: Catalogue, subject: Subject) -> None:
        self._catalogue = catalogue
        self._subject = subject
        self._prompt = ""
        self._tokens: NDArray[np.int64] | None = None
        self._logits: dict[str, Array] = {}

    def keep(self, prompt: str, tokens: NDArray[np.int64], seen: LogitsSeen) -> None:
        """Remember the first logits of the first prompt: token ids [B, T], logits [B, T, V]."""
        if self._tokens is not None:
            return
        self._prompt, self._tokens = prompt, tokens[:, :POSITIONS]
        whole = seen.reference.shape
        self._logits = {
            name: logits[:, :POSITIONS].astype(np.float32)
            for name, logits in seen.candidates.items()
            if logits.shape == whole
        }

    def complete(self, result: RunResult, *, progress: Progress) -> RunResult:
        """The result with causes for candidates that fail where nothing could be replayed."""
        named = {d.candidate for d in result.diagnoses if d.causes}
        added = [
            self._look(candidate, _dtype(result, candidate.candidate), progress)
            for candidate in result.candidates
            if candidate.verdict is Verdict.FAIL
            and candidate.candidate not in named
            and candidate.first_divergence is not None
            and not candidate.first_divergence.fresh
            and candidate.candidate in self._logits
        ]
        return replace(result, diagnoses=(*result.diagnoses, *added)) if added else result

    def _look(self, candidate: CandidateVerdict, dtype: str, progress: Progress) -> Diagnosis:
        name, tokens = candidate.candidate, self._tokens
        assert tokens is not None
        checkpoint = self._subject.checkpoint
        ranked = rank(
            self._subject.model,
            Facts(checkpoint.config, checkpoint.tensors, (tokens,)),
            tokens,
            self._logits[name].astype(np.float64),
            dtype=dtype,
            faults=list(self._catalogue.faults.values()),
            progress=lambda done, total: progress(f"{name}: whole passes", done, total),
        )
        likely = _likely(ranked)
        best = ranked[0] if ranked else None
        said = [
            f"{len(ranked)} whole forward passes, each with one mistake in all layers, were run"
        ]
        if best is not None and not likely:
            said.append(
                f"the nearest, {best.fault.id}, explains {max(0.0, best.share):.0%} of the squared "
                "difference of the logits"
            )
        return Diagnosis(
            candidate=name,
            prompt=self._prompt,
            chunk=0,
            tap="logits",
            places=((self._prompt, 0, "logits"),),
            causes=tuple(map(_cause, likely)),
            observations=tuple(said),
        )


def _likely(ranked: Sequence[Explained]) -> list[Explained]:
    """The best way of each mistake that explains most of the difference, a few of them."""
    best: dict[str, Explained] = {}
    for explained in ranked:
        if explained.share >= _SHARE:
            best.setdefault(explained.fault.id, explained)
    return list(best.values())[:_LISTED]


def _cause(explained: Explained) -> Cause:
    fault = explained.fault
    return Cause(
        fault=fault.id,
        title=fault.title,
        detail=explained.detail,
        evidence=Evidence.FORWARD,
        explained=explained.share,
        units=None,
        advice=fault.advice,
        distinguish=fault.distinguish,
        reports=fault.links,
    )


def _dtype(result: RunResult, name: str) -> str:
    return next(engine.dtype for engine in result.engines if engine.name == name)
