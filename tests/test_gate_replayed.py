"""Recorded runs on the reference: healthy ones replay in every family, and causes are named."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.checkpoint import load_checkpoint
from harness.gate.explaining import explain_result
from harness.gate.judging import judge
from harness.gate.plan import Plan, made_up, passes_for
from harness.gate.result import GateResult, GateVerdict, SideInfo
from harness.gate.running import Recorder
from harness.gate.side import RecordSide
from harness.result import Verdict
from tests.warm_recorder import WarmRecorder

FAMILIES = ("llama", "qwen3", "qwen3_moe", "gemma3_text", "granite", "stablelm", "gpt_oss", "gpt2")
HEALTHY = (Verdict.PASS, Verdict.ROUNDING)
PLAN = Plan(passes_for({"tokens": made_up(101)}, decode=2, generate=4, pad=0))

Record = Callable[..., RecordSide]


@pytest.fixture
def record(warm: WarmRecorder) -> Iterator[Record]:
    with Recorder(lambda *_: None) as recorder:

        def run(path: Path, attention: str | None = None) -> RecordSide:
            plan = replace(PLAN, attention=attention)
            request = plan.request(str(path), noise=False)
            return recorder.run(Path(sys.executable), request, name=path.name)

        yield run


def result(verdict: GateVerdict = GateVerdict.CHANGED) -> GateResult:
    before, after = (SideInfo(name, {}, {}) for name in ("before", "after"))
    return GateResult(verdict, "", "model", before, after, (), (), ())


def explained(path: Path, sides: dict[str, RecordSide]) -> tuple[GateResult, dict[str, Verdict]]:
    """The result with its cause, and what each side came to on the reference."""
    told, run = explain_result(
        result(),
        load_checkpoint(path),
        sides,
        PLAN.passes,
        command="",
        progress=lambda *_: None,
    )
    assert run is not None, told.notes
    assert all(each.replayed > 20 for each in run.candidates)
    return told, {each.candidate: each.verdict for each in run.candidates}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_healthy_record_replays(tiny: Callable[..., Path], record: Record, family: str) -> None:
    path = tiny(family)
    sides = {name: record(path, name) for name in ("eager", "sdpa") if family != "gpt_oss"}
    sides = sides or {"eager": record(path, "eager")}
    told, verdicts = explained(path, sides)
    assert set(verdicts.values()) <= set(HEALTHY), told.replayed
    assert told.diagnoses == ()


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_the_side_that_is_wrong_is_told_and_why(
    tiny: Callable[..., Path], record: Record, family: str
) -> None:
    """Both sides are of one checkpoint by name; one was made of a config with another epsilon."""
    path, other = tiny(family), tiny(family, rms_norm_eps=0.1)
    right, wrong = record(path), record(other)
    judged = judge(right, wrong, PLAN.passes)
    assert judged.verdict is GateVerdict.CHANGED
    told, verdicts = explained(path, {"right": right, "wrong": wrong})
    assert verdicts["right"] in HEALTHY
    assert verdicts["wrong"] is Verdict.FAIL
    assert {each.candidate for each in told.diagnoses} == {"wrong"}
    cause = told.diagnoses[0].causes[0]
    assert (cause.fault, told.diagnoses[0].tap) == ("norm-eps", "layers.0.attn_norm")
    assert "0.1" in cause.detail


def test_a_family_without_a_reference_says_so(
    tiny: Callable[..., Path], record: Record, tmp_path: Path
) -> None:
    path = tiny()
    checkpoint = load_checkpoint(path)
    object.__setattr__(checkpoint, "config", {**checkpoint.config, "model_type": "opt"})
    told, run = explain_result(
        result(), checkpoint, {"a": record(path)}, (), command="", progress=lambda *_: None
    )
    assert run is None
    assert told.notes == ("There is no reference of opt: the cause was not looked for.",)
