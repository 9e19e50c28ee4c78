"""Cases of history: their files, how passes are brought into one form, and what is expected."""

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from harness.errors import CaseError
from harness.gate.comparing import Compared
from harness.gate.history.aligned import AlignedSide, join
from harness.gate.history.case import History, Way
from harness.gate.history.case_file import TOKENS, load_histories, parse_history
from harness.gate.history.judging import Shown, judge_passes, surprise
from harness.gate.history.table import to_markdown
from harness.gate.placing import place
from harness.gate.records import Array, Facts, Record, RecordedPass, RecordedTap
from harness.gate.result import GateVerdict, TapChange, TapState
from harness.gate.side import Tap
from harness.pytest_plugin.cases import is_case_file

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "cases" / "history"

FILE = """
format = "logits-parity/history"
version = 1
title = "decodes elsewhere"
arch = "Toy"
reports = ["https://github.com/owner/name/issues/7"]
what = "What is seen."
cause = "Why."
compare = "passes"
left = "whole"
right = "pieces"
good = ["5.0.0"]
bad = ["4.57.6"]
first = "layers.0*"

[make]
config_class = "ToyConfig"
nulls = ["window"]

[make.config]
num_hidden_layers = 2

[[passes]]
name = "whole"

[[passes]]
name = "pieces"
cache = true
chunks = [10, 4]
"""


def case(text: str = FILE) -> History:
    return parse_history(text, name="toy")


def test_a_file_is_read() -> None:
    found = case()
    assert found.way is Way.PASSES
    assert found.make.config == {
        "vocab_size": 101,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "window": None,
    }
    assert [each.token_ids for each in found.passes] == [(TOKENS,), (TOKENS,)]
    assert found.passes[1].chunks == (10, 4)
    assert found.releases == ("5.0.0", "4.57.6")
    assert found.request(saved=True).make is not None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1", "version = 2", "found format = 'logits-parity/history' and version = 2"),
        ('title = "', 'titel = "', "unknown field `titel`"),
        ('compare = "passes"', 'compare = "both"', "Invalid enum value 'both'"),
        ('left = "whole"', 'left = "hole"', "expected one of the passes whole, pieces"),
        ('compare = "passes"', 'compare = "releases"', "which alone has sides, found releases"),
        ('good = ["5.0.0"]', "", "expected a release without the bug"),
        ('good = ["5.0.0"]', 'good = ["4.57.6"]', "expected each release once"),
        ('bad = ["4.57.6"]', "bad = []", "expected a release that has the bug"),
        ('bad = ["4.57.6"]', 'bad = ["installed"]', "live = false and bad = ['installed']"),
        ('bad = ["4.57.6"]', 'bad = ["newest"]', "expected a release of transformers"),
        ("chunks = [10, 4]", "chunks = [10, 5]", "expected chunks of at least 1 token"),
        ('first = "', 'ci = ["9"]\nfirst = "', "toy: ci: expected some of 5.0.0, 4.57.6, found 9"),
        ('title = "', "title = ", "a syntax error"),
    ],
)
def test_a_file_that_does_not_fit_says_why(old: str, new: str, message: str) -> None:
    assert old in FILE
    with pytest.raises(CaseError) as caught:
        case(FILE.replace(old, new))
    assert message in str(caught.value)


def test_all_cases_of_the_checkout_are_read() -> None:
    found = load_histories(FOLDER)
    assert len(found) >= 30
    assert sum(bool(each.ci) for each in found) == 2
    written = (ROOT / "docs" / "history-table.md").read_text()
    for each in found:
        assert f"`cases/history/{each.name}.toml`" in written, "measure it, and write the table"
    assert "which is not expected" not in written


def test_live_cases_are_findings() -> None:
    findings = (ROOT / "docs" / "findings.md").read_text()
    absent = [c.name for c in load_histories(FOLDER) if c.live and f"{c.name}.toml" not in findings]
    assert not absent


def test_a_folder_without_cases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="files of history, found none"):
        load_histories(tmp_path)


def test_files_of_history_are_no_case_files() -> None:
    assert not any(is_case_file(path) for path in FOLDER.glob("*.toml"))


def test_pieces_are_put_together() -> None:
    draw = np.random.Generator(np.random.Philox(1))
    out = draw.standard_normal((1, 14, 8))  # [B T H]
    query = draw.standard_normal((1, 4, 14, 2))  # [B H T D]
    probs = np.tril(draw.standard_normal((1, 4, 14, 14)))  # [B H T S]
    lengths = (10, 3, 1)
    ends = np.cumsum((0, *lengths)).tolist()
    spans = [slice(a, b) for a, b in pairwise(ends)]
    whole: dict[str, tuple[Array, list[Array]]] = {
        "out": (out, [out[:, s] for s in spans]),
        "query": (query, [query[..., s, :] for s in spans]),
        "key": (query, [query[..., : s.stop, :] for s in spans]),
        "probs": (probs, [probs[..., s, : s.stop] for s in spans]),
    }
    for role, (expected, parts) in whole.items():
        found = join(role, parts, lengths, pads=0)
        assert found is not None, role
        np.testing.assert_array_equal(found, expected)


def test_pads_are_cut_away() -> None:
    scores = np.arange(36.0).reshape(1, 1, 6, 6)
    found = join("scores", [scores], (6,), pads=2)
    assert found is not None
    np.testing.assert_array_equal(found, scores[..., 2:, 2:])
    out = np.arange(48.0).reshape(1, 6, 8)
    found = join("out", [out], (6,), pads=2)
    assert found is not None
    np.testing.assert_array_equal(found, out[:, 2:])


def test_what_has_another_form_is_left_out() -> None:
    state = [np.zeros((1, 32, 13)), np.zeros((1, 32, 4))]  # a convolution's, [B H T]
    assert join("out", state, (10, 4), pads=0) is None
    window = [np.zeros((1, 2, 10, 8)), np.zeros((1, 2, 5, 8))]  # keys that a window has dropped
    assert join("key", window, (10, 4), pads=0) is None
    assert join("probs", [np.zeros((1, 2, 4, 5))] * 2, (4, 4), pads=0) is None


def record(*, planted: float = 0.0) -> Record:
    """Two passes of the case over one layer and logits; the second in two pieces."""
    draw = np.random.Generator(np.random.Philox(2))
    layer = draw.standard_normal((1, 14, 8)).astype(np.float32)
    logits = draw.standard_normal((1, 14, 101)).astype(np.float32)
    arrays: dict[str, Array] = {}
    passes = []
    for name, spans in (("whole", [(0, 14)]), ("pieces", [(0, 10), (10, 14)])):
        taps = []
        for chunk, (a, b) in enumerate(spans):
            for tap, values in (("layers.0", layer), ("logits", logits)):
                key = f"{name}/{chunk}/{tap}"
                arrays[key] = values[:, a:b] + np.float32(planted if chunk else 0.0)
                taps.append(entry(tap, chunk, key, arrays[key].shape))
        passes.append(RecordedPass(name, None, tuple(taps)))
    return Record(Facts(versions={"transformers": "5.0.0"}, passes=tuple(passes)), lambda: arrays)


def entry(tap: str, chunk: int, key: str, shape: tuple[int, ...]) -> RecordedTap:
    role = "logits" if tap == "logits" else "out"
    return RecordedTap(tap, chunk, key, "" if tap == "logits" else tap, "Toy", role, shape,
                       "float32", noise=1e-6)  # fmt: skip


def test_passes_that_agree_are_the_same_model() -> None:
    shown = judge_passes(case(), record(), "5.0.0")
    assert shown.verdict is GateVerdict.SAME
    assert shown.logits == 0.0
    assert surprise(case(), shown) == ""


def test_a_planted_difference_is_shown_where_it_begins() -> None:
    shown = judge_passes(case(), record(planted=0.5), "4.57.6")
    assert shown.verdict is GateVerdict.CHANGED
    assert shown.tap == "layers.0"
    assert shown.logits == pytest.approx(0.5, rel=1e-5)
    assert surprise(case(), shown) == ""


def test_noise_of_pieces_adds_up() -> None:
    side = AlignedSide(record(), case().passes[1])
    assert side.taps[0].noise == pytest.approx(2**0.5 * 1e-6)
    assert side.taps[0].shape == (1, 14, 8)


def shown(release: str, verdict: GateVerdict, tap: str = "layers.0.x") -> Shown:
    return Shown(release, release, verdict, "So it is.", tap)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (shown("5.0.0", GateVerdict.CHANGED), "expected no bug, found changed: So it is."),
        (shown("5.0.0", GateVerdict.FAILING), "expected no bug, found failing"),
        (shown("5.0.0", GateVerdict.NOT_COMPARABLE), "expected no bug, found not comparable"),
        (shown("4.57.6", GateVerdict.ROUNDING), "expected the bug, found rounding: So it is."),
        (shown("4.57.6", GateVerdict.FAILING), "expected the bug, found failing"),
        (
            shown("4.57.6", GateVerdict.CHANGED, "layers.1"),
            "expected intermediates that part at layers.0*, found layers.1",
        ),
        (
            shown("4.57.6", GateVerdict.CHANGED, ""),
            "expected intermediates that part at layers.0*, found no such place",
        ),
    ],
)
def test_what_is_not_expected_is_told(found: Shown, words: str) -> None:
    assert surprise(case(), found).startswith(f"toy: transformers {found.version}: {words}")


def test_a_live_bug_that_is_mended_says_what_to_do() -> None:
    live = replace(case(), bad=("installed",), live=True)
    assert "if it is mended there, move it to good" in surprise(
        live, shown("installed", GateVerdict.SAME)
    )


def test_a_release_that_refuses_has_to_fail() -> None:
    refusing = replace(case(), refused=("5.1.0",))
    assert surprise(refusing, shown("5.1.0", GateVerdict.FAILING)) == ""
    assert "expected an error, found same" in surprise(refusing, shown("5.1.0", GateVerdict.SAME))


def test_the_table_says_what_was_not_expected() -> None:
    seen = {"toy": [shown("5.0.0", GateVerdict.CHANGED), shown("4.57.6", GateVerdict.CHANGED)]}
    text = to_markdown([case()], seen, versions={"torch": "2"})
    assert "| 5.0.0 | good | changed, which is not expected |  | `layers.0.x` |  |" in text
    assert "| 4.57.6 | bad | changed |  | `layers.0.x` |  |" in text
    assert "[owner/name#7](https://github.com/owner/name/issues/7)" in text


def test_scores_that_a_mask_hides_are_put_down_to_the_mask() -> None:
    def compared(name: str, module: str, role: str) -> Compared:
        tap = Tap("p", 0, name, module, "Toy", role, (1,), "float32", None, None, name)
        change = TapChange("p", 0, name, "", module, role, (1,), (1,), TapState.CHANGED, 1.0, 1.0,
                           1.0, 1.0, 0.1, 1.0, 1.0)  # fmt: skip
        return Compared(tap, tap, change)

    module = "layers.0.attn"
    scores = compared(f"{module}:scores", module, "scores")
    mask = compared(f"{module}:mask", module, "mask")
    query = compared(f"{module}:query", module, "query")
    probs = compared(f"{module}:probs", module, "probs")
    layer = compared("layers.0", "layers.0", "out")
    for taps, first in (
        ([scores, mask, probs, layer], mask),
        ([query, scores, mask, probs, layer], query),
        ([scores, probs, layer], scores),
    ):
        found = place(taps)
        assert found is not None
        assert found.change is first.change


def run_suite(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    given = dict(os.environ) | {"LOGITS_PARITY_CACHE": str(folder), "PIP_NO_INDEX": "1"}
    given |= {"LOGITS_PARITY_INSTALLER": "pip"} | environment
    return subprocess.run(
        [*command, "cases/test_history.py"],
        cwd=ROOT,
        env=given,
        check=False,
        capture_output=True,
        text=True,
    )


def test_the_suite_has_two_cases_at_every_change_and_all_at_night(tmp_path: Path) -> None:
    cases = load_histories(FOLDER)
    for mode, count in (
        ("ci", sum(len(each.ci) for each in cases)),
        ("nightly", sum(len(each.releases) for each in cases)),
    ):
        ran = run_suite(tmp_path, "--collect-only", "--parity-history", mode)
        assert f"{count} tests collected" in ran.stdout
    refused = run_suite(tmp_path, "--collect-only", "-o", "parity_history=weekly")
    assert "parity_history: expected ci, nightly or off, found 'weekly'" in refused.stdout


@pytest.mark.parametrize(("value", "outcome"), [("", "1 skipped"), ("required", "1 error")])
def test_what_cannot_be_installed_is_skipped_unless_it_is_required(
    tmp_path: Path, value: str, outcome: str
) -> None:
    options = ("-rs", "-k", "opt_scaled_twice and bad", "--parity-history", "nightly")
    ran = run_suite(tmp_path, *options, PARITY_HISTORY=value)
    assert outcome.replace("error", "failed") in ran.stdout
    assert "environment with transformers==4.5" in ran.stdout
