"""Records on the reference: each op of a recorded run is replayed in float64, and causes named.

Only for families that have a reference. What a record holds by the names of modules is handed over
by the names of :mod:`harness.taps`, as the engine would if it ran here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..diagnose.start import Diagnosing
from ..engines.protocol import TokenIds
from ..environment import Stopwatch
from ..errors import EngineError
from ..outcome import conclude, prompt_result
from ..padding import Padding
from ..replay.call import Made
from ..replay.lockstep import Record as Walked
from ..replay.source import RecordedSource
from ..result import EngineInfo, Fit, RunResult
from ..subject import Subject, refusals_as_errors
from ..taps import AXES_OF_TAP, split
from ..walk import walk
from .records import Facts, Pass, RecordedPass
from .side import RecordSide, Tap

if TYPE_CHECKING:  # at run time it brings torch along
    from ..engines.hf_modules import Hook, ModuleMap

Array = NDArray[Any]
Progress = Callable[[str, int, int], None]

#: From the axes of the table of taps to the order in which an array was recorded.
Stored = Callable[[Array], Array]

_NOT_RECORDED = "not recorded"


class RecordedRun:
    """One recorded side, as a participant of a comparison with the reference.

    Args:
        side: What was recorded.
        name: Short name, distinct within a comparison.
        model: The reference's view of the model.
    """

    #: A record has hashes of the parameters, not the parameters.
    parameters: Mapping[str, Array] = {}

    def __init__(self, side: RecordSide, name: str, model: Subject) -> None:
        self._side = side
        self._layers = model.model.config.layers
        # The last axis of queries; a layout without attention taps has no merged heads to part.
        self._head_dim = next((tap.shape[-1] for tap in side.taps if tap.role == "query"), 1)
        self._map = _module_maps()[str(model.checkpoint.config["model_type"])]
        self.name = name
        self.passed = ""

    @property
    def dtype(self) -> str:
        """Dtype of the weights."""
        return str(self._side.facts.dtype).removeprefix("torch.")

    @property
    def unavailable(self) -> Mapping[str, str]:
        """Kinds of taps that the record does not have."""
        recorded = {tap.name: tap for tap in self._side.taps}
        given = {split(name).kind for name in self._names(recorded)}
        return {kind: _NOT_RECORDED for kind in AXES_OF_TAP if kind not in given}

    def info(self) -> EngineInfo:
        """What ran."""
        facts = self._side.facts
        detail = {
            "class": str(facts.model_class),
            "attention": str(facts.attention),
            **{name: facts.versions.get(name, "") for name in ("transformers", "torch")},
        }
        return EngineInfo(self.name, "transformers", self.dtype, detail)

    @contextmanager
    def source(
        self, chunks: Sequence[TokenIds], padding: Padding | None = None
    ) -> Iterator[RecordedSource]:
        """The taps of the pass that :attr:`passed` names.

        Raises:
            EngineError: The comparison is padded.
        """
        if padding is not None:
            raise EngineError(
                self.name,
                expected="a comparison without padding",
                found=f"rows padded on the {padding.side}",
                advice="compare each row by itself",
            )
        yield RecordedSource(
            [dict(self._taps(chunk, len(tokens))) for chunk, tokens in enumerate(chunks)]
        )

    def _taps(self, chunk: int, batch: int) -> Iterator[tuple[str, Array]]:
        held = {
            tap.name: tap
            for tap in self._side.taps
            if (tap.passed, tap.chunk) == (self.passed, chunk)
        }
        for name, (recorded, lay) in self._names(held).items():
            yield name, lay(self._side.array(recorded.key), batch)

    def _patterns(self) -> dict[str, tuple[str, Callable[[Array, int], Array]]]:
        """Name of a tap to its name in a record and the way to the axes of the table."""
        found: dict[str, tuple[str, Callable[[Array, int], Array]]] = {}
        for hook in self._map.hooks:
            if not _plain(hook):
                continue
            ending = ".in" if hook.side == "in" else ""
            found[hook.tap] = (hook.module + ending, _Laid(hook, self._head_dim))
        found |= _inside_attention(self._map)
        return {**found, "logits": ("logits", _as_it_is)}

    def canonical(self, recorded: str) -> tuple[str, Stored] | None:
        """Name of a recorded tap in the table of taps, and the way back; None if it has none."""
        for pattern, (name, lay) in self._patterns().items():
            for n in range(self._layers if "{n}" in pattern else 1):
                if name.format(n=n) == recorded and (stored := _way_back(lay)) is not None:
                    return pattern.format(n=n), stored
        return None

    def _names(
        self, held: Mapping[str, Tap]
    ) -> dict[str, tuple[Tap, Callable[[Array, int], Array]]]:
        """Taps of one chunk that are there."""
        found = {}
        for pattern, (recorded, lay) in self._patterns().items():
            layered = "{n}" in pattern
            for n in range(self._layers if layered else 1):
                tap = held.get(recorded.format(n=n))
                if tap is not None:
                    found[pattern.format(n=n)] = (tap, lay)
        return found


@dataclass(frozen=True, slots=True)
class _Laid:
    """A module's array in the axes of the table of taps."""

    hook: "Hook"
    head_dim: int

    def __call__(self, array: Array, batch: int) -> Array:
        layout = self.hook.layout
        if layout == "1TC":
            return np.broadcast_to(array, (batch, *array.shape[1:]))
        if layout == "(BT)C":
            return array.reshape(batch, -1, array.shape[-1])
        if layout == "BT(HD)":
            array = array.reshape(*array.shape[:-1], -1, self.head_dim)
        return array if layout == "BTC" else array.swapaxes(1, 2)


def _way_back(lay: Callable[[Array, int], Array]) -> Stored | None:
    """The inverse of a way to the axes of the table, up to how axes are merged."""
    if not isinstance(lay, _Laid) or lay.hook.layout == "BTC":
        return lambda array: array
    if lay.hook.layout in ("BT(HD)", "BTHD"):
        return lambda array: array.swapaxes(1, 2)
    return None


def _plain(hook: "Hook") -> bool:
    """Whether a hook takes the first tensor that passes, as a record does."""
    return hook.take is type(hook).__dataclass_fields__["take"].default


def _module_maps() -> "Mapping[str, ModuleMap]":
    """Layouts that are known, by ``model_type``."""
    from ..engines.hf_modules import MODULE_MAPS

    return MODULE_MAPS


def _as_it_is(array: Array, batch: int) -> Array:
    return array


def _inside_attention(
    module_map: "ModuleMap",
) -> dict[str, tuple[str, Callable[[Array, int], Array]]]:
    """What a record has of the attention function; new keys are the last ones of all keys."""
    at = module_map.attention
    roles = {"mask": "mask", "probs": "probs", "context": "context", "keys": "key"}
    roles["values"] = "value"
    found = {
        f"layers.{{n}}.attn.{kind}": (f"{at}:{role}", _as_it_is) for kind, role in roles.items()
    }
    query = module_map.inputs[0]
    return {**found, f"layers.{{n}}.{query}": (f"{at}:query", _as_it_is)}


def replay(
    subject: Subject,
    sides: Mapping[str, RecordSide],
    passes: Sequence[Pass],
    *,
    case: str,
    threads: int,
    command: str,
    progress: Progress,
    watch_op: Callable[[str, Made], None] | None = None,
) -> RunResult:
    """Replay every op of recorded runs on the reference.

    Args:
        subject: The model.
        sides: Recorded runs by a short name.
        passes: What both ran; those without padding and with intermediates are replayed.
        case: Name of the result.
        threads: CPU threads.
        command: What the user typed.
        progress: Told how far it is.
        watch_op: Called with the name of the pass and every op that a side taps.
    """

    def measure(name: str, made: Made, found: Array, bound: Array) -> tuple[Fit, ...]:
        if watch_op is not None:
            watch_op(name, made)
        return diagnosing.measure(made, found, bound)

    watch = Stopwatch()
    runs = [RecordedRun(side, name, subject) for name, side in sides.items()]
    diagnosing = Diagnosing(subject, runs)
    prompts = []
    for each in passes:
        if not each.taps or each.attention_mask is not None:
            continue
        chunks = chunks_of(each)
        for run in runs:
            run.passed = each.name
        diagnosing.begin(each.name, chunks)
        record = Walked([], [], [])
        with refusals_as_errors():
            walk(
                subject,
                runs,
                chunks,
                dtype=runs[0].dtype,
                threads=threads,
                progress=partial(progress, f"{each.name}: replay"),
                on_failure=diagnosing.look,
                measure=partial(measure, each.name),
                record=record,
            )
        diagnosing.end(record)
        prompts.append(prompt_result(subject, record, chunks, name=each.name))
    environment = watch.environment(threads=threads, seed=None, command=command)
    result = conclude(subject, runs, prompts, case=case, environment=environment)
    return diagnosing.complete(result, progress=progress)


def chunks_of(each: Pass) -> list[TokenIds]:
    """Token ids [B, T] of each forward pass."""
    ids = np.asarray(each.token_ids, np.int64)
    sizes = each.chunks or (ids.shape[1],)
    return np.split(ids, np.cumsum(sizes)[:-1].tolist(), axis=1)


def has_reference(facts: Facts, config: Mapping[str, Any]) -> bool:
    """Whether a model can be replayed: it ran, and its layout is known."""
    ran = any(isinstance(each, RecordedPass) and each.taps for each in facts.passes)
    return ran and str(config.get("model_type")) in _module_maps()
