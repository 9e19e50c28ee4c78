"""The cause where a baseline is all that is left of the side that was wrong."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.faults.catalogue import catalogue
from harness.faults.fault import Facts, Instead, Site
from harness.gate.digest import digest
from harness.gate.earlier import Earlier, Watch, explain
from harness.gate.result import TapChange, TapState
from harness.replay.call import Call, Made, Operand
from harness.replay.precision import precision
from harness.result import Diagnosis, Evidence
from references import ops

TAP = "layers.1.attn.q_rope"
SHAPE = (1, 4, 12, 16)
FACTS = Facts(
    {
        "model_type": "llama",
        "rope_theta": 500_000.0,
        "head_dim": 16,
        "hidden_size": 64,
        "max_position_embeddings": 64,
    },
    {},
    (np.arange(12)[None],),
)


def rotation(theta: float = 500_000.0, *, offset: int = 0) -> Made:
    """Queries, rotated in float64."""
    inputs: NDArray[np.float64] = np.random.default_rng(0).standard_normal(SHAPE)
    constants: dict[str, Any] = {
        "positions": np.arange(12)[None] + offset,
        "frequencies": theta ** -(np.arange(0, 16, 2) / 16),
    }
    call = Call(
        Operand(ops.rope(inputs, **constants)), (Operand(inputs),), constants, precision("float32")
    )
    return Made(TAP, ops.rope, call)


def parted(before: NDArray[Any], *, chunk: int = 0) -> Earlier:
    """The two sides part at the queries; ``before`` is what the side before has there."""
    kept = digest(before.astype(np.float32))
    change = TapChange(
        passed="text",
        chunk=chunk,
        tap="model.layers.1.self_attn:query",
        before="",
        module="model.layers.1.self_attn",
        role="query",
        shape=SHAPE,
        shape_before=before.shape,
        state=TapState.CHANGED,
        distance=1.0,
        low=0.5,
        high=3.0,
        norm=kept.norm,
        allowance=8e-7 * kept.norm,
        largest_before=kept.largest,
        largest=1.0,
    )
    return Earlier("baseline", change, TAP, kept, lambda array: array)


def explained(before: NDArray[Any]) -> Diagnosis | None:
    return explain(parted(before), rotation(), FACTS, catalogue().faults.values())


def test_a_mistake_is_named_by_the_sketch_of_what_it_gives() -> None:
    found = explained(rotation(10_000.0).call.output.value)
    assert found is not None
    cause = found.causes[0]
    assert (cause.fault, cause.detail) == ("rope-theta", "theta 10,000")
    assert cause.evidence is Evidence.SKETCH
    assert cause.explained > 0.999
    assert found.candidate == "baseline"
    assert found.places == (("text", 0, TAP),)


def test_another_mistake_is_named_likewise() -> None:
    found = explained(rotation(offset=1).call.output.value)
    assert found is not None
    assert "rope-theta" not in {cause.fault for cause in found.causes}
    assert "offset" in found.causes[0].fault or "position" in found.causes[0].title.lower()


@pytest.mark.parametrize("what", ["something else", "nothing"])
def test_what_no_mistake_gives_stays_unknown(what: str) -> None:
    """Least of all is a mistake that changes nothing here named where nothing differs."""
    value = rotation().call.output.value
    noise = np.random.default_rng(1).standard_normal(SHAPE)
    assert explained(value + noise if what == "something else" else value) is None


def test_arrays_of_another_size_explain_nothing() -> None:
    assert explained(rotation(10_000.0).call.output.value[:, :2]) is None


def test_a_mistake_that_cannot_be_tried_is_told_and_costs_nothing() -> None:
    def broken(site: Site) -> Iterator[Instead]:
        raise RuntimeError("no luck")

    known = catalogue().faults["rope-theta"]
    faults = [replace(known, id="x", variant=broken), known]
    before = rotation(10_000.0).call.output.value
    found = explain(parted(before), rotation(), FACTS, faults)
    assert found is not None
    assert [cause.fault for cause in found.causes] == ["rope-theta"]
    assert found.observations == ("x could not be tried: RuntimeError: no luck",)


def test_the_op_is_kept_of_the_chunk_in_which_the_sides_part() -> None:
    first, second, third = rotation(), rotation(2.0), rotation(3.0)
    watch = Watch(parted(first.call.output.value, chunk=1))
    for passed, made in (("other", third), ("text", first), ("text", second), ("text", third)):
        watch(passed, made)
    assert watch.made is second
    idle = Watch(None)
    idle("text", first)
    assert idle.made is None
