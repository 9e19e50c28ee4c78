"""Prompts that are fed in several forward passes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.case import Case, Prompt
from harness.case_file import parse_case
from harness.engines.hf import HFEngine
from harness.errors import CaseError, UsageError
from harness.pipeline import run_case
from harness.prompts import passes_of
from harness.report.text import to_text
from harness.report.wording import prompt_title
from harness.result import RunResult, Verdict
from harness.taps import chunk_name

Tiny = Callable[..., Path]
IDS = (5, 17, 90, 3, 44, 61, 8, 29, 73, 12, 1, 55)


def run(path: Path, prompt: Prompt, *, engines: tuple[str, ...] = ("hf:eager",)) -> RunResult:
    return run_case(Case("c", str(path), (prompt,), engines=engines, greedy=0, decode=0))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "gpt2"])
def test_passes_replay_and_end_like_one(tiny: Tiny, family: str) -> None:
    engines = ("hf:eager", "hf:sdpa", "reference")
    prompt = Prompt("p", token_ids=(IDS,), prefill=(1, 7, 4), decode=2, greedy=3)
    result = run(tiny(family), prompt, engines=engines)
    assert result.verdict in (Verdict.PASS, Verdict.ROUNDING)
    (found,) = result.prompts
    assert found.chunks == (1, 7, 4, 1, 1)
    assert (found.prefill, found.token_ids) == (3, (IDS,))
    assert prompt_title(found) == "p (12 tokens, in passes of 1, 7, 4, 2 decoding steps)"
    assert {len(g.token_ids) for g in found.greedy} == {3}
    # Logits of all passes together, as those of one pass.
    whole = run(tiny(family), Prompt("p", token_ids=(IDS,)), engines=engines).prompts[0].logits
    for a, b in zip(found.logits, whole, strict=True):
        assert (a.a, a.b, a.top1_agreement) == (b.a, b.b, b.top1_agreement)
        assert 0 < a.kl_max < 1e-6


def test_padded_passes_replay(tiny: Tiny) -> None:
    rows = (IDS, IDS[:4])
    prompt = Prompt("p", token_ids=rows, padding="left", prefill=(6, 6), decode=1)
    result = run(tiny("qwen3"), prompt, engines=("hf:eager", "hf:sdpa", "reference"))
    assert result.verdict in (Verdict.PASS, Verdict.ROUNDING), result.candidates
    assert result.prompts[0].logits[0].top1_agreement == 1


def test_fault_of_a_later_pass_is_placed_there(
    tiny: Tiny, load_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions that start anew in every pass."""
    import torch

    path = tiny()
    model = load_model(path)

    def restart(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        length = kwargs["input_ids"].shape[1]
        return args, {**kwargs, "position_ids": torch.arange(length)[None]}

    model.register_forward_pre_hook(restart, with_kwargs=True)
    monkeypatch.setattr(HFEngine, "load", lambda *args, **kwargs: HFEngine(model))
    result = run(path, Prompt("p", token_ids=(IDS,), prefill=(5, 7)))
    first = result.first_divergence
    assert first is not None
    assert (first.chunk, first.tap) == (1, "layers.0.attn.q_rope")
    assert "in pass 2 of 2 of the prefill" in result.candidates[0].reason
    text = " ".join(to_text(result).split())
    assert "(prompt p, pass 2 of 2 of the prefill)" in text
    assert "layers.0.attn.k_rope (pass 2 of 2 of the prefill)" in text
    assert "decoding step" not in text


def test_name_of_a_pass() -> None:
    assert [chunk_name(n) for n in range(3)] == ["prefill", "decoding step 1", "decoding step 2"]
    assert [chunk_name(n, 2) for n in range(3)] == [
        "pass 1 of 2 of the prefill",
        "pass 2 of 2 of the prefill",
        "decoding step 1",
    ]


def test_passes_that_do_not_add_up_are_refused() -> None:
    prompt = Prompt("p", token_ids=((1, 2, 3),), prefill=(1, 1))
    with pytest.raises(UsageError) as caught:
        passes_of(prompt, np.array([[1, 2, 3]]))
    assert caught.value.expected == "prefill that adds up to 3, the number of tokens"
    assert caught.value.found == "[1, 1], 2 together"


@pytest.mark.parametrize(
    "values",
    [{"prefill": (2, 0, 1)}, {"decode": -1}, {"greedy": -1}],
    ids=["0", "decode", "greedy"],
)
def test_numbers_that_cannot_be_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(CaseError):
        Prompt("p", token_ids=((1, 2, 3),), **values)


TEXT = """
format = "logits-parity/case"
version = 1
model = "m"
[[prompts]]
token_ids = [1, 2, 3]
"""


def test_case_file_says_passes() -> None:
    case = parse_case(TEXT + "prefill = [1, 2]\ndecode = 0\ngreedy = 1", name="c")
    assert case.prompts == (
        Prompt("prompt-1", token_ids=((1, 2, 3),), prefill=(1, 2), decode=0, greedy=1),
    )
    with pytest.raises(CaseError) as caught:
        parse_case(TEXT + "prefill = 3", name="c")
    assert caught.value.expected == "a list of whole numbers"
