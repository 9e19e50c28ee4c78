"""Everything that is wrong with a trace, told at once."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..replay.precision import DTYPES
from ..taps import AXES, AXES_OF_TAP, BOOLEAN, axes_of, declared, format_shape, split
from .container import Container, Entry
from .head import TraceHead, read_head
from .layout import stored_sizes
from .problems import Problem, nearest
from .write import PADDING

#: Shape of every tap of every chunk, in the axes of the table.
Shapes = Mapping[tuple[int, str], tuple[int, ...]]

#: Problems of one kind that are shown one by one before the rest is only counted.
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Findings:
    """What a check came to.

    Attributes:
        head: The metadata, None where it cannot be used.
        taps: Sizes of the axes of each readable tap, by chunk and name.
        problems: In the order of the file: container, metadata, tensors.
    """

    head: TraceHead | None
    taps: Mapping[tuple[int, str], dict[str, int]] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Problems with which the trace cannot be compared."""
        return tuple(p for p in self.problems if not p.warning)


def inspect(container: Container) -> Findings:
    """Judge header and metadata of a trace; touches no tensor.

    Args:
        container: The scanned file.
    """
    head, problems = read_head(container.metadata)
    problems = [*container.problems, *problems]
    if head is None:
        return Findings(None, {}, tuple(problems))
    taps: dict[tuple[int, str], dict[str, int]] = {}
    for name, entry in container.entries.items():
        if name == PADDING:
            continue
        found = _read_name(name, head)
        if isinstance(found, Problem):
            problems.append(found)
            continue
        problem = _judge_dtype(name, found[1], entry, head)
        problems += [problem] if problem else []
        sizes = stored_sizes(head.layout_of(split(found[1]).kind), axes_of(found[1]), entry.shape)
        if sizes is None:
            problems.append(_misfit(name, found[1], entry, head))
        else:
            taps[found] = sizes
    problems += _judge_lengths(taps, head)
    problems += _judge_sizes(taps)
    problems += _judge_gaps(taps, head)
    return Findings(head, taps, tuple(problems))


def judge_against_model(findings: Findings, shapes: Shapes, *, vocab: int) -> list[Problem]:
    """What the model that a trace is of makes of it.

    Args:
        findings: Of the trace.
        shapes: Of the taps that the model has.
        vocab: Number of token ids.
    """
    head = findings.head
    if head is None:
        return []
    problems = []
    largest = max(max(row) for row in head.token_ids)
    if largest >= vocab:
        advice = "write the ids that the model was fed"
        problems.append(Problem("metadata: token_ids", f"0 to {vocab - 1}", str(largest), advice))
    for place, sizes in findings.taps.items():
        if place not in shapes:
            problems.append(_unknown_to_model(place, shapes))
            continue
        axes = axes_of(place[1])
        last = head.layout_of(split(place[1]).kind).positions == "last"
        expected = dict(zip(axes, shapes[place], strict=True))
        wrong = [a for a in axes if sizes.get(a, 1) != expected[a] and not (a == "T" and last)]
        if wrong:
            shape = tuple(sizes.get(axis, 1) for axis in axes)
            problems.append(
                Problem(
                    _name(place),
                    format_shape(axes, shapes[place]),
                    format_shape(axes, shape),
                    _shape_advice(wrong[0]),
                )
            )
    absent = [
        place
        for place in shapes
        if place not in findings.taps and declared(head.unavailable, place[1]) is None
    ]
    if absent:
        advice = 'write them, or say why not under "unavailable": {"attn.scores": "fused kernel"}'
        problems.append(Problem("taps", f"all {len(shapes)} of the model", _listed(absent), advice))
    return problems


def judge_values(container: Container) -> list[Problem]:
    """Look at every number of a trace: non-finite ones are told, as warnings."""
    problems = []
    for name, array in container.map().items():
        if array.dtype.kind in "bu":
            continue
        flat = array.reshape(-1)
        bad = sum(
            int(np.count_nonzero(~np.isfinite(flat[at : at + _BLOCK])))
            for at in range(0, flat.size, _BLOCK)
        )
        if bad:
            hint = "take scores before the mask is added" if "scores" in name else "see if it is so"
            found = f"{bad} of {flat.size} are NaN or infinite"
            problems.append(Problem(name, "finite numbers", found, hint, warning=True))
    return problems


_BLOCK = 1 << 20


def _read_name(name: str, head: TraceHead) -> tuple[int, str] | Problem:
    number, slash, tap = name.partition("/")
    if not slash or not number.isascii() or not number.isdigit() or len(number) > 9:
        advice = "name tensors by chunk and tap: 0/layers.3.attn.q"
        return Problem(name, "a name like 0/embed", repr(name)[:80], advice, warning=True)
    chunk = int(number)
    if chunk >= len(head.chunks):
        expected = f"chunks 0 to {len(head.chunks) - 1}, as the metadata says"
        return Problem(name, expected, str(chunk), "write the number of tokens of each chunk")
    if number != str(chunk):
        return Problem(name, f"{chunk}/{tap}", repr(name)[:80], "write chunks without zeros ahead")
    kind = split(tap).kind
    if kind not in AXES_OF_TAP:
        advice = nearest(kind, AXES_OF_TAP) or "it is not compared; docs/taps.md lists the taps"
        return Problem(name, "a known tap", repr(kind)[:80], advice, warning=True)
    return chunk, tap


def _judge_dtype(name: str, tap: str, entry: Entry, head: TraceHead) -> Problem | None:
    kind, is_mask = entry.dtype.kind, split(tap).kind in BOOLEAN
    additive = head.layout_of(split(tap).kind).values == "additive"
    if is_mask and not additive and kind not in "bu":
        advice = "write BOOL or U8"
        advice += ', or note "values": "additive"' if axes_of(tap) == "BTS" else ""
        return Problem(name, "BOOL or U8, as it is a mask", str(entry.dtype), advice)
    if kind in "bu" and not (is_mask and not additive):
        advice = "write the floats that the engine computed"
        return Problem(name, "floating-point numbers", str(entry.dtype), advice)
    engine = DTYPES.get(head.engine.dtype)
    if kind not in "bu" and engine is not None and entry.dtype.itemsize < engine.itemsize:
        advice = "write it as computed: what is rounded on the way to the file looks like a fault"
        found = str(entry.dtype)
        return Problem(name, f"{engine}, the engine's dtype", found, advice, warning=True)
    return None


def _misfit(name: str, tap: str, entry: Entry, head: TraceHead) -> Problem:
    layout = head.layout_of(split(tap).kind)
    axes = layout.axes or axes_of(tap)
    extra = f", {layout.heads} heads" if "(" in axes else ""
    extra += f", each kv head {layout.repeats} times" if layout.repeats > 1 else ""
    advice = (
        f'note under "layout" how {split(tap).kind} is stored, or write it as docs/taps.md says'
    )
    return Problem(name, f"axes {axes}{extra}", str(list(entry.shape)), advice)


def _judge_lengths(
    taps: Mapping[tuple[int, str], dict[str, int]], head: TraceHead
) -> Iterable[Problem]:
    """Batch and positions must be those of the token ids."""
    rows, ends = len(head.token_ids), np.cumsum(head.chunks)
    for (chunk, tap), sizes in taps.items():
        name, new, seen = f"{chunk}/{tap}", head.chunks[chunk], int(ends[chunk])
        last = head.layout_of(split(tap).kind).positions == "last"
        if sizes.get("B", 1 if rows == 1 else 0) != rows:
            found = str(sizes.get("B", "no batch axis"))
            advice = "write all rows of the batch, or the token_ids of this one"
            yield Problem(name, f"B={rows}, the rows of token_ids", found, advice)
        t = sizes.get("T", new)
        if t != new and not (last and 0 < t < new):
            advice = 'write every position, or note "positions": "last" in its layout'
            yield Problem(name, f"T={new}, as chunks says", f"T={t}", advice)
        s = sizes.get("S", seen)
        if not new <= s <= seen:
            advice = "write the keys that attention reads, those of the cache and of this chunk"
            yield Problem(name, f"S={new} to {seen} keys", f"S={s}", advice)


def _judge_sizes(taps: Mapping[tuple[int, str], dict[str, int]]) -> Iterable[Problem]:
    """Axes that belong to the model must have one size throughout."""
    votes: dict[str, Counter[int]] = defaultdict(Counter)
    for sizes in taps.values():
        for axis, size in sizes.items():
            votes[axis][size] += 1
    usual = {
        axis: counts.most_common(1)[0][0] for axis, counts in votes.items() if axis in "HKDCFV"
    }
    for place, sizes in taps.items():
        for axis, size in sizes.items():
            if axis in usual and size != usual[axis]:
                expected = f"{axis}={usual[axis]} ({AXES[axis]}), as in most taps"
                yield Problem(_name(place), expected, f"{axis}={size}", _shape_advice(axis))


def _shape_advice(axis: str) -> str:
    return {
        "K": 'kv heads look repeated for the query heads: write them once, or note "repeats"',
        "H": "write the query heads, each once",
        "T": 'write every position, or note "positions": "last" in its layout',
    }.get(axis, "see docs/taps.md for what belongs there")


def _judge_gaps(
    taps: Mapping[tuple[int, str], dict[str, int]], head: TraceHead
) -> Iterable[Problem]:
    """A kind of tap that some chunks or layers have must be in all, or be declared."""
    if not taps:
        yield Problem("taps", "at least one", "none", "write tensors named 0/embed, 0/logits, ...")
        return
    layers = sorted({n for _, tap in taps if (n := split(tap).layer) is not None})
    everywhere = range(layers[-1] + 1) if layers else range(0)
    kinds = dict.fromkeys((split(tap).kind, split(tap).layer is not None) for _, tap in taps)
    absent = []
    for chunk in range(len(head.chunks)):
        for kind, layered in kinds:
            names = [f"layers.{n}.{kind}" for n in everywhere] if layered else [kind]
            absent += [
                (chunk, tap)
                for tap in names
                if (chunk, tap) not in taps and declared(head.unavailable, tap) is None
            ]
    if absent:
        advice = 'write them, or say why not under "unavailable": {"layers.[4-9].*": "not traced"}'
        expected = "a tap of one chunk and layer in all of them"
        yield Problem("taps", expected, _listed(absent), advice)
    both = [_name(place) for place in taps if declared(head.unavailable, place[1]) is not None]
    if both:
        found = f"{len(both)} in the file, first {both[0]}"
        advice = "take them off the list: they are passed over"
        yield Problem("metadata: unavailable", "taps not in the file", found, advice, warning=True)


def _unknown_to_model(place: tuple[int, str], shapes: Shapes) -> Problem:
    known = [tap for chunk, tap in shapes if chunk == place[0]]
    advice = nearest(place[1], known) or "it is not compared"
    return Problem(_name(place), "a tap of this model", repr(place[1]), advice, warning=True)


def _listed(places: list[tuple[int, str]]) -> str:
    kinds = Counter(split(tap).kind for _, tap in places)
    shown = [f"{kind} ({count})" for kind, count in list(kinds.items())[:_SHOWN]]
    more = f" and {len(kinds) - _SHOWN} more kinds" if len(kinds) > _SHOWN else ""
    return f"{len(places)} are absent: {', '.join(shown)}{more}, first {_name(places[0])}"


def _name(place: tuple[int, str]) -> str:
    return f"{place[0]}/{place[1]}"


def chunks_of(head: TraceHead) -> list[NDArray[np.int64]]:
    """Token ids [B, T] of each forward pass of a trace."""
    ids = np.array(head.token_ids, dtype=np.int64)
    return list(np.split(ids, np.cumsum(head.chunks)[:-1], axis=1))


def judge_fingerprint(head: TraceHead, fingerprint: str, model: str) -> list[Problem]:
    """Whether a trace claims other weights than those of a model."""
    claimed = head.model.fingerprint
    if claimed == fingerprint:
        return []
    advice = f"write {fingerprint} there if the engine ran these weights"
    found = claimed or "none"
    return [
        Problem(
            "metadata: model", f"the fingerprint of {model}", found, advice, warning=not claimed
        )
    ]
