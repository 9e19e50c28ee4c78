"""The seed facts on SmolLM2; and each of them is shown to fail where something is wrong."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from harness import cli
from harness.locate import locate
from harness.seeds import agreement, attention, caching, rotary, table
from harness.seeds import facts as all_facts
from harness.seeds.bench import Bench
from harness.seeds.command import INSTALL, MODEL
from harness.seeds.fact import Fact, Outcome, around, examine, judge
from harness.seeds.table import Table, measure


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(locate(MODEL, install=INSTALL))


@pytest.fixture(scope="module")
def measured(bench: Bench) -> Table:
    return measure(bench, all_facts.FACTS, progress=lambda *_: None, command="parity seeds")


def fact_of(measure: Any) -> Fact:
    (found,) = (fact for fact in all_facts.FACTS if fact.measure is measure)
    return found


def test_every_fact_holds_that_can_be_shown(measured: Table) -> None:
    assert {row.name: row.reason for row in measured.rows if row.outcome is Outcome.DIFFERS} == {}
    assert measured.exit_code == 0
    hidden = [row.name for row in measured.rows if row.outcome is Outcome.NOT_SHOWN]
    assert len(hidden) == 3
    assert all("candle" in name for name in hidden)
    assert len(measured.rows) == len({row.name for row in measured.rows}) >= 27


def test_every_row_that_is_not_the_seed_s_says_why(measured: Table) -> None:
    for row in measured.rows:
        assert bool(row.reason) == (row.outcome is not Outcome.REPRODUCED), row.name


def test_expectations_are_bands_around_the_seed(measured: Table) -> None:
    for fact in all_facts.FACTS:
        if fact.measure is not None and fact.figure is not None:
            assert fact.low <= fact.figure <= fact.high, fact.name


class Planted:
    """A bench on which something is wrong, and the rest as it is."""

    def __init__(self, bench: Bench, **wrong: Any) -> None:
        self._bench = bench
        self.__dict__.update(wrong)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bench, name)


def differs(measure: Any, bench: Any, **arguments: Any) -> bool:
    """Whether the fact of a function differs when the function is called so."""
    fact = dataclasses.replace(fact_of(measure), measure=lambda bench: measure(bench, **arguments))
    row = examine(fact, bench)
    assert row.reason.startswith("expected ") == (row.outcome is Outcome.DIFFERS)
    return row.outcome is Outcome.DIFFERS


def test_wrong_rotation_differs(bench: Bench) -> None:
    assert differs(rotary.rotation, bench, rotate=rotary.neighbours)
    assert differs(rotary.rotation, bench, theta=99_000.0)
    assert not differs(rotary.rotation, bench)


def test_wrong_order_of_heads_differs(bench: Bench) -> None:
    assert differs(attention.repeated, bench, repeat=attention.tiled)
    assert not differs(attention.repeated, bench)


def test_wrong_mask_differs(bench: Bench) -> None:
    length = bench.tokens.shape[1]
    assert differs(attention.mask_forms, bench, visible=np.ones((length, length), dtype=bool))
    assert differs(attention.single_query, bench, query=2)
    assert not differs(attention.single_query, bench)


def test_fault_that_changes_nothing_differs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotary, "FALLBACK_THETA", bench.theta)
    short: Any = Planted(bench, paragraph=bench.paragraph[:, :16])
    for shown in (
        rotary.other_theta,
        rotary.other_theta_logits,
        rotary.other_theta_greedy,
        rotary.other_theta_argmax,
    ):
        assert differs(shown, short), shown


def test_config_that_a_flat_reader_reads_right_differs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = {**bench.subject.checkpoint.config, "rope_theta": bench.theta}
    monkeypatch.setattr(rotary, "_saved", lambda bench: right)
    assert differs(rotary.theta_of_a_flat_reader, bench)


def test_same_kernel_twice_differs(bench: Bench) -> None:
    assert differs(agreement.eager_against_sdpa, Planted(bench, sdpa=bench.eager))


def test_other_greedy_token_differs(bench: Bench) -> None:
    tokens = bench.greedy.copy()
    tokens[0, -1] += 1
    assert differs(agreement.greedy_tokens, Planted(bench, greedy=tokens))


def test_scaled_logits_differ(bench: Bench) -> None:
    planted = Planted(bench, logits=bench.logits * 3)
    assert differs(agreement.largest_logit, planted)
    assert differs(agreement.last_position_alone, planted)


class Forgetful:
    """An engine whose cache forgets: each token is the first."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    @contextmanager
    def open(self, *, cache: bool) -> Iterator[Any]:
        from harness.engines.hf_probe import forward

        class Session:
            def feed(_, tokens: Any) -> Any:
                return forward(self._bench.eager.model, tokens)

        yield Session()


def test_cache_that_forgets_differs(bench: Bench) -> None:
    engine: Any = Forgetful(bench)
    assert differs(caching.one_by_one, bench, engine=engine)


def test_right_positions_and_fresh_caches_differ_from_the_wrong_ones(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = [bench.logits[0, -1]] * 4
    monkeypatch.setattr(caching, "_decoded", lambda bench, *, stuck: logits)
    assert differs(caching.position_zero_logits, bench)
    fact = fact_of(caching.position_zero)
    row = examine(fact, bench)
    assert (row.outcome, row.value) == (Outcome.DIFFERS, None)
    monkeypatch.setattr("harness.engines.hf_probe.new_cache", lambda model: None)
    assert differs(caching.stale_cache, bench)
    assert differs(caching.stale_cache_single, bench)


def test_reference_that_takes_a_used_cache_differs(bench: Bench) -> None:
    model = bench.subject.model
    careless = SimpleNamespace(prefill=model.prefill, extend=lambda *_, **__: bench.logits)
    planted = Planted(bench, subject=SimpleNamespace(model=careless))
    assert differs(caching.stale_cache_refused, planted)
    assert not differs(caching.stale_cache_refused, bench)


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        (2.4041e-7, Outcome.REPRODUCED),
        (3e-7, Outcome.SAME_SIZE),
        (2.41e-6, Outcome.DIFFERS),
        (2.3e-8, Outcome.DIFFERS),
        (float("nan"), Outcome.DIFFERS),
        (float("inf"), Outcome.DIFFERS),
    ],
)
def test_judge_knows_the_figure_its_size_and_anything_else(value: float, outcome: Outcome) -> None:
    assert judge(Fact("f", "2.4e-7", **around(2.4e-7, 10), digits=2), value) is outcome


@pytest.fixture
def two_facts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Fact]:
    """The command on a bench that is there, with two facts that cost nothing."""
    listed = [Fact("one", "1", lambda _: 1.0, 1, 1, figure=1), Fact("two", "none", reason="why")]
    monkeypatch.setattr(all_facts, "FACTS", listed)
    monkeypatch.setattr("harness.seeds.bench.Bench", lambda source: bench)
    return listed


def test_command_shows_the_table_and_writes_json(two_facts: list[Fact], tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["seeds", "--json", str(tmp_path / "seeds.json")])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["fact", "seed", "here", "outcome"]
    assert lines[2].split() == ["one", "1", "1", "reproduced"]
    assert lines[-1] == "1 reproduced, 0 same size, 0 differs, 1 not shown here"
    assert "not shown here: two" in lines
    document = json.loads((tmp_path / "seeds.json").read_text())
    assert (document["format"], document["version"]) == (table.FORMAT, table.VERSION)
    assert [row["outcome"] for row in document["rows"]] == ["reproduced", "not shown here"]
    assert document["environment"]["versions"]["transformers"]


def test_command_exit_code_is_1_where_a_fact_differs(two_facts: list[Fact]) -> None:
    two_facts.append(Fact("three", "3", lambda _: 4.0, 3, 3, figure=3))
    done = CliRunner().invoke(cli.app, ["seeds", "--json", "-"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["rows"][2]["reason"] == "expected 3, found 4"
    assert "differs: three" in done.stderr
    assert "1 differs" in done.stderr


def test_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(cli.app, ["seeds", "--model", "package:surely_absent/m.gguf"])
    assert done.exit_code == 2
    assert INSTALL in done.stderr


def test_command_refuses_another_family(tiny: Any) -> None:
    done = CliRunner().invoke(cli.app, ["seeds", "--model", str(tiny("qwen3"))])
    assert done.exit_code == 2
    assert "found:    the family qwen3" in done.stderr
