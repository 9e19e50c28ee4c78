"""One walk through the reference with all participants in lockstep."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, ExitStack

from .engines.protocol import TokenIds
from .environment import side_by_side
from .padding import Padding
from .participants import Participant
from .replay.lane import Measure
from .replay.lockstep import Candidate, Lockstep, Record, Replayed
from .subject import Subject


def walk(
    subject: Subject,
    participants: Sequence[Participant],
    chunks: Sequence[TokenIds],
    *,
    dtype: str,
    threads: int | None,
    padding: Padding | None = None,
    progress: Callable[[int, int], None],
    on_failure: Callable[[Replayed], None] | None = None,
    measure: Measure | None = None,
    record: Record | None = None,
    lanes: Callable[[int | None], AbstractContextManager[Executor]] = side_by_side,
) -> Record:
    """Compare every tap of every participant, op by op.

    Args:
        subject: The model.
        participants: Whom to compare.
        chunks: Token ids [B, T] of each forward pass: the prompt, then decoding steps.
        dtype: Dtype to which the float64 lane's parameters are rounded.
        threads: CPU threads, None for as many as there are.
        padding: Where the prompt has pads, None for nowhere. What is computed there is not
            compared.
        progress: Told how many layers are done, and of how many.
        on_failure: Called with every op that does not replay, in data-flow order.
        measure: Fits the constants of every op; see :data:`harness.replay.lane.Measure`.
        record: Filled in, and returned; it has what was compared by then where the walk breaks
            off.
        lanes: Makes what runs the lanes from the number of threads; it is closed before the
            participants are, because a lane may be waiting for one.
    """
    with ExitStack() as stack:
        candidates = [
            Candidate(
                side.name,
                side.dtype,
                stack.enter_context(side.source(chunks, padding)),
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
            on_failure=on_failure,
            measure=measure,
            on_layer=lambda chunk, layer: progress(chunk * layers + layer, len(chunks) * layers),
            record=record,
        )
        try:
            _feed(subject, step, chunks, padding)
            record = step.record
        except BaseException:
            step.give_up()
            raise
        progress(len(chunks) * layers, len(chunks) * layers)
        return record


def _feed(
    subject: Subject, step: Lockstep, chunks: Sequence[TokenIds], padding: Padding | None
) -> None:
    """Walk through all forward passes."""
    position = 0
    for index, tokens in enumerate(chunks):
        end = position + tokens.shape[1]
        real = None if padding is None else padding.chunk(position, end)
        step.begin(index, start=position, real=real)
        queries = None if real is None else real.queries
        if index == 0:
            _, cache = subject.model.prefill(step, tokens, real=queries)
        else:
            subject.model.extend(step, tokens, cache, position=position, real=queries)
        position = end
