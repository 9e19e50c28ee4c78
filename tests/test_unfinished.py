"""A run that stops in the middle leaves what was compared by then, and never a pass."""

import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from harness import Case, HFEngine, Prompt, RunResult, check, cli
from harness.engines import hf
from harness.errors import EngineError, UsageError
from harness.pipeline import compare
from harness.report.views import Format, render
from harness.result import TapStatus, Verdict, from_json, to_json
from harness.subject import load_subject
from harness.unfinished import Underway, describe, stopped, tell

Sample = Callable[..., RunResult]
ROWS = {"first": [3, 1, 4, 1, 5], "second": [2, 7, 1], "third": [9, 9]}


class Run:
    """Runs engines on three prompts; keeps what is told when it stops."""

    def __init__(self, path: Path) -> None:
        self.subject = load_subject(path)
        self.known: list[RunResult] = []

    def __call__(
        self, engines: Sequence[Any], *, prompts: Sequence[str] = tuple(ROWS), greedy: int = 0
    ) -> RunResult:
        case = Case(
            name="c",
            model="m",
            prompts=tuple(Prompt(name, token_ids=(tuple(ROWS[name]),)) for name in prompts),
            engines=tuple(engine.name for engine in engines),
            greedy=greedy,
            decode=0,
        )
        tokens = [np.array([ROWS[name]]) for name in prompts]
        return compare(self.subject, engines, tokens, case, on_stop=self.known.append)


@pytest.fixture
def run(tiny: Callable[..., Path]) -> Run:
    return Run(tiny())


@pytest.fixture
def model(tiny: Callable[..., Path], load_model: Callable[..., Any]) -> Any:
    return load_model(tiny())


@contextmanager
def breaking(model: Any, *, layer: int, call: int, error: BaseException | None = None) -> Any:
    """A model of which a layer's MLP raises, or interrupts the process, when called so often."""
    calls: list[None] = []

    def hook(*_: Any) -> None:
        calls.append(None)
        if len(calls) == call:
            if error is None:
                signal.raise_signal(signal.SIGINT)
            else:
                raise error

    handle = model.model.layers[layer].mlp.register_forward_pre_hook(hook)
    yield
    handle.remove()
    assert len(calls) >= call


def taps_of(result: RunResult) -> list[list[str]]:
    return [[c.tap for c in prompt.comparisons] for prompt in result.prompts]


def test_an_engine_that_breaks_leaves_the_taps_before(run: Run, model: Any) -> None:
    error = EngineError("kernel", expected="memory", found="none", advice="free some")
    with breaking(model, layer=1, call=2, error=error), pytest.raises(EngineError) as caught:
        run([HFEngine(model, name="mine")])
    assert caught.value is error
    (known,) = run.known
    first, second = taps_of(known)
    assert (first[0], first[-1]) == ("embed", "logits")
    assert (second[0], second[-1]) == ("embed", "layers.1.mlp_norm")
    assert set(second) < set(first)
    assert known.verdict is Verdict.NOT_COMPARABLE
    assert known.stopped == (
        "kernel: expected memory, found none: free some, in engine mine; while comparing prompt"
        " second; the last tap that was compared is layers.1.mlp_norm of prompt second (prefill);"
        " prompts not compared: 1 of 3"
    )
    assert known.stopped in known.summary
    assert known.summary.endswith("Nothing had failed by then.")
    (candidate,) = known.candidates
    assert candidate.verdict is Verdict.NOT_COMPARABLE
    assert candidate.compared == len(first) + len(second)
    assert "of what was compared, every op replays within" in candidate.reason


@pytest.mark.parametrize("call", [1, 2, 3])
def test_every_view_shows_what_is_known(run: Run, model: Any, call: int) -> None:
    with (
        breaking(model, layer=0, call=call, error=RuntimeError("<b>boom</b>")),
        pytest.raises(RuntimeError),
    ):
        run([HFEngine(model, name="mine")])
    (known,) = run.known
    assert from_json(to_json(known)) == known
    assert [p.name for p in known.prompts] == ["first", "second", "third"][:call]
    for form in Format:
        view = render(known, form).decode()
        assert "boom" in view
        assert "layers.0.mlp_norm" in view
    assert "<b>boom" not in render(known, Format.HTML).decode()
    assert 'errors="1"' in render(known, Format.JUNIT).decode()


def test_an_interrupt_leaves_what_is_known_and_goes_on(run: Run, model: Any) -> None:
    with breaking(model, layer=2, call=1), pytest.raises(KeyboardInterrupt):
        run([HFEngine(model, name="mine")])
    for known in run.known:  # it may come before the first comparison is made
        assert known.verdict is Verdict.NOT_COMPARABLE
        assert known.stopped.startswith("interrupted; while comparing prompt first")


def test_nothing_is_told_where_nothing_was_compared(run: Run, model: Any) -> None:
    with breaking(model, layer=0, call=1, error=RuntimeError("boom")), pytest.raises(RuntimeError):
        run([HFEngine(model)], greedy=2)  # greedy tokens come first
    assert run.known == []


def test_greedy_tokens_that_break_leave_the_prompts_before(run: Run, model: Any) -> None:
    with breaking(model, layer=0, call=4, error=RuntimeError("boom")), pytest.raises(RuntimeError):
        run([HFEngine(model, name="mine")], greedy=2)  # two passes and the one compared
    (known,) = run.known
    assert [prompt.name for prompt in known.prompts] == ["first"]
    assert "RuntimeError: boom; while mine chose greedy tokens after prompt second" in known.stopped
    assert known.stopped.endswith("prompts not compared: 2 of 3")


def test_a_prompt_that_is_refused_leaves_the_prompts_before(
    run: Run, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROWS, "second", [2, 100_000])
    with pytest.raises(UsageError):
        run([HFEngine(model, name="mine")])
    (known,) = run.known
    assert [prompt.name for prompt in known.prompts] == ["first"]
    assert "while preparing prompt second" in known.stopped


def test_a_fault_that_was_found_stays_one(run: Run, model: Any, twin: Callable[..., Any]) -> None:
    other = twin(model)
    other.model.layers[0].self_attn.scaling *= 1.1
    with breaking(model, layer=1, call=2, error=RuntimeError("boom")), pytest.raises(RuntimeError):
        run([HFEngine(model, name="good"), HFEngine(other, name="bad")])
    (known,) = run.known
    assert known.verdict is Verdict.FAIL
    assert {c.candidate: c.verdict.value for c in known.candidates} == {
        "good": "not comparable",
        "bad": "fail",
    }
    first = known.first_divergence
    assert first is not None
    assert (first.candidate, first.tap) == ("bad", "layers.0.attn.scores")
    assert known.diagnoses[0].causes[0].fault == "scale-other"
    assert known.summary.endswith("bad had failed by then.")


def test_a_run_that_comes_to_its_end_tells_nothing(run: Run, model: Any) -> None:
    result = run([HFEngine(model, name="mine")])
    assert (result.verdict, result.stopped) == (Verdict.PASS, "")
    assert run.known == []


def break_at(monkeypatch: pytest.MonkeyPatch, nth: int, error: BaseException) -> None:
    """Have the n-th tap that an engine hands over raise."""
    calls: list[None] = []
    real = hf.to_numpy

    def give(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread().name.startswith("parity "):  # not of a parameter
            calls.append(None)
            if len(calls) == nth:
                raise error
        return real(*arguments, **options)

    monkeypatch.setattr(hf, "to_numpy", give)


def test_the_command_leaves_a_report_when_an_engine_breaks(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = EngineError("kernel", expected="memory", found="none", advice="free some")
    break_at(monkeypatch, 60, error)
    before = desk.files()
    ran = CliRunner().invoke(cli.app, ["run", "case.toml"])
    assert ran.exit_code == 2
    assert ran.stdout.startswith("NOT COMPARABLE")
    assert ran.stderr.startswith("Error: kernel\n  expected: memory\n")
    after = desk.files()
    assert set(after) == set(before)
    known = from_json(after["case.json"])
    assert known.stopped.startswith("kernel: expected memory, found none: free some, in engine hf:")
    assert known.environment.command
    assert b"the last tap that was compared is" in after["case.html"]
    break_at(monkeypatch, 1, error)
    assert CliRunner().invoke(cli.app, ["run", "case.toml"]).exit_code == 2
    assert desk.files() == after  # nothing was compared: the earlier report stays


@pytest.mark.parametrize("error", [EngineError, KeyboardInterrupt])
def test_a_diff_that_stops_leaves_a_report(
    desk: Any, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    how = {"expected": "x", "found": "y", "advice": "z"} if error is EngineError else {}
    break_at(monkeypatch, 130, error("kernel", **how))
    sides = ("hf:eager", "hf:sdpa", "--model", "model", "--tokens", "1,2,3", "--decode", "1")
    ran = CliRunner().invoke(cli.app, ["diff", *sides])
    assert ran.exit_code == (2 if error is EngineError else 130), ran.output
    (document,) = (desk.reports / name for name in desk.files() if "vs" in name and "json" in name)
    known = from_json(document.read_bytes())
    assert known.verdict is Verdict.NOT_COMPARABLE
    assert "while comparing prompt tokens; the last tap that was compared" in known.stopped
    assert ran.stdout.splitlines()[-1] == f"reports/{document.stem}.html"


@pytest.mark.parametrize("error", [EngineError, KeyboardInterrupt])
@pytest.mark.parametrize(("nth", "beyond"), [(130, False), (130, True), (1, False)])
def test_a_diff_without_replay_that_stops_leaves_a_report(
    desk: Any,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    nth: int,
    *,
    beyond: bool,
) -> None:
    how = {"expected": "x", "found": "y", "advice": "z"} if error is EngineError else {}
    break_at(monkeypatch, nth, error("kernel", **how))
    if beyond:
        monkeypatch.setattr("harness.compare.TOLERANCE", 0.0)
    sides = ("hf:eager", "hf:sdpa", "--model", "model", "--tokens", "1,2,3", "--decode", "1")
    before = set(desk.files())
    ran = CliRunner().invoke(cli.app, ["diff", *sides, "--no-replay"])
    assert ran.exit_code == (2 if error is EngineError else 130), ran.output
    made = set(desk.files()) - before
    if nth == 1:
        assert made == set()  # nothing was compared
        return
    assert made == {"hf-eager-vs-hf-sdpa.html", "hf-eager-vs-hf-sdpa.json"}
    known = from_json(desk.files()["hf-eager-vs-hf-sdpa.json"])
    (prompt,) = known.prompts
    (candidate,) = known.candidates
    assert 0 < len(prompt.comparisons) < 130
    assert candidate.verdict is known.verdict is Verdict.NOT_COMPARABLE
    assert (candidate.first_divergence is not None) is beyond
    words = "kernel" if error is EngineError else "interrupted"
    assert known.stopped.startswith(words)
    last = prompt.comparisons[-1].tap
    assert f"comparing prompt tokens; the last tap that was compared is {last}" in known.stopped
    assert known.stopped in candidate.reason


def test_check_tells_what_is_known_when_it_stops(
    desk: Any, model: Any, tiny: Callable[..., Path]
) -> None:
    told: list[RunResult] = []
    how: dict[str, Any] = {
        "checkpoint": tiny(),
        "prompt": None,
        "token_ids": [[3, 1, 4]],
        "name": "my model",
        "report_dir": desk.folder / "kept",
        "on_stop": told.append,
    }
    error = RuntimeError("boom")
    with breaking(model, layer=1, call=1, error=error), pytest.raises(RuntimeError) as caught:
        check(model, **how)
    assert caught.value is error
    (known,) = told
    assert known.verdict is Verdict.NOT_COMPARABLE
    assert "RuntimeError: boom" in known.stopped
    page, document = (desk.folder / "kept" / f"my_model.{suffix}" for suffix in ("html", "json"))
    assert from_json(document.read_bytes()) == known
    assert "RuntimeError: boom" in page.read_text()
    result = check(model, **how)
    assert (result.verdict, len(told)) == (Verdict.PASS, 1)
    assert from_json(document.read_bytes()) == result


def test_check_says_when_what_is_known_is_lost(desk: Any, model: Any, tiny: Any) -> None:
    (desk.folder / "kept").write_text("a file")
    with (
        breaking(model, layer=1, call=1, error=RuntimeError("boom")),
        pytest.raises(RuntimeError) as caught,
    ):
        check(model, checkpoint=tiny(), token_ids=[[3, 1, 4]], report_dir=desk.folder / "kept")
    assert "what was compared by then is lost: UsageError" in caught.value.__notes__[-1]


@pytest.mark.parametrize("verdict", list(Verdict))
def test_law_nothing_that_stopped_passes(sample: Sample, verdict: Verdict) -> None:
    found = stopped(sample(verdict), "boom")
    healthy = (Verdict.PASS, Verdict.ROUNDING)
    assert found.verdict not in healthy
    assert not [c for c in found.candidates if c.verdict in healthy]
    assert found.exit_code != 0
    if verdict in (Verdict.FAIL, Verdict.NOT_FINITE):
        assert found.verdict is verdict
        assert found.first_divergence == sample(verdict).first_divergence


def test_a_failure_that_only_the_end_would_show_is_none_yet(sample: Sample) -> None:
    """Judged without replay, too early: it is taken back with its divergence."""
    result = sample(Verdict.FAIL)
    weak = tuple(replace(c, failing=()) for c in result.candidates)
    found = stopped(replace(result, candidates=weak), "boom")
    assert found.verdict is Verdict.NOT_COMPARABLE
    assert found.first_divergence is None


def test_a_missing_tap_stays_the_reason(sample: Sample) -> None:
    result = sample(Verdict.NOT_COMPARABLE)
    lost = replace(result.candidates[0], reason="embed: not there")
    found = stopped(replace(result, candidates=(lost, *result.candidates[1:])), "boom")
    assert found.candidates[0].reason.endswith("(boom); embed: not there")


def test_what_fails_while_telling_does_not_hide_the_error(sample: Sample) -> None:
    underway = Underway(["a"], done=list(sample().prompts))
    error = RuntimeError("first")

    def full(_: RunResult) -> None:
        raise OSError(28, "no space")

    tell(full, error, underway, sample)
    assert error.__notes__ == ["what was compared by then is lost: OSError: [Errno 28] no space"]
    told: list[RunResult] = []
    tell(told.append, error, Underway(["a"]), sample)
    assert told == []


def test_an_exception_is_described_with_its_kind_and_engine() -> None:
    error = ValueError("x")
    assert describe(error) == "ValueError: x"
    error.add_note("in engine mine")
    assert describe(error) == "ValueError: x, in engine mine"
    assert describe(KeyboardInterrupt()) == "interrupted"


def test_values_that_are_not_finite_stay_a_finding(sample: Sample) -> None:
    result = sample(Verdict.NOT_FINITE)
    assert any(c.status is TapStatus.NOT_FINITE for c in result.comparisons)
    bare = tuple(replace(c, failing=()) for c in result.candidates)
    assert stopped(replace(result, candidates=bare), "boom").verdict is Verdict.NOT_FINITE
