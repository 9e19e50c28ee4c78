"""Rows of unequal length: what is real is as if alone, what is padding is not compared."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from harness import HFEngine, ReferenceEngine, check
from harness.case import Case, Prompt
from harness.engines.protocol import begin
from harness.errors import CaseError, EngineError, NotComparableError, ParityError, UsageError
from harness.greedy import greedy
from harness.padding import Padding, pad_rows, padding_of
from harness.prompts import tokens_of
from harness.report.wording import prompt_title
from harness.result import RunResult, Verdict
from harness.subject import load_subject
from harness.trace.read import Trace
from harness.trace.record import record_trace

Tiny = Callable[..., Path]
Load = Callable[..., Any]

ROWS = ((5, 17, 90, 3, 44, 61, 8, 29, 73, 12), (7, 3, 9), (1, 2, 3, 4, 5, 6, 7))
FAMILIES = ["llama", "qwen3", "gemma3_text", "gpt2", "granite", "qwen3_moe", "stablelm", "gpt_oss"]
#: Their layers have windows of 6.
WINDOWED = ("qwen3", "gemma3_text", "gpt_oss")
LEFT = Padding("left", (0, 7, 3), 10)
RIGHT = Padding("right", (0, 7, 3), 10)


def test_left_padding_counts_tokens() -> None:
    padding = Padding("left", (0, 2), 4)
    assert padding.real(0, 6).tolist() == [[True] * 6, [False, False, *[True] * 4]]
    assert padding.positions(0, 6).tolist() == [[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 2, 3]]
    assert padding.positions(4, 6).tolist() == [[4, 5], [2, 3]]
    assert padding.last.tolist() == [3, 3]


def test_right_padding_counts_tokens() -> None:
    padding = Padding("right", (0, 2), 4)
    assert padding.real(0, 6)[1].tolist() == [True, True, False, False, True, True]
    assert padding.positions(0, 6)[1].tolist() == [0, 1, 1, 1, 2, 3]
    assert padding.positions(4, 6).tolist() == [[4, 5], [2, 3]]
    assert padding.last.tolist() == [3, 1]


@pytest.mark.parametrize("side", ["left", "right"])
def test_pad_rows_puts_tokens_where_padding_says(side: str) -> None:
    rows = [[1, 2, 3], [4], [5, 6]]
    padding = padding_of(rows, side)
    assert padding is not None
    table = pad_rows(rows, padding, 9)
    assert [row[real].tolist() for row, real in zip(table, padding.real(0, 3), strict=True)] == rows
    assert np.all(table[~padding.real(0, 3)] == 9)


def test_padding_of_is_none_where_nothing_is_to_be_filled_up() -> None:
    assert padding_of([[1, 2], [3, 4]], "left") is None
    assert padding_of([[1, 2], [3]], None) is None
    assert padding_of(None, "left") is None
    assert padding_of([[1, 2, 3], [4, 5]], "left", cut=2) is None


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("middle", (0, 1), 3), "'middle'"),
        (("left", (1, 1), 3), "[1, 1]"),
        (("left", (0, 3), 3), "[0, 3]"),
        (("left", (), 3), "[]"),
    ],
)
def test_padding_that_cannot_be_is_refused(arguments: Any, found: str) -> None:
    with pytest.raises(CaseError) as caught:
        Padding(*arguments)
    assert caught.value.found == found


def test_real_columns_of_each_kind_of_tap() -> None:
    real = Padding("left", (0, 1), 3).chunk(0, 3)

    def counted(tap: str, shape: tuple[int, ...]) -> list[Any]:
        found = real.of(tap, shape)
        assert found is not None
        assert found.shape == shape
        return list(found[1].tolist())

    assert counted("embed", (2, 3, 1)) == [[False], [True], [True]]
    assert counted("layers.0.attn.q", (2, 1, 3, 1)) == [[[False], [True], [True]]]
    assert counted("layers.0.attn.keys", (2, 1, 3, 1)) == [[[False], [True], [True]]]
    row = [False, True, True]
    assert counted("layers.0.attn.scores", (2, 1, 3, 3)) == [[[False] * 3, row, row]]
    # Whether a pad is seen is right or wrong.
    assert counted("layers.0.attn.probs", (2, 1, 3, 3)) == [[[False] * 3, [True] * 3, [True] * 3]]
    assert counted("layers.0.attn.mask", (2, 3, 3)) == [[False] * 3, [True] * 3, [True] * 3]


def test_real_columns_of_a_window_are_the_last_ones() -> None:
    real = LEFT.chunk(10, 11)
    found = real.of("layers.0.attn.keys", (3, 1, 6, 1))
    assert found is not None
    assert found[1, 0, :, 0].tolist() == [False, False, True, True, True, True]
    assert real.start.tolist() == [10, 3, 7]


@pytest.mark.parametrize("padding", [LEFT, RIGHT], ids=["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_law_padding_changes_nothing_in_the_reference(
    tiny: Tiny, family: str, padding: Padding
) -> None:
    engine = ReferenceEngine(load_subject(tiny(family)).model, dtype="float64")
    steps = 0 if family in WINDOWED and padding.side == "right" else 3
    tokens = pad_rows(ROWS, padding, 0)
    after = np.array([[4, 40, 14], [2, 20, 12], [11, 6, 60]])
    with begin(engine, cache=True, padding=padding) as session:
        together = [session.feed(tokens), *(session.feed(after[:, [i]]) for i in range(steps))]
    whole = np.concatenate(together, axis=1)
    for row, tail, real, found in zip(ROWS, after, padding.real(0, 10 + steps), whole, strict=True):
        with engine.open(cache=False) as session:
            alone = session.feed(np.array([[*row, *tail[:steps]]]))[0]
        assert np.max(np.abs(found[real] - alone)) <= 1e-12 * np.max(np.abs(alone))


def run(
    model: Any, path: Path, side: str, *, decode: int = 0, dtype: str | None = None
) -> RunResult:
    return check(model, checkpoint=path, token_ids=ROWS, padding=side, decode=decode, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_healthy_padded_batch_replays(tiny: Tiny, family: str, side: str, dtype: str) -> None:
    fused = [] if family == "gpt_oss" else ["hf:sdpa"]  # which it has no kernel for
    engines = ["hf:eager", *fused, *(["reference"] if dtype == "float32" else [])]
    decode = 0 if family in WINDOWED and side == "right" else 2
    result = run(engines, tiny(family), side, decode=decode, dtype=dtype)
    assert result.verdict in (Verdict.PASS, Verdict.ROUNDING), result.candidates
    prompt = result.prompts[0]
    assert (prompt.padding, prompt.pads) == (side, (0, 7, 3))
    embeds = [c.difference for c in prompt.comparisons if c.tap == "embed" and c.chunk == 0]
    assert [d.count for d in embeds if d is not None] == [20 * 48] * len(engines)  # of 30 columns


def test_long_row_scales_a_dynamic_rotation_of_all_rows(tiny: Tiny) -> None:
    path = tiny(
        max_position_embeddings=8,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    )
    result = run(["hf:eager", "hf:sdpa", "reference"], path, "left", decode=2)
    assert result.verdict in (Verdict.PASS, Verdict.ROUNDING)


@contextmanager
def changed(model: Any, change: Callable[[dict[str, Any]], None]) -> Iterator[Any]:
    """The model with arguments of its forward changed before they are used."""

    def before(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        change(kwargs)
        return args, kwargs

    handle = model.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield model
    finally:
        handle.remove()


def mask_ignored(kwargs: dict[str, Any]) -> None:
    # Not None: transformers then takes positions that do not grow for sequences packed in one row.
    kwargs["attention_mask"] = torch.ones_like(kwargs["attention_mask"])


def nothing_passed(kwargs: dict[str, Any]) -> None:
    del kwargs["attention_mask"], kwargs["position_ids"]


def positions_not_shifted(kwargs: dict[str, Any]) -> None:
    ends, length = kwargs["attention_mask"].shape[1], kwargs["input_ids"].shape[1]
    kwargs["position_ids"] = torch.arange(ends - length, ends)[None].expand(3, -1)


def other_side(kwargs: dict[str, Any]) -> None:
    mask = kwargs["attention_mask"].flip(1)
    length = kwargs["input_ids"].shape[1]
    kwargs["attention_mask"] = mask
    kwargs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -length:]


def one_pad_too_few(kwargs: dict[str, Any]) -> None:
    mask = kwargs["attention_mask"].clone()
    mask[1, 6] = 1
    kwargs["attention_mask"] = mask


FIRST_ROTATED = "layers.0.attn.q_rope"
FAULTS: list[tuple[Any, str, str, str, str]] = [
    (mask_ignored, "left", "llama", "layers.0.attn.mask", "layers.0.attn.context"),
    (mask_ignored, "left", "gpt2", "layers.0.attn.mask", "layers.0.attn.context"),
    (mask_ignored, "left", "qwen3", "layers.0.attn.mask", "layers.0.attn.context"),
    (mask_ignored, "left", "gemma3_text", "layers.0.attn.mask", "layers.0.attn.context"),
    (nothing_passed, "left", "llama", FIRST_ROTATED, FIRST_ROTATED),
    (one_pad_too_few, "left", "llama", "layers.0.attn.mask", "layers.0.attn.context"),
    (positions_not_shifted, "left", "llama", FIRST_ROTATED, FIRST_ROTATED),
    (positions_not_shifted, "left", "gemma3_text", FIRST_ROTATED, FIRST_ROTATED),
    (positions_not_shifted, "left", "gpt2", "pos_embed", "pos_embed"),
    (other_side, "right", "llama", FIRST_ROTATED, FIRST_ROTATED),
    (other_side, "left", "qwen3", FIRST_ROTATED, FIRST_ROTATED),
    (other_side, "right", "gpt2", "pos_embed", "pos_embed"),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("fault", FAULTS, ids=[f"{f[0].__name__}-{f[1]}-{f[2]}" for f in FAULTS])
def test_planted_fault_is_placed(
    tiny: Tiny, load_model: Load, fault: Any, attention: str, dtype: str
) -> None:
    change, side, family, eager, sdpa = fault
    path = tiny(family)
    with changed(load_model(path, attention=attention, dtype=dtype), change) as model:
        result = run(model, path, side)
    first = result.first_divergence
    assert result.verdict is Verdict.FAIL
    assert first is not None
    assert first.fresh
    assert first.tap == (eager if attention == "eager" else sdpa)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_fault_in_decoding_alone_is_placed_there(
    tiny: Tiny, load_model: Load, attention: str
) -> None:
    def forgets(kwargs: dict[str, Any]) -> None:
        if kwargs["input_ids"].shape[1] == 1:
            mask_ignored(kwargs)

    path = tiny()
    with changed(load_model(path, attention=attention), forgets) as model:
        result = run(model, path, "left", decode=2)
    first = result.first_divergence
    assert first is not None
    assert (first.chunk, first.tap.rpartition(".")[2]) == (
        1,
        "mask" if attention == "eager" else "context",
    )


def test_position_of_a_divergence_counts_tokens(tiny: Tiny, load_model: Load) -> None:
    path = tiny()
    model = load_model(path)

    def poke(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[1, 8] += 1.0  # the second of three tokens, behind seven pads
        return output

    model.model.layers[1].mlp.up_proj.register_forward_hook(poke)
    result = run(model, path, "left")
    first = result.first_divergence
    assert first is not None
    assert first.comparison.local is not None
    worst = first.comparison.local.worst
    assert (first.tap, worst.position, worst.index[:2]) == ("layers.1.mlp.up", 1, (1, 8))


@dataclass
class AtPads:
    """An engine whose taps hold something else at pads, or at one token."""

    inner: Any
    value: float
    at_token: bool = False

    @property
    def name(self) -> str:
        return str(self.inner.name)

    dtype = "float32"
    parameters: Any = None
    unavailable: Any = None

    def __post_init__(self) -> None:
        self.parameters, self.unavailable = {}, {}

    def info(self) -> Any:
        return self.inner.info()

    @contextmanager
    def open(self, *, cache: bool, padding: Padding | None = None) -> Iterator[Any]:
        with self.inner.open(cache=cache, padding=padding) as session:
            yield AtPadsSession(self, session, padding)


@dataclass
class AtPadsSession:
    engine: AtPads
    session: Any
    padding: Any
    fed: int = 0

    def feed(self, token_ids: NDArray[Any], emit: Any = None) -> Any:
        start, self.fed = self.fed, self.fed + token_ids.shape[1]
        real = self.padding.chunk(start, self.fed)

        def other(tap: str, array: NDArray[Any]) -> None:
            counted = real.of(tap, array.shape)
            if counted is not None and array.dtype != bool:
                array = np.where(counted, array, np.float32(self.engine.value))
                if self.engine.at_token and tap == "layers.1.mlp.act":
                    array[1, -1, 0] = np.nan
            emit(tap, array)

        return self.session.feed(token_ids, None if emit is None else other)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e9])
def test_what_is_at_pads_is_not_compared(tiny: Tiny, side: str, value: float) -> None:
    path = tiny()
    engine = AtPads(ReferenceEngine(load_subject(path).model), value)
    result = run(engine, path, side, decode=2 if side == "left" else 0)
    assert result.verdict in (Verdict.PASS, Verdict.ROUNDING), result.candidates[0].reason
    assert result.candidates[0].max_abs is not None
    assert result.candidates[0].max_abs < 1e-2


def test_nan_at_a_token_is_found_among_those_at_pads(tiny: Tiny) -> None:
    path = tiny()
    engine = AtPads(ReferenceEngine(load_subject(path).model), np.nan, at_token=True)
    result = run(engine, path, "left")
    first = result.first_divergence
    assert result.verdict is Verdict.NOT_FINITE
    assert first is not None
    assert first.tap == "layers.1.mlp.act"
    assert "at [1, 9, 0]" in first.comparison.note


def test_logits_are_compared_at_tokens_alone(tiny: Tiny) -> None:
    path = tiny()
    engine = AtPads(ReferenceEngine(load_subject(path).model), 1e9)
    other = ReferenceEngine(load_subject(path).model, name="other")
    result = run([engine, other], path, "left")
    assert [pair.top1_agreement for pair in result.prompts[0].logits] == [1, 1, 1]
    assert max(pair.max_abs for pair in result.prompts[0].logits) < 1e-3
    assert max(pair.max_abs for pair in result.prompts[0].pairs) < 1e-3


@pytest.mark.parametrize("padding", [LEFT, RIGHT], ids=["left", "right"])
def test_greedy_goes_on_from_the_last_token(tiny: Tiny, padding: Padding) -> None:
    engine = HFEngine.load(tiny())
    together = greedy(engine, pad_rows(ROWS, padding, 0), 4, padding=padding)
    alone = [greedy(engine, np.array([row]), 4)[0].tolist() for row in ROWS]
    assert together.tolist() == alone


def test_tokens_between_pads_and_a_window_are_refused(tiny: Tiny) -> None:
    with pytest.raises(UsageError) as caught:
        run("hf:eager", tiny("qwen3"), "right", decode=1)
    assert caught.value.expected == "padding before all tokens, as a window of 6 slides over them"
    assert caught.value.found == "padding between tokens"


def test_window_that_holds_everything_may_have_pads_between(tiny: Tiny) -> None:
    result = run(["hf:eager", "hf:sdpa"], tiny("qwen3", sliding_window=16), "right", decode=2)
    assert result.verdict in (Verdict.PASS, Verdict.ROUNDING)


class Unpadded:
    """An engine that takes no padding."""

    name, dtype = "mine", "float32"

    def __init__(self) -> None:
        self.unavailable: dict[str, str] = {}
        self.parameters: dict[str, Any] = {}

    def info(self) -> Any:
        raise AssertionError

    def open(self, *, cache: bool) -> Any:
        raise AssertionError


def test_engine_without_padding_is_told_apart(tiny: Tiny) -> None:
    with pytest.raises(EngineError) as caught:
        run(Unpadded(), tiny(), "left")
    assert caught.value.where == "engine mine"
    assert caught.value.found == "one whose open takes no padding"


def test_trace_takes_no_part_in_a_padded_comparison(tiny: Tiny, tmp_path: Path) -> None:
    subject, path = load_subject(tiny()), tmp_path / "t.safetensors"
    tokens = np.array([[1, 2, 3]])
    record_trace(subject, ReferenceEngine(subject.model), tokens, path, taps=("logits",))
    with pytest.raises(NotComparableError), Trace(path).source([tokens], LEFT):
        pass


@pytest.mark.parametrize(
    ("config", "given", "token"),
    [
        ({"pad_token_id": 7}, None, 7),
        ({"pad_token_id": 7}, 0, 0),
        ({}, None, 0),
        ({"pad_token_id": None}, None, 0),
        ({"pad_token_id": 4000}, None, 0),
        ({"pad_token_id": -1}, None, 0),
    ],
)
def test_pad_token_is_the_given_one_or_the_configs(
    tiny: Tiny, config: dict[str, Any], given: int | None, token: int
) -> None:
    subject = load_subject(tiny())
    subject = replace(
        subject,
        checkpoint=replace(subject.checkpoint, config={**subject.checkpoint.config, **config}),
    )
    prompt = Prompt("p", token_ids=((1, 2, 3), (4,)), padding="left", pad_token=given)
    assert tokens_of(subject, prompt).tolist() == [[1, 2, 3], [token, token, 4]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"token_ids": ((1,), (2, 3))}, "rows of token_ids of one length"),
        ({"token_ids": ((1,), (2, 3)), "padding": "lef"}, "padding left or right"),
        ({"text": "x", "padding": "left"}, "token_ids beside padding"),
        ({"token_ids": ((1,),), "pad_token": 3}, "padding beside pad_token"),
        ({"token_ids": ((1,),), "padding": "left", "pad_token": -1}, "pad_token of 0 or more"),
    ],
)
def test_prompt_whose_padding_does_not_fit_is_refused(
    values: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ParityError) as caught:
        Case("c", "m", (Prompt("p", **values),))
    assert caught.value.expected == expected


def test_title_of_a_padded_prompt_says_so(tiny: Tiny) -> None:
    result = run("reference", tiny(), "left")
    assert prompt_title(result.prompts[0]) == "tokens (3 rows of 10 tokens, padded left by 0, 7, 3)"


def test_command_pads_rows(desk: Any) -> None:
    from typer.testing import CliRunner

    from harness import cli

    ran = CliRunner().invoke(
        cli.app,
        [
            *("run", "--model", "model", "--engine", "hf:sdpa", "--no-report"),
            *("--tokens", "1,2,3;4", "--padding", "left"),
        ],
    )
    assert ran.exit_code == 0, ran.output
    assert "padded left by 0, 2" in ran.output
    said = desk.refuses("run", "--model", "model", "--prompt", "x", "--padding", "left")
    assert said[:3] == ("--padding", "--tokens beside it", "none")
    said = desk.refuses("run", "--model", "model", "--tokens", "1,2;3")
    assert said[1] == "rows of token_ids of one length"


def test_case_file_pads_rows() -> None:
    from harness.case_file import parse_case

    text = """
    format = "logits-parity/case"
    version = 1
    model = "m"
    [[prompts]]
    token_ids = [[1, 2, 3], [4]]
    padding = "right"
    pad_token = 5
    """
    assert parse_case(text, name="c").prompts == (
        Prompt("prompt-1", token_ids=((1, 2, 3), (4,)), padding="right", pad_token=5),
    )
