"""From the record of a walk to the result document: tables, verdicts, summary."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checkpoint import decode, token_texts
from .compare import common_positions
from .contract import TOLERANCE, UNIT_LIMIT
from .engines.protocol import TokenIds
from .errors import CheckpointError
from .logits import all_pairs, count_equal, most_likely, pairwise
from .padding import Padding
from .participants import Participant
from .replay.lockstep import LogitsSeen, Record
from .result import Environment, Greedy, LogitsPair, PromptResult, RunResult, TopTokens, Verdict
from .subject import Subject
from .verdict import judge, worst

#: Number of next tokens that are shown of each engine.
TOP = 8

#: Name of the float64 reference among the engines of a table.
TRUTH = "float64"


def prompt_result(
    subject: Subject,
    record: Record,
    chunks: Sequence[TokenIds],
    *,
    name: str,
    text: str = "",
    chosen: Mapping[str, TokenIds] | None = None,
    padding: Padding | None = None,
    prefill: int = 1,
) -> PromptResult:
    """Everything that a report says of one prompt.

    Args:
        subject: The model, for its tokenizer.
        record: What the walk left behind.
        chunks: Token ids [B, T] of each forward pass, the prompt first.
        prefill: Number of these passes that the prompt was fed in.
        name: Name of the prompt.
        text: The prompt as text; decoded from its tokens if empty.
        chosen: Greedy tokens [1, N] of each engine, the float64 reference among them.
        padding: Where the prompt has pads.
    """
    chosen = chosen or {}
    ids = np.concatenate(chunks[:prefill], axis=1)
    first = ids[0] if padding is None else ids[0][padding.real(0, ids.shape[1])[0]]
    compared = record.comparisons
    if prefill > 1:
        compared = [replace(comparison, prefill=prefill) for comparison in compared]
    return PromptResult(
        name=name,
        text=text or _decode(subject, first),
        token_ids=tuple(tuple(row) for row in ids.tolist()),
        tokens=tuple(_texts(subject, row) for row in np.concatenate(chunks, axis=1)),
        chunks=tuple(chunk.shape[1] for chunk in chunks),
        comparisons=tuple(compared),
        pairs=tuple(record.pairs),
        logits=_logits_table(record, chosen, prefill),
        greedy=tuple(
            Greedy(who, tuple(ids[0].tolist()), _decode(subject, ids[0]))
            for who, ids in chosen.items()
        ),
        padding="" if padding is None else padding.side,
        pads=() if padding is None else padding.counts,
        prefill=prefill,
        top=_top(subject, record, padding, prefill),
    )


def _top(
    subject: Subject, record: Record, padding: Padding | None, prefill: int
) -> tuple[TopTokens, ...]:
    """The most likely next tokens behind the first row of the prompt, of every engine."""
    if len(record.logits) < prefill:
        return ()
    seen = record.logits[prefill - 1]
    length = seen.reference.shape[1]
    back = 1 if padding is None else int(padding.length - padding.last[0])
    found = []
    for name, logits in {TRUTH: seen.reference, **seen.candidates}.items():
        if back > min(length, logits.shape[1]):
            continue
        ids, values, shares = most_likely(logits[0, -back], TOP)
        found.append(
            TopTokens(
                engine=name,
                token_ids=tuple(ids.tolist()),
                texts=_texts(subject, ids),
                logits=tuple(values.tolist()),
                probabilities=tuple(shares.tolist()),
            )
        )
    return tuple(found)


def conclude(
    subject: Subject,
    participants: Sequence[Participant],
    prompts: Sequence[PromptResult],
    *,
    case: str,
    environment: Environment,
) -> RunResult:
    """Judge every participant over all prompts.

    Args:
        subject: The model.
        participants: Those compared.
        prompts: Results that hold their comparisons.
        case: Name of the case.
        environment: What it ran on.
    """
    floor = _floor(participants, prompts)
    verdicts = tuple(
        judge(side.name, prompts, dict(side.unavailable), floor=floor) for side in participants
    )
    verdict = worst(v.verdict for v in verdicts)
    return RunResult(
        case=case,
        verdict=verdict,
        summary=_summarise(verdict, [v.candidate for v in verdicts if v.verdict is verdict]),
        model=subject.info(),
        engines=tuple(side.info() for side in participants),
        candidates=verdicts,
        prompts=tuple(prompts),
        environment=environment,
        tolerance=TOLERANCE,
        unit_limit=UNIT_LIMIT,
    )


def _logits_table(
    record: Record, chosen: Mapping[str, TokenIds], prefill: int
) -> tuple[LogitsPair, ...]:
    """Every pair of engines on the prompt's logits, the float64 reference among them."""
    if len(record.logits) < prefill:  # the walk broke off before
        return ()
    passes = [_everyone(seen) for seen in record.logits[:prefill]]
    everyone = passes[0]
    if prefill > 1:
        everyone = {
            name: np.concatenate([seen[name].reshape(-1, seen[name].shape[-1]) for seen in passes])
            for name in everyone
            if all(name in seen for seen in passes)
        }
    table = []
    for pair in _pairs(everyone):
        a, b = pair.a, pair.b
        if a in chosen and b in chosen and chosen[a].shape[1]:
            pair = replace(pair, greedy_agreement=count_equal(chosen[a][0], chosen[b][0]))
        table.append(pair)
    return tuple(table)


def _everyone(seen: LogitsSeen) -> dict[str, NDArray[Any]]:
    """Logits [B, T, V] of one forward pass; where it is padded [N, V], at its N tokens."""
    everyone = {TRUTH: seen.reference, **seen.candidates}
    if seen.real is None:
        return everyone
    return {name: logits[seen.real] for name, logits in everyone.items()}


def _pairs(logits: Mapping[str, NDArray[Any]]) -> list[LogitsPair]:
    """Every pair, at the positions that both cover."""
    if len({array.shape for array in logits.values()}) == 1:
        return all_pairs(logits)
    return [
        pairwise(a, x, b, y)
        for a, b in combinations(logits, 2)
        for x, y in [common_positions("BTV", logits[a], logits[b])]
    ]


def _floor(participants: Sequence[Participant], results: Sequence[PromptResult]) -> float | None:
    """How far float32 runs that are replayed and healthy are from float64, at the logits."""
    sizes = []
    for side in participants:
        verdict = judge(side.name, results, {})
        healthy = verdict.verdict in (Verdict.PASS, Verdict.ROUNDING)
        if side.dtype == "float32" and healthy and verdict.replayed:
            sizes += [
                c.difference.max_abs
                for result in results
                for c in result.comparisons
                if c.candidate == side.name and c.tap == "logits" and c.difference
            ]
    return max(sizes, default=None)


def _summarise(verdict: Verdict, names: Sequence[str]) -> str:
    who = ", ".join(names)
    return {
        Verdict.PASS: "All engines agree with the reference.",
        Verdict.ROUNDING: "All engines agree with the reference up to accumulated rounding.",
        Verdict.FAIL: f"{who} computes something else than the reference.",
        Verdict.NOT_FINITE: f"{who} computes NaN or infinity where the reference does not.",
        Verdict.NOT_COMPARABLE: f"{who} could not be compared with the reference.",
    }[verdict]


def _texts(subject: Subject, token_ids: NDArray[np.int64]) -> tuple[str, ...]:
    try:
        return tuple(token_texts(subject.checkpoint, token_ids.tolist()))
    except CheckpointError:  # no tokenizer: ids say it as well
        return tuple(map(str, token_ids.tolist()))


def _decode(subject: Subject, token_ids: NDArray[np.int64]) -> str:
    try:
        return decode(subject.checkpoint, token_ids.tolist())
    except CheckpointError:  # no tokenizer
        return ""
