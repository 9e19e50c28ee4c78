"""One walk through the reference with all participants in lockstep."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, ExitStack

from .engines.protocol import TokenIds
from .environment import side_by_side
from .participants import Participant
from .replay.lockstep import Candidate, Lockstep, Record
from .subject import Subject


def walk(
    subject: Subject,
    participants: Sequence[Participant],
    chunks: Sequence[TokenIds],
    *,
    dtype: str,
    threads: int | None,
    progress: Callable[[int, int], None],
    lanes: Callable[[int | None], AbstractContextManager[Executor]] = side_by_side,
) -> Record:
    """Compare every tap of every participant, op by op.

    Args:
        subject: The model.
        participants: Whom to compare.
        chunks: Token ids [B, T] of each forward pass: the prompt, then decoding steps.
        dtype: Dtype to which the float64 lane's parameters are rounded.
        threads: CPU threads, None for as many as there are.
        progress: Told how many layers are done, and of how many.
        lanes: Makes what runs the lanes from the number of threads; it is closed before the
            participants are, because a lane may be waiting for one.
    """
    with ExitStack() as stack:
        candidates = [
            Candidate(
                side.name,
                side.dtype,
                stack.enter_context(side.source(chunks)),
                dict(side.unavailable),
                side.parameters,
            )
            for side in participants
        ]
        layers = subject.model.config.layers
        step = Lockstep(
            candidates,
            dtype=dtype,
            executor=stack.enter_context(lanes(threads)),
            on_layer=lambda chunk, layer: progress(chunk * layers + layer, len(chunks) * layers),
        )
        position = 0
        for index, tokens in enumerate(chunks):
            step.begin(index, start=position)
            if index == 0:
                _, cache = subject.model.prefill(step, tokens)
            else:
                subject.model.extend(step, tokens, cache, position=position)
            position += tokens.shape[1]
        progress(len(chunks) * layers, len(chunks) * layers)
    return step.record
