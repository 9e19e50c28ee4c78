"""Names of engines, and the engine that is the reference itself."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness import ReferenceEngine, check
from harness.engines.registry import make_engine, parse_name
from harness.errors import UsageError
from harness.result import Verdict
from harness.subject import load_subject

Tiny = Callable[..., Path]


@pytest.mark.parametrize(
    ("text", "kind", "attention", "dtype"),
    [
        ("hf:eager", "hf", "eager", "float16"),
        ("hf:sdpa@bfloat16", "hf", "sdpa", "bfloat16"),
        ("hf:flash_attention_2", "hf", "flash_attention_2", "float16"),
        ("hf:any", "hf", "any", "float16"),  # whether it is there shows when it is loaded
        ("reference@float32", "reference", "", "float32"),
    ],
)
def test_parse_name_takes_a_name_apart(text: str, kind: str, attention: str, dtype: str) -> None:
    name = parse_name(text, dtype="float16")
    assert (name.text, name.kind, name.attention, name.dtype) == (text, kind, attention, dtype)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("eager", "did you mean hf:eager?"),
        ("hf", "for example hf:eager"),
        ("hf:", "did you mean hf:"),
        ("refrence", "did you mean reference?"),
        ("reference:eager", "did you mean reference?"),
        ("reference:", "did you mean reference?"),
        ("hf:eager@", "did you mean hf:eager?"),
        ("vllm:eager", "for example hf:eager"),
        ("", "for example hf:eager"),
    ],
)
def test_parse_name_refuses_a_wrong_name_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_name(text, dtype="float32")
    assert "expected hf:<attention implementation> or reference" in str(caught.value)
    assert f"found {text!r}" in str(caught.value)
    assert hint in caught.value.advice


def test_make_engine_builds_what_the_name_says(tiny: Tiny) -> None:
    subject = load_subject(tiny())
    made = [
        make_engine(
            parse_name(text, dtype="float32"),
            path=subject.checkpoint.path,
            model=subject.model,
            threads=None,
        )
        for text in ("hf:sdpa@bfloat16", "reference")
    ]
    assert [(e.name, e.dtype) for e in made] == [
        ("hf:sdpa@bfloat16", "bfloat16"),
        ("reference", "float32"),
    ]
    assert [e.info().kind for e in made] == ["transformers", "reference"]


def test_reference_engine_refuses_half_precision(tiny: Tiny) -> None:
    with pytest.raises(UsageError, match="float64 reference still takes part"):
        ReferenceEngine(load_subject(tiny()).model, dtype="bfloat16")


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_reference_engine_replays_its_own_model(tiny: Tiny, family: str) -> None:
    path = tiny(family)
    engine = ReferenceEngine(load_subject(path).model)
    result = check(engine, checkpoint=path, token_ids=[[1, 2, 3, 4], [9, 8, 7, 6]], decode=2)
    assert result.verdict is Verdict.PASS, result.candidates[0].reason
    replayed = result.candidates[0].replayed
    assert replayed == len(result.comparisons) > 0


def test_reference_engine_keeps_float32_throughout(tiny: Tiny) -> None:
    seen: dict[str, str] = {}
    with ReferenceEngine(load_subject(tiny("qwen3")).model).open(cache=True) as session:
        logits = session.feed(np.array([[1, 2]]), lambda tap, x: seen.update({tap: str(x.dtype)}))
        session.feed(np.array([[3]]), lambda tap, x: seen.update({tap: str(x.dtype)}))
    assert set(seen.values()) == {"float32", "bool"}
    assert logits.dtype == np.float32
