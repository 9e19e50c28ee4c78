"""A run that fails says why: from outside, on faults planted in transformers models."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from harness import HFEngine, RunResult, check, cli
from harness.engines.plants.catalogue import plants
from harness.engines.plants.engine import Silent
from harness.engines.plants.plant import Plant, replace_forward, twin
from harness.report.html import to_html
from harness.report.text import failure_text, to_text
from harness.result import Diagnosis, Evidence, Verdict, from_json, to_json

Load = Callable[..., Any]
Tiny = Callable[..., Path]

TOKENS = [[5, 17, 90, 3, 44, 61, 8, 29, 73, 12, 1, 55, 23, 71, 38, 9]]


class Reduced(Silent):
    """An engine that gives few taps."""

    given: tuple[str, ...] = ()

    @property
    def unavailable(self) -> dict[str, str]:
        every = ("embed", "final_norm", "layers.*.attn*", "layers.*.mlp*", "layers.*.resid*")
        return {name: "not tapped" for name in every if name not in self.given}


class LogitsAlone(Reduced):
    """An engine that gives its logits."""


class Streams(Reduced):
    """An engine that gives the embedding and the residual stream after each block."""

    given = ("embed", "layers.*.resid*")


def plant(fault: str, name: str = "") -> Plant:
    return next(p for p in plants() if p.fault == fault and name in p.name)


def run(
    path: Path, model: Any, *some: Plant, engine: type[HFEngine] = Silent, layer: int = 1
) -> RunResult:
    with_faults = twin(model)
    for one in some:
        with one.planted(with_faults, layer) as faulty:
            with_faults = faulty
    return check(engine(with_faults, name="port"), checkpoint=path, token_ids=TOKENS)


def only(result: RunResult) -> Diagnosis:
    assert result.verdict is Verdict.FAIL, result.summary
    assert len(result.diagnoses) == 1, result.diagnoses
    return result.diagnoses[0]


@pytest.fixture
def model(tiny: Tiny, load_model: Load) -> Any:
    return load_model(tiny())


def test_a_fault_is_named_with_its_places_and_what_to_change(tiny: Tiny, model: Any) -> None:
    found = only(run(tiny(), model, plant("rope-theta", "10,000")))
    assert found.tap == "layers.0.attn.q_rope"
    taps = [tap for _, _, tap in found.places]
    assert taps == [f"layers.{n}.attn.{x}_rope" for n in range(3) for x in "qk"]
    cause = found.causes[0]
    assert cause.fault == "rope-theta"
    assert cause.evidence is Evidence.REPLAY
    assert cause.explained > 0.999
    assert cause.units is not None
    assert cause.units < 4
    assert "rope_parameters" in cause.advice
    assert "https://github.com/vllm-project/vllm/issues/42624" in cause.reports


def test_a_healthy_run_has_no_diagnosis(tiny: Tiny, model: Any) -> None:
    result = run(tiny(), model)
    assert result.verdict is Verdict.PASS
    assert result.diagnoses == ()


def test_two_faults_are_found_one_after_the_other(tiny: Tiny, model: Any) -> None:
    both = plant("rope-theta", "10,000"), plant("rope-pairing")
    result = run(tiny(), model, *both, layer=2)
    first, other = result.diagnoses[:2]
    assert [d.causes[0].fault for d in result.diagnoses[:1]] == ["rope-theta"]
    assert {tap.split(".")[1] for _, _, tap in first.places} == {"0", "1"}
    # Both are made by one op in layer 2: neither alone gives its numbers.
    assert other.tap == "layers.2.attn.q_rope"
    assert other.causes == ()


def test_mistakes_that_give_the_same_numbers_are_all_listed(tiny: Tiny, model: Any) -> None:
    found = only(run(tiny(), model, plant("rope-missing")))
    faults = [cause.fault for cause in found.causes]
    assert set(faults) >= {"rope-missing", "rope-position-zero"}
    assert all(cause.distinguish for cause in found.causes[:2])
    text = to_text(run(tiny(), model, plant("rope-missing")))
    assert "would give the same numbers" in text
    assert "Told apart by:" in text


def test_an_unknown_mistake_stays_unknown_with_what_was_seen(tiny: Tiny, model: Any) -> None:
    strange = twin(model)
    replace_forward(
        strange.model.layers[1].mlp.down_proj,
        lambda inner, x: inner(x) + 0.3 * torch.sin(7 * inner(x)) * (inner(x) > 0),
    )
    found = only(check(Silent(strange), checkpoint=tiny(), token_ids=TOKENS))
    assert found.tap == "layers.1.mlp.out"
    assert found.causes == ()
    text = failure_text(check(Silent(strange), checkpoint=tiny(), token_ids=TOKENS))
    assert "Cause: unknown: no fault of the catalogue gives these numbers" in text


def test_a_bias_in_an_unknown_place_is_described(tiny: Tiny, model: Any) -> None:
    strange = twin(model)
    added = torch.linspace(-1, 1, 48)
    replace_forward(strange.model.layers[1].input_layernorm, lambda inner, x: inner(x) + added)
    found = only(check(Silent(strange), checkpoint=tiny(), token_ids=TOKENS))
    assert found.tap == "layers.1.attn_norm"
    said = " ".join((*found.observations, *(c.title for c in found.causes)))
    assert "bias" in said


def test_a_candidate_with_logits_alone_is_judged_by_whole_passes(tiny: Tiny, model: Any) -> None:
    result = run(tiny(), model, plant("rope-theta", "1,000,000"), engine=LogitsAlone)
    found = only(result)
    assert found.tap == "logits"
    cause = found.causes[0]
    assert (cause.fault, cause.evidence) == ("rope-theta", Evidence.FORWARD)
    assert cause.explained > 0.999
    assert "1,000,000" in cause.detail
    assert "weaker evidence" in to_text(result)


def test_a_candidate_with_few_taps_is_replayed_over_what_lies_between(
    tiny: Tiny, model: Any
) -> None:
    found = only(run(tiny(), model, plant("rope-pairing"), engine=Streams))
    assert found.tap == "layers.1.resid_mid"
    cause = found.causes[0]
    assert (cause.fault, cause.evidence) == ("rope-pairing", Evidence.SEGMENT)
    assert cause.explained > 0.99


def test_sdpa_is_diagnosed_though_it_forms_no_scores(tiny: Tiny, load_model: Load) -> None:
    model = load_model(tiny(), attention="sdpa")
    found = only(run(tiny(), model, plant("rope-direction")))
    assert found.causes[0].fault == "rope-direction"


def test_views_show_the_cause(tiny: Tiny, model: Any) -> None:
    result = run(tiny(), model, plant("rope-theta", "10,000"))
    assert from_json(to_json(result)) == result
    for text in (to_text(result), failure_text(result)):
        assert "Cause: RoPE is computed with another base (rope-theta)" in text
        assert "layers.0.attn.q_rope and 5 more: attn.q_rope, attn.k_rope of layers 0-2" in text
    page = to_html(result)
    assert "Cause: RoPE is computed with another base (rope-theta)" in page
    assert "never fall back to 10000 silently" in page


def test_decoding_faults_are_named_in_the_pass_where_they_show(tiny: Tiny, model: Any) -> None:
    one = plant("rope-position-restarted")
    with one.planted(twin(model), 1) as faulty:
        result = check(Silent(faulty), checkpoint=tiny(), token_ids=TOKENS, decode=2)
    first = result.diagnoses[0]
    assert (first.chunk, first.tap) == (1, "layers.0.attn.q_rope")
    assert first.causes[0].fault == "rope-position-restarted"


def test_smollm2_with_two_faults_names_both(smollm2: Any, load_model: Load) -> None:
    model = twin(load_model(smollm2.path))
    with plant("rope-theta", "10,000").planted(model, 0) as faulty:
        replace_forward(faulty.model.layers[7].mlp.act_fn, lambda inner, x: torch.relu(x))
        result = check(Silent(faulty), checkpoint=smollm2.path, token_ids=[list(range(40, 60))])
    named = [d.causes[0].fault for d in result.diagnoses if d.causes]
    assert named[0] == "rope-theta"
    assert result.diagnoses[1].tap == "layers.7.mlp.act"
    assert np.array_equal(result.prompts[0].token_ids, [list(range(40, 60))])


def test_a_trace_of_another_engine_is_diagnosed(tiny: Tiny, tmp_path: Path) -> None:
    """A port that reads the default theta arrives as a trace file; nothing of it runs here."""
    port = tmp_path / "port"
    shutil.copytree(tiny(), port)
    config = json.loads((port / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 10000.0
    (port / "config.json").write_text(json.dumps(config))
    trace, target = tmp_path / "port.safetensors", tmp_path / "result.json"
    run_it = CliRunner().invoke
    made = run_it(cli.app, ["trace", str(port), "--tokens", "5,17,90,3,44", "-o", str(trace)])
    assert made.exit_code == 0, made.output
    with safe_open(trace, framework="numpy") as file:  # another engine knows of no fingerprint
        head = json.loads(file.metadata()["logits-parity"])
    head["model"].pop("fingerprint")
    save_file(load_file(trace), trace, metadata={"logits-parity": json.dumps(head)})
    arguments = ["--model", str(tiny()), "--no-report", "--json", str(target)]
    ran = run_it(cli.app, ["diff", "hf:eager", str(trace), *arguments], env={"COLUMNS": "100"})
    assert ran.exit_code == 1, ran.output
    assert "Cause: RoPE is computed with another base (rope-theta)" in ran.output
    (found,) = from_json(target.read_bytes()).diagnoses
    assert found.causes[0].fault == "rope-theta"
    assert "10,000" in found.causes[0].detail
