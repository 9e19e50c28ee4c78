"""Diagnosis of one run: by replay while it goes on, by whole forward passes where that is not."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..faults.catalogue import catalogue
from ..faults.fault import Facts
from ..participants import Participant
from ..replay.call import Made
from ..replay.lockstep import Record, Replayed
from ..result import Fit, RunResult
from ..subject import Subject
from .doctor import Doctor
from .weak import Progress, Weak

Array = NDArray[Any]


class Diagnosing:
    """What a run hands over to be diagnosed, and what comes of it.

    Args:
        subject: The model.
        participants: Whom to look at.
    """

    def __init__(self, subject: Subject, participants: Sequence[Participant]) -> None:
        checkpoint, known = subject.checkpoint, catalogue()
        self._doctor = Doctor(
            known,
            Facts(checkpoint.config, checkpoint.tensors),
            {side.name: side.parameters for side in participants},
        )
        self._weak = Weak(known, subject)
        self._prompt = ""
        self._tokens: NDArray[np.int64] = np.zeros((1, 0), dtype=np.int64)

    def begin(self, prompt: str, chunks: Sequence[NDArray[np.int64]]) -> None:
        """Enter the next prompt: token ids [B, T] of each forward pass."""
        self._prompt, self._tokens = prompt, chunks[0]
        self._doctor.begin(prompt, chunks)

    @property
    def look(self) -> Callable[[Replayed], None]:
        """Called with every op that does not replay."""
        return self._doctor.look

    @property
    def measure(self) -> Callable[[Made, Array, Array], tuple[Fit, ...]]:
        """Called with every op, to fit its constants."""
        return self._doctor.measure

    def end(self, record: Record) -> None:
        """Leave the prompt."""
        if record.logits and record.logits[0].real is None:
            self._weak.keep(self._prompt, self._tokens, record.logits[0])

    def so_far(self, result: RunResult) -> RunResult:
        """The result with what was found while it went on."""
        return replace(result, diagnoses=self._doctor.diagnoses())

    def complete(self, result: RunResult, *, progress: Progress) -> RunResult:
        """The result with everything that was found."""
        return self._weak.complete(self.so_far(result), progress=progress)
