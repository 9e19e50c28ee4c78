"""The pipeline from a case to a result, on small models."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness import Case, HFEngine, ParityError, Prompt, ReferenceEngine, RunResult, check, run_case
from harness.contract import TOLERANCE, UNIT_LIMIT
from harness.engines.protocol import Emit
from harness.errors import CheckpointError, UsageError
from harness.pipeline import compare
from harness.result import EngineInfo, TapStatus, Verdict, from_json, to_json
from harness.subject import Subject, load_subject
from harness.taps import AXES_OF_TAP

Load = Callable[..., Any]
Tiny = Callable[..., Path]

ROW = (5, 17, 90, 3, 44, 61, 8)
ENGINES = ("hf:eager", "hf:sdpa", "reference")


def case(path: Path, **changes: Any) -> Case:
    settings: dict[str, Any] = {
        "name": "tiny",
        "model": str(path),
        "prompts": (Prompt("one", token_ids=(ROW,)), Prompt("two", token_ids=(ROW[::-1],))),
        "engines": ENGINES,
        "greedy": 6,
        "decode": 2,
        "threads": 2,
        "seed": 11,
    }
    return Case(**(settings | changes))


@pytest.fixture(scope="module")
def result(tiny: Tiny) -> RunResult:
    return run_case(case(tiny("qwen3")), command="parity run tiny.toml")


def test_healthy_engines_pass(result: RunResult) -> None:
    assert result.verdict is Verdict.PASS
    assert result.exit_code == 0
    assert result.summary == "All engines agree with the reference."
    assert [c.candidate for c in result.candidates] == list(ENGINES)
    assert [c.verdict for c in result.candidates] == [Verdict.PASS] * 3
    assert (result.tolerance, result.unit_limit) == (TOLERANCE, UNIT_LIMIT)


def test_every_tap_of_every_engine_chunk_and_prompt_is_accounted_for(
    result: RunResult, family_taps: Callable[[str, int], set[str]]
) -> None:
    taps = len(family_taps("qwen3", 3))
    for prompt in result.prompts:
        assert prompt.chunks == (7, 1, 1)
        for engine in ENGINES:
            for chunk in range(3):
                mine = [c for c in prompt.comparisons if (c.candidate, c.chunk) == (engine, chunk)]
                assert len({c.tap for c in mine}) == len(mine)
                assert len(mine) == taps
                missing = {c.status for c in mine} - {TapStatus.COMPARED, TapStatus.UNAVAILABLE}
                assert not missing
    by_name = {c.candidate: c for c in result.candidates}
    assert by_name["hf:eager"].compared == by_name["reference"].compared == 2 * 3 * taps
    assert by_name["hf:sdpa"].compared == 2 * 3 * (taps - 3 * 3)


def test_pairs_are_of_all_engines_at_every_tap_that_both_have(result: RunResult) -> None:
    prompt = result.prompts[0]
    pairs = {(p.a, p.b, p.chunk, p.tap) for p in prompt.pairs}
    assert ("hf:eager", "hf:sdpa", 2, "logits") in pairs
    assert ("hf:eager", "reference", 0, "layers.1.attn.scores") in pairs
    assert ("hf:eager", "hf:sdpa", 0, "layers.1.attn.scores") not in pairs


def test_logits_table_has_every_pair_and_float64(result: RunResult) -> None:
    names = ("float64", *ENGINES)
    for prompt in result.prompts:
        found = [(p.a, p.b) for p in prompt.logits]
        assert found == [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
        for pair in prompt.logits:
            assert 0 < pair.mean_abs <= pair.max_abs < TOLERANCE
            assert 0 <= pair.kl_mean <= pair.kl_max < 1e-9
            assert pair.top1_agreement == 1
            assert pair.greedy_agreement == 6


def test_greedy_tokens_are_those_of_each_engine_and_of_float64(result: RunResult) -> None:
    for prompt in result.prompts:
        assert [g.engine for g in prompt.greedy] == ["float64", *ENGINES]
        assert len({g.token_ids for g in prompt.greedy}) == 1
        assert len(prompt.greedy[0].token_ids) == 6
        # the decoding steps that are compared are fed the first of them
        fed = [int(token) for token in prompt.tokens[0][7:]]
        assert fed == list(prompt.greedy[1].token_ids[:2])
        assert prompt.token_ids[0] in (ROW, ROW[::-1])


def test_result_says_what_ran_on_what(result: RunResult, tiny: Tiny) -> None:
    subject = load_subject(tiny("qwen3"))
    assert result.case == "tiny"
    assert result.model.family == "qwen3"
    assert result.model.fingerprint == subject.checkpoint.fingerprint
    sizes = [array.size for array in subject.checkpoint.tensors.values()]
    assert result.model.parameters == sum(sizes)
    assert [e.name for e in result.engines] == list(ENGINES)
    assert [e.kind for e in result.engines] == ["transformers", "transformers", "reference"]
    environment = result.environment
    assert (environment.threads, environment.seed) == (2, 11)
    assert environment.command == "parity run tiny.toml"
    assert environment.versions["torch"] == torch.__version__
    assert environment.seconds > 0


def test_result_survives_writing_and_reading(result: RunResult) -> None:
    assert from_json(to_json(result)) == result


def test_run_is_the_same_again(result: RunResult, tiny: Tiny) -> None:
    again = run_case(case(tiny("qwen3")))
    assert again.prompts == result.prompts
    assert again.candidates == result.candidates


def test_progress_goes_up_to_the_end_of_each_stage(tiny: Tiny) -> None:
    told: dict[str, list[tuple[int, int]]] = {}
    run_case(case(tiny()), progress=lambda s, d, t: told.setdefault(s, []).append((d, t)))
    assert {"load model", "load hf:eager", "one: greedy tokens", "two: replay"} <= set(told)
    for stage, steps in told.items():
        done = [d for d, _ in steps]
        assert done == sorted(done), stage
        assert all(d <= t for d, t in steps)
    assert told["one: replay"][-1] == (9, 9)  # three chunks of three layers


@pytest.mark.parametrize(("greedy", "decode"), [(0, 0), (0, 2), (3, 0), (1, 3)])
def test_steps_are_as_many_as_the_case_says(tiny: Tiny, greedy: int, decode: int) -> None:
    ran = run_case(case(tiny(), greedy=greedy, decode=decode, engines=("hf:eager",)))
    for prompt in ran.prompts:
        assert prompt.chunks == (7, *[1] * decode)
        assert [len(g.token_ids) for g in prompt.greedy] == [greedy] * 2 * bool(greedy)
        agreement = prompt.logits[0].greedy_agreement
        assert agreement == (greedy or None)
        assert {c.chunk for c in prompt.comparisons} == set(range(1 + decode))
    assert ran.verdict is Verdict.PASS


def test_batches_are_compared_without_greedy_tokens(tiny: Tiny) -> None:
    rows = (ROW, ROW[::-1])
    ran = run_case(case(tiny(), prompts=(Prompt("both", token_ids=rows),)))
    assert ran.verdict is Verdict.PASS, ran.candidates
    assert ran.prompts[0].greedy == ()
    assert ran.prompts[0].token_ids == rows
    assert ran.prompts[0].chunks == (7, 1, 1)
    assert {c.shape[0] for c in ran.comparisons} == {2}


def test_summary_names_only_the_worst(tiny: Tiny, load_model: Load) -> None:
    path = tiny()
    bad = load_model(path)
    bad.model.layers[1].self_attn.scaling *= 1.5
    engines = [HFEngine(load_model(path), name="good"), HFEngine(bad, name="bad")]
    ran = check(engines, checkpoint=path, token_ids=[ROW], greedy=5)
    assert ran.verdict is Verdict.FAIL
    assert ran.summary == "bad computes something else than the reference."
    assert [c.verdict for c in ran.candidates] == [Verdict.PASS, Verdict.FAIL]
    assert ran.first_divergence is not None
    assert ran.first_divergence.candidate == "bad"
    pair = next(p for p in ran.prompts[0].logits if (p.a, p.b) == ("good", "bad"))
    assert pair.max_abs > 1e-2
    assert pair.kl_mean > 1e-6


class LogitsAlone:
    """An engine that shows nothing but its logits, one of which is off."""

    name = "alone"
    dtype = "float32"
    unavailable = dict.fromkeys(AXES_OF_TAP.keys() - {"logits"}, "gives logits alone")
    parameters: Mapping[str, Any] = {}

    def __init__(self, inner: HFEngine, *, off: float) -> None:
        self.inner = inner
        self.off = off

    def info(self) -> EngineInfo:
        return EngineInfo(self.name, "test", self.dtype, {})

    @contextmanager
    def open(self, *, cache: bool) -> Iterator["LogitsAlone"]:
        with self.inner.open(cache=cache) as session:
            self.session = session
            yield self

    def feed(self, token_ids: Any, emit: Emit | None = None) -> Any:
        logits = self.session.feed(token_ids)
        logits[0, 2, 9] += self.off
        if emit is not None:
            emit("logits", logits)
        return logits


@pytest.mark.parametrize(
    ("off", "expected"),
    [(0.0, Verdict.PASS), (2 * TOLERANCE, Verdict.FAIL), (float("nan"), Verdict.NOT_FINITE)],
)
def test_engine_that_shows_logits_alone_is_held_against_the_floor_of_the_others(
    tiny: Tiny, load_model: Load, off: float, expected: Verdict
) -> None:
    path = tiny()
    inner = HFEngine(load_model(path))
    good = ReferenceEngine(load_subject(path).model)
    alone = LogitsAlone(inner, off=off)
    ran = check([good, alone], checkpoint=path, token_ids=[ROW])
    assert [c.verdict for c in ran.candidates] == [Verdict.PASS, expected]
    found = ran.candidates[1]
    assert found.replayed == 0
    if expected is Verdict.FAIL:
        assert "the float32 floor is" in found.reason
        by_itself = check(alone, checkpoint=path, token_ids=[ROW]).candidates[0]
        assert "no float32 floor is known" in by_itself.reason
    if expected is not Verdict.NOT_FINITE:
        assert "weaker evidence" in found.reason
        assert found.compared == 1
    else:
        assert from_json(to_json(ran)) == ran


def test_check_takes_an_engine_of_its_own_and_several(tiny: Tiny, load_model: Load) -> None:
    path = tiny()
    engine = HFEngine(load_model(path))
    alone = check(engine, checkpoint=path, token_ids=[ROW], name="mine")
    assert alone.case == "mine"
    assert alone.prompts[0].greedy == ()
    assert alone.prompts[0].chunks == (7,)
    both = check(
        [engine, ReferenceEngine(load_subject(path).model)], checkpoint=path, token_ids=[ROW]
    )
    assert [c.candidate for c in both.candidates] == ["hf:eager", "reference"]


def test_check_takes_numpy_token_ids(tiny: Tiny, load_model: Load) -> None:
    path = tiny()
    ids: Any = np.array([ROW])
    assert check(HFEngine(load_model(path)), checkpoint=path, token_ids=ids).verdict is Verdict.PASS


def test_check_finds_a_fine_tuned_model_to_be_another(tiny: Tiny, load_model: Load) -> None:
    path = tiny()
    model = load_model(path)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.add_(1e-3)
    ran = check(HFEngine(model), checkpoint=path, token_ids=[ROW])
    assert ran.verdict is Verdict.FAIL
    assert ran.first_divergence is not None
    assert ran.first_divergence.tap == "layers.0.mlp.up"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_rounding(tiny: Tiny, dtype: str) -> None:
    ran = run_case(case(tiny("qwen3"), dtype=dtype, engines=("hf:eager", "hf:sdpa")))
    assert ran.verdict is Verdict.ROUNDING, [c.reason for c in ran.candidates]
    for found in ran.candidates:
        assert found.max_abs is not None
        assert found.max_abs > TOLERANCE
        assert found.worst_units is not None
        assert 0 < found.worst_units < UNIT_LIMIT


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (((1, 2, 101),), "expected 0 to 100, the rows of the embedding, found 101"),
        (((1, 2), (3,)), "lengths 1, 2"),
        (((),), "an empty row"),
    ],
)
def test_token_ids_that_the_model_cannot_take_are_refused(
    tiny: Tiny, load_model: Load, rows: Any, message: str
) -> None:
    path = tiny()
    with pytest.raises(ParityError) as caught:
        check(HFEngine(load_model(path)), checkpoint=path, token_ids=rows)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def test_prompt_that_is_too_long_for_the_model_is_refused(tiny: Tiny) -> None:
    path = tiny("llama", max_position_embeddings=8)
    assert run_case(case(path, greedy=1, decode=1)).verdict is Verdict.PASS
    with pytest.raises(UsageError, match=r"at most 8 positions.*found 7 tokens and 2 more"):
        run_case(case(path, greedy=1, decode=2))


def test_prompt_shorter_than_its_length_is_refused() -> None:
    with pytest.raises(ParityError, match="at least length = 9 token ids"):
        Prompt("p", token_ids=(ROW,), length=9)


def test_prompt_is_cut_to_its_length(tiny: Tiny) -> None:
    cut = Prompt("cut", token_ids=(ROW,), length=3)
    ran = run_case(case(tiny(), prompts=(cut,), engines=("hf:eager",)))
    assert ran.prompts[0].token_ids == (ROW[:3],)


def test_engine_that_breaks_in_the_middle_raises_what_it_raised(
    tiny: Tiny, load_model: Load
) -> None:
    path = tiny()
    model = load_model(path)

    def broken(x: Any) -> Any:
        raise ArithmeticError("broken in layer 2")

    model.model.layers[2].mlp.forward = broken
    good = HFEngine(load_model(path), name="good")
    with pytest.raises(ArithmeticError, match="broken in layer 2"):
        check([good, HFEngine(model, name="bad")], checkpoint=path, token_ids=[ROW])
    assert check(good, checkpoint=path, token_ids=[ROW]).verdict is Verdict.PASS


def altered(path: Path, target: Path, **changes: Any) -> Path:
    shutil.copytree(path, target)
    config = json.loads((target / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"unheard_of": 3}, "unheard_of=3"),
        ({"model_type": "mamba"}, "mamba"),
        ({"num_hidden_layers": 2}, "unexpected, read by nobody"),
        ({"num_hidden_layers": 4}, "missing"),
        ({"intermediate_size": 81}, "misshapen"),
    ],
)
def test_checkpoint_that_the_reference_cannot_follow_is_refused(
    tiny: Tiny, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = altered(tiny(), tmp_path / "altered", **changes)
    with pytest.raises(CheckpointError, match=message):
        load_subject(path)


def test_compare_shares_a_subject_among_runs(tiny: Tiny, load_model: Load) -> None:
    subject: Subject = load_subject(tiny())
    engine = HFEngine(load_model(tiny()))
    one = case(tiny(), prompts=(Prompt("p", token_ids=(ROW,)),), greedy=0, decode=0)
    runs = [compare(subject, [engine], [np.array([ROW])], one) for _ in range(2)]
    assert runs[0].candidates == runs[1].candidates
    assert runs[0].verdict is Verdict.PASS
