"""Probes: inputs made for a checkpoint, and whether what is said of them is true."""

import json
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from harness import HFEngine, check
from harness.case import Case
from harness.case_file import parse_case
from harness.errors import CaseError
from harness.pipeline import run_case
from harness.probe.mistakes import MISTAKES, other_epsilon
from harness.probe.plan import Plan, make_plan
from harness.probe.survey import ropes, survey
from harness.probe.traits import read_traits
from harness.probe.vocabulary import Vocabulary, read_vocabulary
from harness.report.html import to_html
from harness.report.text import to_text
from harness.result import RunResult, Sight, Verdict, from_json, to_json
from harness.subject import load_subject

Tiny = Callable[..., Path]
Load = Callable[..., Any]

FAMILIES = ["llama", "qwen3", "gemma3_text", "gpt2"]
DYNAMIC = {
    "max_position_embeddings": 16,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
}


def plan(path: Path, *, dtype: str = "float32", **how: Any) -> Plan:
    subject = load_subject(path)
    return make_plan(subject.model, subject.checkpoint.config, dtype=dtype, **how)


def sights(made: Plan, topic: str) -> list[Sight]:
    return [sight for sight in made.report.sights if sight.topic == topic]


def the_sight(made: Plan, topic: str) -> Sight:
    (sight,) = sights(made, topic)
    return sight


def names(made: Plan) -> list[str]:
    return [probe.name.removeprefix("probe ") for probe in made.report.probes]


# What a model is


@pytest.mark.parametrize("family", FAMILIES)
def test_survey_meets_every_tap_and_computes_nothing(
    tiny: Tiny, family: str, family_taps: Callable[[str, int], set[str]]
) -> None:
    parts = survey(load_subject(tiny(family)).model)
    assert {part.tap for part in parts if part.tap} == family_taps(family, 3)


def test_traits_of_a_model_with_windows(tiny: Tiny) -> None:
    subject = load_subject(tiny("gemma3_text"))
    traits = read_traits(subject.model, subject.checkpoint.config)
    assert traits.windows == {6: 2}
    assert [rope.kind for rope in traits.ropes] == ["linear", "default"]
    assert (traits.heads, traits.kv_heads, traits.tied) == (6, 2, True)
    assert (traits.grows, traits.learned, traits.biases) == ((), 0, ())


def test_traits_of_learned_positions_and_biases(tiny: Tiny) -> None:
    subject = load_subject(tiny("gpt2"))
    traits = read_traits(subject.model, subject.checkpoint.config)
    assert (traits.ropes, traits.learned, traits.longest) == ((), 256, 256)
    assert (traits.heads, traits.kv_heads) == (6, 6)
    assert "transformer.h.0.attn.c_attn.bias" in traits.biases
    assert traits.special == {"BOS": 0, "EOS": 0}


def test_traits_of_a_rotation_that_grows(tiny: Tiny) -> None:
    subject = load_subject(tiny(**DYNAMIC))
    assert read_traits(subject.model, subject.checkpoint.config).grows == (16,)
    assert [rope.kind for rope in ropes(subject.model.config)] == ["dynamic"]


@pytest.mark.parametrize("family", ["granite", "qwen3_moe", "stablelm"])
def test_every_family_has_probes(tiny: Tiny, family: str) -> None:
    made = plan(tiny(family))
    assert names(made)[:2] == ["rows", "passes"]
    shown = {sight.topic for sight in made.report.sights if sight.shown}
    assert {"rope.theta", "attention.gqa", "mask.padding", "input.batch"} <= shown
    assert ("mlp.router" in shown, "embedding.scale" in shown) == (
        family == "qwen3_moe",
        family == "granite",
    )
    assert ("mlp.experts" in shown) == (family == "qwen3_moe")


# Tokens


def vocabulary(**special: int) -> Vocabulary:
    table = np.diag([3.0, 0.0, 1.0, 2.0, 5.0, 4.0, 7.0, 6.0])
    return read_vocabulary(table, special)


def test_tokens_by_the_size_of_their_rows() -> None:
    words = vocabulary()
    assert words.smallest(3) == (2, 3, 0)
    assert words.largest(3) == (6, 7, 4)
    assert words.smallest(9) == (2, 3, 0, 5, 4, 7, 6, 2, 3)  # id 1, all 0, hides every epsilon
    assert words.mean_squares[6] == 49 / 8


def test_ordinary_tokens_are_not_special_and_hardly_repeat() -> None:
    words = Vocabulary(1000, {"BOS": 618}, np.arange(1000), np.ones(1000))
    tokens = words.ordinary(200)
    assert 618 not in tokens
    assert len(set(tokens)) > 195
    assert words.ordinary(5, skip=3) == tokens[3:8]


def test_edges_are_ends_then_special_ids() -> None:
    assert vocabulary(BOS=3, EOS=4).edges(8) == (0, 7, 1, 6, 2, 5, 3, 4)
    assert vocabulary(BOS=3).edges(2) == (0, 7)


# Which probes


def test_probes_of_a_plain_model(tiny: Tiny) -> None:
    made = plan(tiny())
    assert names(made) == ["rows", "passes", "padded left", "padded right"]
    rows = made.report.probes[0]
    assert rows.rows == (
        *("ordinary tokens", "the same behind BOS", "one token again and again"),
        *("smallest rows of the embedding", "largest rows of the embedding"),
        "first, last and special ids",
    )
    ids = made.prompts[0].token_ids
    assert ids is not None
    assert ids[1] == (1, *ids[0][:-1])
    assert len(set(ids[2])) == 1
    assert ids[5][:2] == (0, 100)
    assert made.prompts[1].prefill == (6, 5)
    assert [prompt.padding for prompt in made.prompts] == [None, None, "left", "right"]


def test_probes_fill_and_overrun_every_window(tiny: Tiny) -> None:
    made = plan(tiny("qwen3"))
    assert names(made)[4:] == ["window 6", "window 6 + 1", "window 6 in passes"]
    lengths = [(p.lengths, p.passes, p.decode) for p in made.report.probes[4:]]
    assert lengths == [((6,), (6,), 2), ((7,), (7,), 0), ((10,), (5, 5), 1)]
    assert the_sight(made, "mask.window").why.startswith("window 6 of 1 of 3 layers")


def test_window_beyond_the_limit_stays_hidden(tiny: Tiny) -> None:
    made = plan(tiny("qwen3", sliding_window=200), most=100)
    assert names(made) == ["rows", "passes", "padded left", "padded right"]
    sight = the_sight(made, "mask.window")
    assert (sight.kind, sight.shown) == ("mask", False)
    assert sight.why == "window 200 of 1 of 3 layers: a probe has at most 100 tokens"


def test_probes_reach_the_length_at_which_a_rotation_grows(tiny: Tiny) -> None:
    made = plan(tiny(**DYNAMIC))
    assert names(made)[4:] == ["length 16 + 2", "length 16 by decoding"]
    assert the_sight(made, "rope.scaling_length").shown
    assert not sights(made, "rope.scaling")
    short = plan(tiny(**DYNAMIC), most=12)
    assert names(short)[4:] == []
    assert the_sight(short, "rope.scaling_length").why == (
        "frequencies change beyond 16 positions: a probe has at most 12 tokens"
    )


def test_probe_of_positions_that_bfloat16_does_not_have(tiny: Tiny) -> None:
    path = tiny(max_position_embeddings=512)
    assert "positions beyond 256" in names(plan(path, dtype="bfloat16"))
    assert "positions beyond 256" not in names(plan(path))
    hidden = [s for s in sights(plan(path), "rope.precision") if not s.shown]
    assert hidden[0].why == "positions rounded to bfloat16 differ beyond 256, which are not run"
    assert the_sight(plan(path, dtype="bfloat16"), "rope.precision").shown


def test_no_probe_is_longer_than_the_model(tiny: Tiny) -> None:
    made = plan(tiny("gpt2", n_positions=8))
    assert max(max(p.lengths) + p.decode for p in made.report.probes) <= 8
    assert made.report.limit == 5


# What is said


def test_epsilon_is_told_where_it_shows_and_where_not(tiny: Tiny) -> None:
    made = plan(tiny())
    shown, hidden = sights(made, "norm.eps")
    assert shown.why.startswith("epsilon 1e-06 for 1e-05 moves layers.0.attn_norm by ")
    assert "(row: smallest rows of the embedding)" in shown.why
    assert hidden.why.startswith("epsilon 1e-06 for 1e-05 moves ")
    assert "the smallest mean square there is " in hidden.why


@pytest.mark.parametrize(
    ("eps", "other"), [(1e-5, 1e-6), (1e-6, 1e-5), (1e-12, 1e-6), (1e-3, 1e-5)]
)
def test_the_other_epsilon_is_a_usual_one(eps: float, other: float) -> None:
    assert other_epsilon(eps) == other


@pytest.mark.parametrize(
    ("family", "config", "topic", "why"),
    [
        ("llama", {"num_key_value_heads": 6}, "attention.gqa", "as many kv heads as heads: all"),
        ("llama", {"num_key_value_heads": 1}, "attention.gqa", "one kv head for all: all orders"),
        ("llama", {}, "rope.scaling", "frequencies are not scaled: type default"),
        ("llama", {}, "weights.bias", "the checkpoint has none"),
        ("llama", {}, "attention.softcap", "scores have no cap"),
        ("llama", {}, "mask.window", "no layer has a window; one of 12 tokens or more in an"),
        ("llama", {}, "rope.position_cache", "positions 12 to 255 are not run: a table that ends"),
        ("gpt2", {}, "embedding.position", "positions 12 to 255 are not run: a table that ends"),
        ("gpt2", {}, "rope.theta", "there is no rotary embedding: positions are learned"),
        ("qwen3", {}, "input.bos", "the config names no BOS"),
        ("llama", {}, "embedding.row", "54 of 101 are read; the others are compared in engines"),
    ],
)
def test_what_stays_hidden_has_a_reason(
    tiny: Tiny, family: str, config: dict[str, Any], topic: str, why: str
) -> None:
    hidden = [s for s in sights(plan(tiny(family, **config)), topic) if not s.shown]
    assert len(hidden) == 1
    assert hidden[0].why.startswith(why)


@pytest.mark.parametrize(
    ("family", "config", "topic", "tap"),
    [
        ("llama", {"attention_bias": True}, "weights.bias", "layers."),
        ("llama", {}, "head.tie", "logits"),
        ("gemma3_text", {"attn_logit_softcapping": 2.0}, "attention.softcap", "layers."),
        ("gemma3_text", {"final_logit_softcapping": 3.0}, "head.softcap", "logits"),
        ("gemma3_text", {}, "embedding.scale", "embed"),
        ("gemma3_text", {}, "rope.scaling", "layers.1."),
        ("llama", {}, "rope.precision", "layers."),
    ],
)
def test_what_a_config_makes_possible_is_shown(
    tiny: Tiny, family: str, config: dict[str, Any], topic: str, tap: str
) -> None:
    shown = [s for s in sights(plan(tiny(family, **config)), topic) if s.shown]
    assert len(shown) == 1
    assert f" moves {tap}" in shown[0].why
    assert shown[0].probe == "probe rows"


def test_a_head_that_equals_the_embedding_hides_which_is_used(tiny: Tiny, tmp_path: Path) -> None:
    copied = copy_of(tiny(), tmp_path)
    weights = load_file(copied / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    sight = the_sight(plan(copied), "head.tie")
    assert (sight.shown, " by at most 0 rounding units" in sight.why) == (False, True)


def test_every_topic_is_of_a_group(tiny: Tiny) -> None:
    from harness.faults.fault import GROUPS

    topics = {mistake.topic for mistake in MISTAKES}
    for family in FAMILIES:
        made = plan(tiny(family))
        topics |= {topic for probe in made.report.probes for topic in probe.topics}
        for sight in made.report.sights:
            assert sight.kind == sight.topic.split(".")[0]
            topics.add(sight.topic)
    assert {topic.split(".")[0] for topic in topics} <= set(GROUPS)


# Whether it is true


def copy_of(path: Path, folder: Path) -> Path:
    for file in path.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


class Silent(HFEngine):
    """An engine that does not show its parameters."""

    @property
    def parameters(self) -> dict[str, Any]:
        return {}


def probed(model: Any, path: Path) -> RunResult:
    return check(Silent(model), checkpoint=path, probe=True)


@pytest.mark.parametrize(
    ("family", "config", "dtype"),
    [
        *((family, {}, "float32") for family in FAMILIES),
        ("llama", DYNAMIC, "float32"),
        ("gemma3_text", {"final_logit_softcapping": 3.0}, "bfloat16"),
        ("llama", DYNAMIC | {"max_position_embeddings": 280}, "bfloat16"),
    ],
)
def test_healthy_models_pass_their_probes(
    tiny: Tiny, family: str, config: dict[str, Any], dtype: str
) -> None:
    case = Case("c", str(tiny(family, **config)), (), dtype=dtype, probe=True)
    result = run_case(case)
    assert result.verdict in (Verdict.PASS, Verdict.ROUNDING), result.candidates
    assert result.probe is not None
    assert [p.name for p in result.prompts] == [p.name for p in result.probe.probes]


def other_theta(model: Any) -> None:
    frequencies = model.model.rotary_emb.inv_freq
    exponents = -torch.arange(len(frequencies)) / len(frequencies)
    model.model.rotary_emb.inv_freq = frequencies * 1.01**exponents


def other_scale(model: Any) -> None:
    model.model.layers[1].self_attn.scaling *= 1.001


def other_eps_first(model: Any) -> None:
    model.model.layers[0].input_layernorm.variance_epsilon = 1e-6


def other_activation(model: Any) -> None:
    model.model.layers[1].mlp.act_fn = torch.nn.GELU(approximate="tanh")


def embedding_as_head(model: Any) -> None:
    model.lm_head.weight = model.model.embed_tokens.weight


PLANTS = [
    ("rope.theta", other_theta),
    ("attention.scale", other_scale),
    ("norm.eps", other_eps_first),
    ("mlp.activation", other_activation),
    ("head.tie", embedding_as_head),
]


@pytest.mark.parametrize(("topic", "plant"), PLANTS, ids=[topic for topic, _ in PLANTS])
def test_what_is_said_to_show_does(
    tiny: Tiny, load_model: Load, topic: str, plant: Callable[[Any], None]
) -> None:
    path = tiny()
    model = load_model(path)
    plant(model)
    result = probed(model, path)
    assert result.probe is not None
    assert any(s.topic == topic and s.shown for s in result.probe.sights)
    assert result.verdict is Verdict.FAIL
    first = result.first_divergence
    assert first is not None
    assert first.prompt == "probe rows"


def test_an_epsilon_that_is_said_to_be_hidden_replays(tiny: Tiny, load_model: Load) -> None:
    path = tiny(rms_norm_eps=1e-7)
    model = load_model(path)
    model.model.layers[0].post_attention_layernorm.variance_epsilon = 1e-6
    result = probed(model, path)
    assert result.candidates[0].worst_units is not None
    assert result.candidates[0].worst_units < 8
    assert result.probe is not None
    (hidden,) = [s for s in result.probe.sights if s.topic == "norm.eps" and not s.shown]
    assert "epsilon 1e-06 for 1e-07 moves 6 of 7 taps by at most 4.5" in hidden.why
    assert "(layers.0.mlp_norm), below the limit of 8" in hidden.why


def test_epsilon_that_one_token_in_a_hundred_shows(
    tiny: Tiny, load_model: Load, tmp_path: Path
) -> None:
    """Hidden on an ordinary prompt, as its rows are large; the probe has the small one."""
    path = copy_of(tiny(), tmp_path)
    weights = load_file(path / "model.safetensors")
    weights["model.embed_tokens.weight"] *= 100
    weights["model.embed_tokens.weight"][77] *= 1e-5
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    model = load_model(path)
    other_eps_first(model)
    ordinary = check(Silent(model), checkpoint=path, token_ids=[[5, 17, 90, 3, 44, 61]])
    assert ordinary.candidates[0].worst_units is not None
    assert ordinary.candidates[0].worst_units < 8
    first = probed(model, path).first_divergence
    assert first is not None
    assert first.tap == "layers.0.attn_norm"
    assert first.comparison.local is not None
    assert first.comparison.local.worst.index[:2] == (3, 0)  # the row of the smallest, its first


def test_window_that_only_the_probe_fills(tiny: Tiny, load_model: Load) -> None:
    path = tiny("qwen3", sliding_window=30)
    model = load_model(path)
    model.config.sliding_window = 31
    ordinary = check(Silent(model), checkpoint=path, token_ids=[[5, 17, 90, 3, 44, 61]], decode=2)
    assert ordinary.verdict is Verdict.PASS
    first = probed(model, path).first_divergence
    assert first is not None
    assert first.prompt == "probe window 30"  # as it is overrun by decoding
    assert (first.chunk, first.tap) == (1, "layers.1.attn.keys")


def test_positions_that_are_counted_anew_in_every_pass(tiny: Tiny, load_model: Load) -> None:
    path = tiny()
    model = load_model(path)

    def restart(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        length = kwargs["input_ids"].shape[1]
        if kwargs.get("attention_mask") is None:
            kwargs = {**kwargs, "position_ids": torch.arange(length)[None]}
        return args, kwargs

    model.register_forward_pre_hook(restart, with_kwargs=True)
    first = probed(model, path).first_divergence
    assert first is not None
    assert (first.prompt, first.chunk) == ("probe passes", 1)


def test_padding_that_is_ignored(tiny: Tiny, load_model: Load) -> None:
    path = tiny()
    model = load_model(path)

    def ignore(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if kwargs.get("attention_mask") is not None:
            kwargs = {**kwargs, "attention_mask": torch.ones_like(kwargs["attention_mask"])}
        return args, kwargs

    model.register_forward_pre_hook(ignore, with_kwargs=True)
    first = probed(model, path).first_divergence
    assert first is not None
    assert (first.prompt, first.tap) == ("probe padded left", "layers.0.attn.mask")


# Surfaces


class Unpadded(Silent):
    """An engine that takes no padding."""

    @contextmanager
    def open(self, *, cache: bool) -> Any:  # type: ignore[override]  # it lacks padding on purpose
        with super().open(cache=cache) as session:
            yield session


def test_engine_without_padding_gets_no_padded_probes(tiny: Tiny, load_model: Load) -> None:
    path = tiny()
    result = check(Unpadded(load_model(path), name="mine"), checkpoint=path, probe=True)
    assert result.verdict is Verdict.PASS
    assert result.probe is not None
    assert [p.name for p in result.probe.probes] == ["probe rows", "probe passes"]
    (sight,) = [s for s in result.probe.sights if s.topic == "mask.padding"]
    assert sight.why == "mine takes no padded batches"


def test_result_keeps_its_probes(tiny: Tiny) -> None:
    result = run_case(Case("c", str(tiny()), (), engines=("hf:sdpa",), probe=True))
    assert from_json(to_json(result)).probe == result.probe
    plain = run_case(Case("c", str(tiny()), make_prompts(), engines=("hf:sdpa",), greedy=0))
    assert plain.probe is None


def make_prompts() -> Any:
    from harness.case import Prompt

    return (Prompt("mine", token_ids=((1, 2, 3),)),)


def test_probes_come_behind_the_prompts_and_in_tables_of_their_own(tiny: Tiny) -> None:
    case = Case("c", str(tiny()), make_prompts(), engines=("hf:sdpa",), greedy=0, probe=True)
    result = run_case(case)
    assert [p.name for p in result.prompts][:2] == ["mine", "probe rows"]
    text = to_text(result, width=120)
    assert "Logits: mine" in text
    assert "Logits: probe" not in text
    told = " ".join(text.split())
    assert "Probes: inputs made for this checkpoint" in told
    assert "probe rows 6 rows of 12" in told
    assert "probe passes 11 tokens in passes of 6, 5, 1 decoding step" in told
    assert "probe padded left rows of 9, 5, 1, padded left, 1 decoding step" in told
    assert "Faults that these probes do not show" in told
    assert "rope.scaling frequencies are not scaled: type default" in told
    page = to_html(result)
    for words in (
        "<h2>Probes</h2>",
        '<th scope="row">probe padded left</th>',
        "smallest rows of the embedding; largest rows",
        "<code>rope.scaling</code></th><td>frequencies are not scaled: type default",
        "<code>attention.scale</code></th><td>probe rows: a scale 0.1 % larger moves",
    ):
        assert words in page
    assert "<h2>Probes</h2>" not in to_html(replace(result, probe=None))


def test_command_probes_a_model_without_prompts(desk: Any) -> None:
    from typer.testing import CliRunner

    from harness import cli

    ran = CliRunner().invoke(
        cli.app, ["run", "--model", "model", "--engine", "hf:sdpa", "--probe", "--json", "r.json"]
    )
    assert ran.exit_code == 0, ran.output
    assert "Probes: inputs made for this checkpoint" in ran.stdout
    document = json.loads((desk.folder / "r.json").read_text())
    assert document["probe"]["probes"][0]["name"] == "probe rows"
    said = desk.refuses("run", "--model", "model")
    assert said[1] == "a case file, or --prompt, --tokens or --probe"


CASE = """
format = "logits-parity/case"
version = 1
model = "m"
"""


def test_case_file_asks_for_probes() -> None:
    case = parse_case(CASE + "probe = true\nprobe_length = 40", name="c")
    assert (case.probe, case.probe_length, case.prompts) == (True, 40, ())
    with pytest.raises(CaseError):
        parse_case(CASE, name="c")
    with pytest.raises(CaseError) as caught:
        parse_case(CASE + "probe = 1", name="c")
    assert caught.value.expected == "true or false"
