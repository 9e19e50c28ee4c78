"""What a fault is: data, and at most one function that makes the mistake on an op's inputs."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..replay.call import Call, Made, Operand
from ..taps import split

Array = NDArray[Any]
Op = Callable[..., Any]

#: Groups of topics, in the order in which data flows.
GROUPS = (
    *("input", "embedding", "norm", "weights", "rope", "cache", "mask", "attention", "mlp"),
    "head",
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a fault may look up beside an op's own inputs.

    Attributes:
        config: config.json as written.
        parameters: Stored parameters by their name in the checkpoint.
        tokens: Token ids [B, T] of each forward pass.
    """

    config: Mapping[str, Any]
    parameters: Mapping[str, Array]
    tokens: tuple[NDArray[np.int64], ...] = ()


@dataclass(frozen=True, slots=True)
class Instead:
    """One way to make the mistake: another evaluation in place of the op's.

    Attributes:
        op: What is run. Its rounding bound is looked up in :data:`harness.replay.bounds.BOUNDS`; an
            op without one is judged by the larger of its result and the replaced op's bound.
        inputs: Operands in place of the op's own.
        constants: Keyword arguments of ``op``.
        detail: What is special here, for people: a fitted value, a choice among several.
        precision: Narrower dtype that the op is evaluated in; empty for the candidate's.
    """

    op: Op
    inputs: tuple[Operand | None, ...]
    constants: Mapping[str, Any]
    detail: str = ""
    precision: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """An op of a candidate at which a mistake is tried.

    Attributes:
        tap: Name of the intermediate.
        op: The op as it should be.
        call: Its evaluation in float64 on the candidate's own inputs.
        found: What the candidate has there, float64 or booleans; it may have another shape. None
            where the candidate does not tap it.
        facts: What else may be looked up.
        chunk: 0 for the prompt, 1 and up for decoding steps.
        dtype: Of the candidate.
        nearby: What the candidate has in the same layer, by the kind of tap, and as ``input`` what
            the layer is given; large values are left out.
        known: What mistakes that were tried before have found out here, by what it is.
    """

    tap: str
    op: Op
    call: Call
    found: Array | None
    facts: Facts
    chunk: int = 0
    dtype: str = "float32"
    nearby: Mapping[str, Operand] = field(default_factory=dict)
    known: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def kind(self) -> str:
        """The tap without its layer, for example ``attn.q_rope``."""
        return split(self.tap).kind

    @property
    def layer(self) -> int | None:
        """Index of the layer, None outside the layers."""
        return split(self.tap).layer

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Token ids [B, T] of this forward pass."""
        return self.facts.tokens[self.chunk]

    def value(self, index: int) -> Array:
        """An input in float64 (or integers, booleans)."""
        return self.call.input(index).value

    def constant(self, name: str) -> Any:
        """A keyword argument of the op; None if it has none of that name."""
        return self.call.constants.get(name)

    def maker(self, index: int) -> Made | None:
        """How an input was made that the candidate does not tap; None for one that it taps."""
        operand = self.call.inputs[index]
        return None if operand is None else operand.made

    def config(self, *keys: str) -> Any:
        """The first of some config keys that is there and not null."""
        return next((v for key in keys if (v := self.facts.config.get(key)) is not None), None)

    def parameters(self, ending: str, *, layer: int | None = None) -> Iterator[tuple[str, Array]]:
        """Parameters of a layer, this one's if none is named, whose names end so; in float64."""
        wanted = self.layer if layer is None else layer
        for name, array in self.facts.parameters.items():
            inside = wanted is None or f".{wanted}." in f".{name}"
            if inside and name.endswith(ending):
                yield name, np.asarray(array).astype(np.float64)

    def instead(
        self,
        *,
        op: Op | None = None,
        inputs: Mapping[int, Array | Operand | None] | None = None,
        detail: str = "",
        precision: str = "",
        drop: Iterable[str] = (),
        **constants: Any,
    ) -> Instead:
        """This op with some things changed.

        Args:
            op: Another op; it is given the same inputs and constants unless they are changed.
            inputs: Position to another value of that input.
            detail: See :class:`Instead`.
            precision: See :class:`Instead`.
            drop: Constants that the other op does not take.
            **constants: Constants to change or add.
        """
        operands = list(self.call.inputs)
        for index, value in (inputs or {}).items():
            operands[index] = Operand(value) if isinstance(value, np.ndarray) else value
        kept_constants = {k: v for k, v in self.call.constants.items() if k not in set(drop)}
        return Instead(
            op or self.op, tuple(operands), kept_constants | constants, detail, precision
        )

    def behind(self, function: Op, *, detail: str = "") -> Instead:
        """A function of what the op comes out as, which need not be computed again."""
        return Instead(function, (self.call.output,), {}, detail)


#: Makes the mistake at a site, in every way in which it may have been made there; nothing where it
#: cannot have been made.
Variant = Callable[[Site], Iterable[Instead]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One mistake that people make when they port, convert or serve a model.

    Attributes:
        id: Short name, unique in the catalogue, for example ``rope-pairing``.
        title: What is done wrong, in a few words.
        topic: Group and topic, for example ``rope.theta``: what a probe input can show.
        kinds: Kinds of taps that it can change first, for example ``attn.q_rope``.
        variant: Makes the mistake.
        symptom: What people see.
        advice: What to look at and change.
        distinguish: What input or tap tells it from faults that look alike.
        reports: Public reports as ``owner/repository#number``.
        constant: Name of the constant that is wrong; a fit that excludes the configured value
            points here.
        implies: Ids of faults that it looks like at other taps: where both explain the numbers of
            one layer, this one is named.
        common: How often it is met, from 1 to 5: the order in which faults that fit are listed.
        fallback: Whether it fits whatever a candidate has there, so that any other fault that fits
            is the better word.
    """

    id: str
    title: str
    topic: str
    kinds: tuple[str, ...]
    variant: Variant
    symptom: str
    advice: str
    distinguish: str = ""
    reports: tuple[str, ...] = ()
    constant: str = ""
    implies: tuple[str, ...] = ()
    common: int = 3
    fallback: bool = False

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise ValueError(f"fault {self.id}: topic {self.topic} begins with no group")
        if not (self.kinds and self.symptom and self.advice and 1 <= self.common <= 5):
            raise ValueError(f"fault {self.id} says too little")

    @property
    def group(self) -> str:
        """First part of the topic."""
        return self.topic.split(".")[0]

    @property
    def links(self) -> tuple[str, ...]:
        """Addresses of the reports."""
        return tuple(link(report) for report in self.reports)


def where_it_fits(variant: Variant) -> Variant:
    """A variant without the ways whose op does not take what the op in its place is given.

    Families make one kind of tap by different ops: a softmax with a sink, which has one input more,
    a norm with a bias or without. A mistake that is written for one of them says nothing of the
    others.
    """

    @functools.wraps(variant)
    def fitting(site: Site) -> Iterator[Instead]:
        return (instead for instead in variant(site) if _fits(instead))

    return fitting


def _fits(instead: Instead) -> bool:
    try:
        inspect.signature(instead.op).bind(*instead.inputs, **instead.constants)
    except TypeError:
        return False
    except ValueError:  # a compiled function that does not tell
        return True
    return True


def link(report: str) -> str:
    """Address of ``owner/repository#number``; an address stays as it is."""
    if report.startswith("https://"):
        return report
    repository, _, number = report.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All faults, by id."""

    faults: Mapping[str, Fault] = field(default_factory=dict)

    def at(self, kind: str) -> list[Fault]:
        """Faults that can appear at a kind of tap."""
        return [fault for fault in self.faults.values() if kind in fault.kinds]
