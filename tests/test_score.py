"""The score counts what runs say, and can be bad."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from harness import cli
from harness.engines.hf import HFEngine
from harness.engines.plants.plant import Plant
from harness.engines.random_models import VOCAB, families, save_random
from harness.faults.catalogue import catalogue
from harness.score import command
from harness.score.run import try_plants
from harness.score.table import Equivalent, Healthy, Score, markdown, miss, rows
from harness.score.trial import Trial

GROUPS = {fault.id: fault.group for fault in catalogue().faults.values()}


def trial(**changes: Any) -> Trial:
    usual: dict[str, Any] = {
        "fault": "rope-theta",
        "plant": "theta 10,000",
        "family": "llama",
        "dtype": "float32",
        "attention": "eager",
        "expected": "layers.0.attn.q_rope",
        "caught": True,
        "found": "layers.0.attn.q_rope",
        "named": ("rope-theta",),
    }
    return Trial(**(usual | changes))


def test_a_trial_is_named_first_only_where_it_is_placed() -> None:
    assert trial().first
    assert not trial(found="layers.0.attn.k_rope").placed
    assert not trial(found="layers.0.attn.k_rope").first
    assert not trial(caught=False, found="").placed
    assert not trial(named=("rope-offset", "rope-theta")).first
    assert not trial(named=()).first


def test_a_fault_that_is_the_same_in_numbers_may_stand_first() -> None:
    both = {"alike": ("rope-offset",)}
    assert trial(named=("rope-offset", "rope-theta"), **both).first
    assert not trial(named=("rope-offset",), **both).first


def test_rows_count_by_group_and_dtype() -> None:
    trials = (trial(), trial(named=()), trial(fault="mlp-gelu-for-silu", dtype="bfloat16"))
    groups = {"rope-theta": "rope", "mlp-gelu-for-silu": "mlp"}
    found = {row.name: row.cells[1:] for row in rows(trials, groups)}
    assert found["rope, float32"] == ("2", "100 %", "100 %", "50.0 %")
    assert found["mlp, bfloat16"] == ("1", "100 %", "100 %", "0.0 %")
    assert found["all"][0] == "3"


def test_misses_say_what_went_wrong() -> None:
    start = "rope-theta (theta 10,000) in llama float32 eager"
    assert miss(trial(caught=False, found="")) == f"{start}: not caught"
    assert (
        miss(trial(found="embed")) == f"{start}: expected at layers.0.attn.q_rope, found at embed"
    )
    assert miss(trial(named=())) == f"{start}: named unknown"


def test_score_fails_by_a_miss_or_an_alarm() -> None:
    good = Healthy(3, (), 2.0)
    assert Score((trial(), trial(named=())), (), good).passed
    assert not Score((trial(caught=False),), (), good).passed
    assert not Score((trial(),), (), Healthy(3, ("llama seed 1: x",), 9.0)).passed


def test_markdown_lists_misses_and_equivalents() -> None:
    same = Equivalent("rope-pairing", "neighbours", "gpt2", "float32", "there is no rotation")
    text = markdown(Score((trial(named=()),), (same,), Healthy(3, (), 2.04)), GROUPS)
    assert "| rope, float32 | 1 | 100 % | 100 % | 0.0 % |" in text
    assert "Healthy random runs: 3, false alarms: 0, worst op 2.0 rounding units." in text
    assert "named unknown" in text
    assert "- rope-pairing (neighbours) in gpt2 float32: there is no rotation" in text


@pytest.mark.parametrize("family", families())
def test_random_models_are_not_vacuous(family: str, tmp_path: Path) -> None:
    for seed in range(3):
        path = tmp_path / str(seed)
        save_random(path, family, seed)
        config = json.loads((path / "config.json").read_text())
        heads = config.get("num_attention_heads", config.get("n_head"))
        assert heads > 1
        assert config.get("num_key_value_heads", 1) < heads
        assert config.get("num_hidden_layers", config.get("n_layer")) > 1
        assert config["vocab_size"] == VOCAB
    assert len({(tmp_path / str(n) / "config.json").read_text() for n in range(3)}) == 3


def test_a_plant_that_does_nothing_is_not_caught(tmp_path: Path) -> None:
    save_random(tmp_path, "llama", 5)
    nothing = Plant(fault="rope-theta", name="nothing", put=lambda at: None, first="attn.q_rope")
    model = HFEngine.load(tmp_path).model
    tokens = np.array([list(range(3, 20))])
    (made,) = try_plants(tmp_path, model, [nothing], tokens, attention="eager", layer=1)
    assert (made.caught, made.found, made.named) == (False, "", ())


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["faults", *arguments])


def test_score_of_a_family_is_shown_and_written(tmp_path: Path) -> None:
    table, trials = tmp_path / "score.md", tmp_path / "score.json"
    ran = run(
        *("score", "--family", "gpt2", "--dtype", "float32", "--healthy", "2", "--topic", "mlp"),
        *("--markdown", str(table), "--json", str(trials)),
    )
    assert ran.exit_code == 0, ran.output
    assert "2 healthy random runs, 0 false alarms" in ran.output
    assert table.read_text().startswith("| kind | planted | caught | placed | named first |")
    made = json.loads(trials.read_text())["trials"]
    assert len(made) > 10
    assert {GROUPS[t["fault"]] for t in made} == {"mlp"}
    assert all(t["caught"] for t in made)


def test_score_exits_with_1_where_a_fault_is_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    missed: tuple[list[Trial], list[Equivalent]] = ([trial(caught=False, found="")], [])
    monkeypatch.setattr(command, "_score_model", lambda path, dtype, plan, seed: missed)
    ran = run("score", "--family", "gpt2", "--dtype", "float32", "--healthy", "0")
    assert ran.exit_code == 1
    assert "miss: rope-theta (theta 10,000) in llama float32 eager: not caught" in ran.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "rope-thet"), "did you mean rope-theta"),
        (("--topic", "ropes"), "did you mean rope"),
        (("score", "--family", "bert"), "one of gemma3_text, gpt2"),
        (("score", "--topic", "ropes"), "did you mean rope"),
        (("score", "--dtype", "int8"), "float32 or bfloat16"),
        (("score", "--healthy", "-1"), "0 or more"),
    ],
)
def test_bad_usage_is_refused(arguments: tuple[str, ...], said: str) -> None:
    ran = run(*arguments)
    assert ran.exit_code == 2
    assert said in ran.stderr
    assert "Traceback" not in ran.output


def test_faults_are_listed_by_group() -> None:
    ran = run()
    assert ran.exit_code == 0
    assert f"{len(GROUPS)} faults" in ran.output
    assert all(fault in ran.output for fault in GROUPS)
    some = run("--topic", "rope.theta")
    assert "rope-theta" in some.output
    assert "rope-pairing" not in some.output


def test_a_fault_is_explained_with_its_reports() -> None:
    ran = run("show", "rope-theta")
    assert ran.exit_code == 0
    for said in ("appears at", "attn.q_rope, attn.k_rope", "vllm/issues/42624", "told apart by"):
        assert said in ran.output
