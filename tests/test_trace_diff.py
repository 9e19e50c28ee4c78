"""Traces from outside: recorded, checked, compared, replayed."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner, Result

from harness import cli
from harness.result import EngineInfo, RunResult, TapStatus, Verdict, from_json
from harness.trace.plain import compare_taps

TOKENS = "5,17,80,3,42,9,11"
REPEATS = 3


def parity(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments], env={"COLUMNS": "100"})


def loaded(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Head and tensors of a trace, read with nothing of ours."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        head = json.loads(file.metadata()["logits-parity"])
        return head, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - safe_open has keys, but no iterator


def saved(path: Path, head: dict[str, Any], tensors: dict[str, Any]) -> Path:
    """A trace as somebody else's engine writes it: by a safetensors library, in its order."""
    kept = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(kept, path, metadata={"logits-parity": json.dumps(head)})
    return path


def diffed(*arguments: object, tmp_path: Path) -> tuple[int, RunResult]:
    target = tmp_path / "result.json"
    found = parity("diff", *arguments, "--json", target, "--no-report")
    assert target.exists(), found.output
    return found.exit_code, from_json(target.read_bytes())


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Path]) -> Path:
    return tiny()


@pytest.fixture(scope="module")
def eager(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(model, tmp_path_factory.mktemp("traces") / "eager.safetensors")


def recorded(model: Path, path: Path, engine: str = "hf:eager", *more: str) -> Path:
    found = parity(
        "trace", model, "--engine", engine, "--tokens", TOKENS, "--decode", 2, "-o", path, *more
    )
    assert found.exit_code == 0, found.output
    assert str(path) in found.output.splitlines()[-1]
    return path


def test_recorded_trace_is_sound_also_in_the_eyes_of_the_model(model: Path, eager: Path) -> None:
    for arguments in ([], [model]):
        found = parity("trace", *arguments, "--check", eager)
        assert found.exit_code == 0
        assert "0 errors, 0 warnings" in found.output


@pytest.mark.parametrize("engine", ["hf:sdpa", "reference"])
def test_trace_of_one_engine_and_another_engine_agree(
    engine: str, model: Path, eager: Path, tmp_path: Path
) -> None:
    code, result = diffed(eager, engine, "--model", model, tmp_path=tmp_path)
    assert code == 0
    assert result.prompts[0].chunks == (7, 1, 1)
    assert [c.candidate for c in result.candidates] == ["hf:eager", engine]
    assert all(c.verdict in (Verdict.PASS, Verdict.ROUNDING) for c in result.candidates)
    assert result.candidates[0].replayed == result.candidates[0].compared > 190


def test_two_traces_find_their_model_themselves(model: Path, eager: Path, tmp_path: Path) -> None:
    other = recorded(model, tmp_path / "sdpa.safetensors", "hf:sdpa")
    code, result = diffed(eager, other, tmp_path=tmp_path)
    assert code == 0
    assert result.model.origin == str(model)
    assert result.candidates[1].replayed > 100


def test_two_traces_without_replay_pass_within_the_tolerance_and_no_further(
    model: Path, eager: Path, tmp_path: Path
) -> None:
    head, tensors = loaded(eager)
    for size, verdict, code in ((5e-5, Verdict.PASS, 0), (2e-3, Verdict.NOT_COMPARABLE, 3)):
        changed = dict(tensors)
        for name in ("1/layers.1.attn.out", "1/layers.1.resid_mid"):
            changed[name] = tensors[name] + np.float32(size)
        other = saved(tmp_path / "other.safetensors", head, changed)
        found, result = diffed(eager, other, "--no-replay", tmp_path=tmp_path)
        assert (found, result.verdict) == (code, verdict)
        assert result.against == f"hf:eager ({eager})"
    first = result.first_divergence
    assert first is not None
    assert (first.chunk, first.tap) == (1, "layers.1.attn.out")
    assert "name it with --model" in result.candidates[0].reason


def test_wrong_rotation_in_a_trace_is_found_at_its_op(
    model: Path, tiny: Callable[..., Path], tmp_path: Path
) -> None:
    wrong = tiny(rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    trace = recorded(wrong, tmp_path / "wrong.safetensors")
    head, tensors = loaded(trace)
    head["model"] = {}
    trace = saved(trace, head, tensors)
    code, result = diffed(trace, "hf:eager", "--model", model, tmp_path=tmp_path)
    assert code == 1
    assert result.first_divergence is not None
    assert result.first_divergence.tap == "layers.0.attn.q_rope"
    assert [c.verdict for c in result.candidates] == [Verdict.FAIL, Verdict.PASS]


def foreign(head: dict[str, Any], tensors: dict[str, Any]) -> None:
    """The same run as an engine stores it that has no batch axis and permuted, repeated heads."""
    head["layout"] = {
        "attn.q": {"axes": "T(HD)", "heads": 6, "pairing": "interleaved"},
        "attn.q_rope": {"axes": "THD", "pairing": "interleaved"},
        "attn.k_rope": {"pairing": "interleaved"},
        "attn.keys": {"pairing": "interleaved", "repeats": REPEATS},
        "attn.values": {"repeats": REPEATS},
        "attn.k": {"pairing": "interleaved"},
        "attn.mask": {"values": "hidden"},
        "logits": {"positions": "last"},
    }
    for name, array in tensors.items():
        kind = name.split(".", 2)[-1]
        if kind in ("attn.q", "attn.q_rope", "attn.k", "attn.k_rope", "attn.keys"):
            halves = np.split(array, 2, axis=-1)
            array = np.stack(halves, axis=-1).reshape(array.shape)
        if kind == "attn.q":
            array = array[0].transpose(1, 0, 2).reshape(array.shape[2], -1)
        if kind == "attn.q_rope":
            array = array[0].transpose(1, 0, 2)
        if kind in ("attn.keys", "attn.values"):
            array = np.repeat(array, REPEATS, axis=1)
        if kind == "attn.mask":
            array = (~array).astype(np.uint8)
        if name.endswith("logits"):
            array = array[:, -1:]
        tensors[name] = array


def test_layout_notes_make_another_engines_trace_replay(
    model: Path, eager: Path, tmp_path: Path
) -> None:
    head, tensors = loaded(eager)
    head["engine"]["name"] = "candle"
    foreign(head, tensors)
    path = saved(tmp_path / "candle.safetensors", head, tensors)
    checked = parity("trace", model, "--check", path)
    assert checked.exit_code == 0, checked.output
    code, result = diffed("reference", path, "--model", model, tmp_path=tmp_path)
    assert code == 0, result.candidates
    logits = [c for c in result.comparisons if c.candidate == "candle" and c.tap == "logits"]
    assert [c.note for c in logits] == ["the last 1 of 7 positions", "", ""]
    assert logits[0].difference is not None
    assert logits[0].difference.worst.position == 6
    assert logits[0].shape[1] == 7


@pytest.mark.parametrize("kind", ["attn.q_rope", "attn.keys", "attn.mask"])
def test_missing_layout_note_is_noticed(
    kind: str, model: Path, eager: Path, tmp_path: Path
) -> None:
    head, tensors = loaded(eager)
    foreign(head, tensors)
    del head["layout"][kind]["axes" if kind == "attn.q_rope" else next(iter(head["layout"][kind]))]
    path = saved(tmp_path / "candle.safetensors", head, tensors)
    found = parity("diff", path, "reference", "--model", model, "--no-report")
    assert found.exit_code in (1, 2)
    assert kind.removeprefix("attn.") in found.output


def test_logits_alone_are_judged_by_the_floor_and_said_to_be_weaker(
    model: Path, eager: Path, tmp_path: Path
) -> None:
    head, tensors = loaded(eager)
    kept = {name: array for name, array in tensors.items() if name.endswith("logits")}
    head["unavailable"] = {"*": "the engine gives logits alone"}
    head["engine"]["name"] = "mine"
    for shift, verdict in ((0.0, None), (0.05, Verdict.FAIL)):
        changed = {name: array + np.float32(shift) for name, array in kept.items()}
        # A pattern that covers the logits too would hide them.
        head["unavailable"] = {"[!l]*": "logits alone", "layers.*": "logits alone"}
        path = saved(tmp_path / "logits.safetensors", head, changed)
        code, result = diffed(path, eager, "--model", model, tmp_path=tmp_path)
        mine = result.candidates[0]
        assert "weaker evidence" in mine.reason
        assert (code == 1) == (verdict is Verdict.FAIL)
        assert mine.verdict is Verdict.FAIL or verdict is None


def test_taps_that_were_not_asked_for_are_declared(model: Path, tmp_path: Path) -> None:
    path = recorded(model, tmp_path / "few.safetensors", "hf:eager", "--taps", "resid_post")
    head, tensors = loaded(path)
    assert {name.split(".")[-1] for name in tensors} == {"resid_post"}
    assert head["unavailable"]["layers.0.attn.q"] == "not asked for"
    assert parity("trace", model, "--check", path).exit_code == 0
    code, result = diffed(path, "hf:eager", "--model", model, tmp_path=tmp_path)
    statuses = {c.status for c in result.comparisons if c.candidate.startswith("hf:eager (")}
    assert statuses == {TapStatus.COMPARED, TapStatus.UNAVAILABLE}
    assert code == 0


def edit_head(**changes: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda head, tensors: head.update(changes)


def drop(*names: str) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def plant(head: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name in names:
            del tensors[name]

    return plant


def change(
    name: str, how: Callable[[Any], Any]
) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda head, tensors: tensors.update({name: how(tensors[name])})


DEFECTS = {
    "format": (edit_head(format="else"), 'write "format": "logits-parity/trace", "version": 1'),
    "newer": (edit_head(version=2), "upgrade: pip install -U logits-parity"),
    "unknown key": (edit_head(chunk=[7]), "did you mean 'chunks'?"),
    "chunk sum": (edit_head(chunks=[7, 1]), "a sum of 9, the number of token_ids in a row"),
    "ragged ids": (edit_head(token_ids=[[1], [1, 2]]), "rows of ids of 0 and up, of one length"),
    "id beyond": (edit_head(token_ids=[[101] * 9]), "0 to 100"),
    "no engine": (edit_head(engine=None), "metadata: engine"),
    "dtype": (edit_head(engine={"name": "x", "dtype": "int8"}), "float32 or bfloat16 or float16"),
    "layout kind": (edit_head(layout={"attn.kk": {}}), "did you mean 'attn.k'?"),
    "layout axes": (edit_head(layout={"embed": {"axes": "BTD"}}), "the letters BTC"),
    "layout heads": (edit_head(layout={"attn.q": {"axes": "BT(HD)"}}), 'write "heads": 9'),
    "layout key": (edit_head(layout={"embed": {"axis": "BTC"}}), "did you mean 'axes'?"),
    "pairing": (edit_head(layout={"embed": {"pairing": "interleaved"}}), "remove it from this tap"),
    "hole": (drop("1/layers.1.attn.q"), "1 are absent: attn.q (1), first 1/layers.1.attn.q"),
    "kv repeated": (
        change("0/layers.0.attn.k", lambda x: np.repeat(x, 3, axis=1)),
        "kv heads look repeated",
    ),
    "positions": (change("0/layers.0.mlp.out", lambda x: x[:, 1:]), "T=7, as chunks says"),
    "axes": (change("0/layers.0.mlp.out", lambda x: x[0, 0]), "axes BTC"),
    "batch": (change("0/embed", lambda x: np.repeat(x, 2, axis=0)), "B=1, the rows of token_ids"),
    "integers": (change("0/embed", lambda x: x > 0), "floating-point numbers"),
    "float mask": (change("0/layers.0.attn.mask", lambda x: 1.0 * x), "BOOL or U8"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_check_tells_each_defect(defect: str, model: Path, eager: Path, tmp_path: Path) -> None:
    plant, words = DEFECTS[defect]
    head, tensors = loaded(eager)
    plant(head, tensors)
    path = saved(tmp_path / "bad.safetensors", head, tensors)
    found = parity("trace", model, "--check", path)
    assert found.exit_code == 2
    assert words in " ".join(found.output.split())


def test_check_tells_all_defects_at_once(model: Path, eager: Path, tmp_path: Path) -> None:
    head, tensors = loaded(eager)
    head["model"]["fingerprint"] = "cd" * 32
    head["model"]["licence"] = "MIT"
    head["engine"]["dtype"] = "fp32"
    tensors["0/layers.0.attn.k"] = np.repeat(tensors["0/layers.0.attn.k"], 3, axis=1)
    tensors["0/layers.0.attn.querry"] = tensors["0/embed"]
    tensors["7/embed"] = tensors["0/embed"]
    tensors["0/layers.2.mlp.act"] = tensors["0/layers.2.mlp.act"] * np.float32(np.nan)
    del tensors["2/final_norm"]
    path = saved(tmp_path / "bad.safetensors", head, tensors)
    found = parity("trace", model, "--check", path)
    assert found.exit_code == 2
    words = " ".join(found.output.split())
    for part in (
        "metadata: model: licence",
        "metadata: engine: dtype",
        "0/layers.0.attn.k",
        "a known tap",
        "7/embed",
        "are NaN or infinite",
        "first 2/final_norm",
        f"the fingerprint of {model}",
    ):
        assert part in words
    assert words.endswith("warnings")


def test_cut_trace_is_told_with_what_was_lost(eager: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    path.write_bytes(eager.read_bytes()[:-1000])
    for arguments in (("trace", "--check", path), ("diff", path, "hf:eager", "--no-report")):
        found = parity(*arguments)
        assert found.exit_code == 2
        assert "cut off" in found.output


def test_narrower_storage_is_a_warning(model: Path, eager: Path, tmp_path: Path) -> None:
    head, tensors = loaded(eager)
    tensors["0/embed"] = tensors["0/embed"].astype(np.float16)
    path = saved(tmp_path / "narrow.safetensors", head, tensors)
    found = parity("trace", "--check", path)
    assert found.exit_code == 0
    assert "0 errors, 1 warnings" in found.output
    assert "looks like a fault" in found.output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["hf:eager", "hf:eagre", "-m", "MODEL", "--tokens", "1"], 2, "eager"),
        (["hf:eager", "hf:sdpa", "-m", "MODEL"], 2, "--prompt or --tokens, as both"),
        (["hf:eager", "hf:sdpa", "--tokens", "1"], 2, "--model, as an engine has to run"),
        (["hf:eager", "hf:eager", "-m", "MODEL", "--tokens", "1"], 2, "hf:eager twice"),
        (["hf:eager", "hf:sdpa", "-m", "MODEL", "--tokens", "101"], 2, "0 to 100"),
        (["absent.safetensors", "hf:sdpa", "-m", "MODEL"], 2, "a readable trace file"),
        (["TRACE", "TRACE"], 2, "twice"),
    ],
)
def test_unusable_diff_is_refused(
    arguments: list[str], code: int, words: str, model: Path, eager: Path
) -> None:
    names = {"MODEL": str(model), "TRACE": str(eager)}
    found = parity("diff", *[names.get(a, a) for a in arguments], "--no-report")
    assert found.exit_code == code
    assert words in found.output


def test_traces_of_other_tokens_or_weights_are_not_comparable(
    model: Path, eager: Path, tiny: Callable[..., Path], tmp_path: Path
) -> None:
    head, tensors = loaded(eager)
    head["token_ids"][0][0] += 1
    other = saved(tmp_path / "tokens.safetensors", head, tensors)
    found = parity("diff", eager, other, "--no-report")
    assert (found.exit_code, "the same token ids" in found.output) == (3, True)
    head, tensors = loaded(eager)
    head["model"]["fingerprint"] = "00" * 32
    other = saved(tmp_path / "weights.safetensors", head, tensors)
    found = parity("diff", eager, other, "--no-report")
    assert (found.exit_code, "on the same weights" in found.output) == (3, True)
    found = parity("diff", other, "hf:sdpa", "-m", model, "--no-report")
    assert (found.exit_code, "was traced" in found.output) == (3, True)


def test_engines_without_replay_are_held_against_each_other(model: Path, tmp_path: Path) -> None:
    arguments = ("--model", model, "--tokens", TOKENS, "--decode", 1, "--no-replay")
    code, result = diffed("hf:eager", "hf:sdpa", *arguments, tmp_path=tmp_path)
    assert code in (0, 3)
    assert result.candidates[0].compared > 100
    assert result.candidates[0].replayed == 0
    assert result.against == "hf:eager"


def test_page_of_a_comparison_without_a_model_names_the_other_side(
    eager: Path, model: Path, tmp_path: Path
) -> None:
    other = recorded(model, tmp_path / "sdpa.safetensors", "hf:sdpa")
    found = parity("diff", eager, other, "--no-replay", "--report-dir", tmp_path / "r")
    page = (tmp_path / "r" / "eager-vs-sdpa.html").read_text()
    assert "against hf:eager" in page
    assert "float64 reference" not in page
    assert found.output.splitlines()[-1].endswith("eager-vs-sdpa.html")


def test_trace_larger_than_the_memory_left_is_written_and_compared(
    model: Path, tmp_path: Path
) -> None:
    """The peak of a run must not grow with the file: taps are written and dropped one by one."""
    import tracemalloc

    from harness.trace.container import scan
    from harness.trace.head import TraceHead
    from harness.trace.write import TraceWriter

    head = TraceHead(*_bare_head())
    path = tmp_path / "large.safetensors"
    tracemalloc.start()
    with TraceWriter(path, room=0) as writer:
        for layer in range(64):
            writer.put(0, f"layers.{layer}.resid_post", np.ones((1, 7, 1 << 16), np.float32))
        writer.finish(head)
    container = scan(path)
    total = sum(float(array[0, 0, 0]) for array in container.map().values())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 64
    assert path.stat().st_size > 100e6
    assert peak < 40e6


def _bare_head() -> tuple[Any, ...]:
    from harness.result import EngineInfo
    from harness.trace.head import TracedModel

    return EngineInfo("x", "x", "float32", {}), TracedModel(), ((1,) * 7,), (7,)


class Side:
    """A participant that gives what it has, and breaks when asked for what it says it lacks."""

    dtype = "float32"
    parameters: Mapping[str, Any] = {}

    def __init__(self, name: str, taps: dict[str, Any], lacks: dict[str, str]) -> None:
        self.name, self.taps, self.unavailable = name, taps, lacks

    def info(self) -> EngineInfo:
        return EngineInfo(self.name, "test", self.dtype, {})

    @contextmanager
    def source(self, chunks: Any, padding: Any = None) -> Iterator["Side"]:
        yield self

    def take(self, chunk: int, tap: str) -> Any:
        assert tap not in self.unavailable
        return self.taps.get(tap)


def test_tap_that_an_engine_lacks_is_not_waited_for() -> None:
    """To wait for it would be to run the engine to the end and keep all that it computes."""
    values = np.ones((1, 3, 4), dtype=np.float32)
    first = Side("a", {"embed": values, "final_norm": values}, {})
    other = Side("b", {"final_norm": values + 1}, {"embed": "fused"})
    places = [(0, "embed"), (0, "final_norm"), (0, "resid")]
    found = compare_taps(first, [other], [np.ones((1, 3), dtype=np.int64)], places).comparisons
    assert [c.status for c in found] == [
        TapStatus.UNAVAILABLE,
        TapStatus.COMPARED,
        TapStatus.MISSING,
    ]
    assert found[0].note == "b: fused"
    assert found[1].difference is not None
    assert found[1].difference.max_abs == 1
