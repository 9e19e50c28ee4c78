"""The catalogue is whole: what it must cover, and what every fault must say."""

import re

import pytest

from harness.faults.catalogue import catalogue, collect
from harness.faults.fault import GROUPS, Fault, link
from harness.taps import AXES_OF_TAP

FAULTS = list(catalogue().faults.values())

#: What the catalogue must name something for.
TOPICS = (
    *("rope.pairing", "rope.theta", "rope.scaling", "rope.attention_factor", "rope.partial"),
    *("rope.position", "rope.position_cache", "rope.precision", "rope.layer_types"),
    *("attention.gqa", "attention.scale", "attention.softcap", "attention.softmax"),
    *("attention.qk_norm", "attention.sinks", "mask.window", "mask.causal", "mask.padding"),
    *("norm.eps", "norm.kind", "norm.weight", "norm.order", "norm.precision"),
    *("mlp.activation", "mlp.order", "mlp.router"),
    *("embedding.scale", "head.softcap", "head.scale", "head.bias"),
    *("weights.layout", "weights.layer", "weights.heads", "weights.bias", "weights.quantised"),
    *("weights.precision", "weights.values"),
    *("cache.stale", "cache.position", "cache.window", "input.bos", "input.tokens"),
    "input.padding",
)


def test_catalogue_has_faults_of_every_group() -> None:
    assert len(FAULTS) >= 80
    assert {fault.group for fault in FAULTS} == set(GROUPS)


@pytest.mark.parametrize("topic", TOPICS)
def test_catalogue_covers(topic: str) -> None:
    assert [fault.id for fault in FAULTS if fault.topic == topic]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_fault_says_what_a_reader_needs(fault: Fault) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fault.id)
    assert set(fault.kinds) <= set(AXES_OF_TAP), fault.kinds
    for text, least in ((fault.symptom, 7), (fault.advice, 20)):
        assert len(text) > least
        assert text.strip() == text
        assert text.endswith((".", "?"))
    assert not fault.title.endswith(".")
    for report in fault.reports:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|https://\S+", report), report


def test_titles_differ() -> None:
    assert len({fault.title for fault in FAULTS}) == len(FAULTS)


def test_most_faults_have_been_met_in_public() -> None:
    assert sum(bool(fault.reports) for fault in FAULTS) >= len(FAULTS) / 3


def test_links_lead_to_the_reports() -> None:
    assert link("a/b#7") == "https://github.com/a/b/issues/7"
    assert link("https://example.org/x") == "https://example.org/x"


def test_two_faults_of_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="faults of the same id: rope-theta"):
        collect([catalogue().faults["rope-theta"]] * 2)


def test_unknown_group_is_refused() -> None:
    with pytest.raises(ValueError, match=r"topic ropes\.theta begins with no group"):
        Fault(
            id="x",
            title="x",
            topic="ropes.theta",
            kinds=("embed",),
            variant=lambda site: (),
            symptom="S.",
            advice="A.",
        )
