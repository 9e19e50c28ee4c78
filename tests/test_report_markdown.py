"""Markdown for CI summaries and comments: what it says, what it does not obey, how long it gets."""

import html
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.report.markdown import error_view, join, to_markdown
from harness.report.markdown_blocks import MOST
from harness.report.markdown_escape import code, fenced, html_code, link, prose
from harness.result import Cause, Diagnosis, Evidence, Greedy, RunResult, Verdict

Sample = Callable[..., RunResult]

#: One of each that GitHub's Markdown would act on.
EVIL = (
    "a|b `c` ``` <img src=x onerror=alert(1)> </details> &lt; @someone owner/name#12 #34 "
    "https://evil.example www.evil.example [x](javascript:alert(1)) ![y](z) **bold** _it_ $x$ "
    "~~gone~~ \\\n# title\n- item\x1b[2J\u202e"
)


def hostile(result: RunResult) -> RunResult:
    """The same with hostile text in all that Markdown shows of it."""
    prompts = tuple(
        replace(
            p,
            name=EVIL,
            greedy=(Greedy(EVIL, (1,), EVIL),),
            logits=tuple(replace(pair, a=EVIL, b=EVIL) for pair in p.logits),
        )
        for p in result.prompts
    )
    candidates = tuple(
        replace(
            c,
            candidate=EVIL,
            reason=EVIL,
            worst_tap=EVIL,
            failing=((EVIL, 0, EVIL),),
            unavailable={EVIL: EVIL},
            first_divergence=c.first_divergence
            and replace(
                c.first_divergence,
                candidate=EVIL,
                prompt=EVIL,
                tap=EVIL,
                comparison=replace(c.first_divergence.comparison, note=EVIL, op=EVIL),
            ),
        )
        for c in result.candidates
    )
    cause = Cause(EVIL, EVIL, EVIL, Evidence.REPLAY, 1.0, 0.5, EVIL, EVIL, (EVIL, "https://a.b/c"))
    return replace(
        result,
        case=EVIL,
        summary=EVIL,
        against=EVIL,
        prompts=prompts,
        candidates=candidates,
        diagnoses=(Diagnosis(EVIL, EVIL, 0, EVIL, ((EVIL, 0, EVIL),), (cause, cause), (EVIL,)),),
        model=replace(result.model, origin=EVIL, fingerprint=EVIL),
        engines=tuple(replace(e, name=EVIL, dtype=EVIL) for e in result.engines),
        environment=replace(
            result.environment, command=EVIL, platform=EVIL, started=EVIL, versions={EVIL: EVIL}
        ),
    )


def outside_code(markdown: str) -> str:
    """What is left where code is taken away, in which nothing is obeyed."""
    text = re.sub(r"(?ms)^(`{3,})[^\n]*\n.*?\n\1$", "", markdown)
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text)
    return re.sub(r"<code>[^<]*</code>", "", text)


def assert_obeys_nothing(markdown: str) -> None:
    left = outside_code(markdown)
    tags = set(re.findall(r"</?\w+", left))
    assert tags <= {"<details", "</details", "<summary", "</summary", "<https"}, tags
    assert "`" not in left
    read = html.unescape(left)  # mentions and links are looked for where entities are characters
    assert not re.search(r"[@#]\w", read), "a mention or reference"
    assert not re.search(r"(?<!<)https?://|www\.", read), "a link"
    assert not re.search(r"\]\(|!\[|~~|\$", left), "markup"
    for character in "\x1b\u202e":
        assert character not in markdown
    titles = [line for line in left.splitlines() if line.startswith("#")]
    assert all(re.match(r"##+ (:\w+: |First div|Cause|Logits)", line) for line in titles), titles


def test_markdown_obeys_nothing_of_somebody_elses(sample: Sample) -> None:
    assert_obeys_nothing(to_markdown(hostile(sample(Verdict.FAIL))))
    assert_obeys_nothing(error_view(EVIL, EVIL))


@pytest.mark.parametrize(
    "planted",
    ["@someone", "a#1", "<img src=x>", "</code>", "**x** `", "[a](b)", "https://x.y", "\x1b[2J"],
)
def test_the_look_for_what_is_obeyed_can_fail(sample: Sample, planted: str) -> None:
    with pytest.raises(AssertionError):
        assert_obeys_nothing(to_markdown(sample()) + planted)


@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize("evil", [False, True])
def test_tables_have_as_many_cells_in_every_row(
    sample: Sample, verdict: Verdict, *, evil: bool
) -> None:
    result = sample(verdict)
    markdown = to_markdown(hostile(result) if evil else result)
    widths: list[int] = []
    tables = 0
    for line in markdown.splitlines():
        if line.startswith("| "):
            widths.append(line.count("|"))
            assert widths[0] == widths[-1], line
        else:
            tables += bool(widths)
            widths = []
    assert tables >= 2


def test_markdown_says_the_verdict_first_then_candidates_divergence_cause_and_command(
    sample: Sample,
) -> None:
    result = sample(Verdict.FAIL, prompts={"hello": "x", "bye": "y"})
    cause = Cause(
        "rope-theta", "RoPE base is another", "10000, not 100000", Evidence.REPLAY, 1.0, 0.6,
        "take rope_theta from the config", "", ("https://example.org/issues/1",),
    )  # fmt: skip
    place = ("hello", 0, "layers.1.attn.q_rope")
    found = Diagnosis("hf:eager", *place, (place,), (cause,), ())
    markdown = to_markdown(replace(result, diagnoses=(found,)))
    parts = (
        "## :x: fail: `smollm2`",
        "**The engines disagree**",
        "**Candidates**",
        "| `hf:eager` | :x: fail | `layers.1.attn.q_rope` |",
        "### First divergence: hf:eager at layers.1.attn.q_rope",
        "| tap | `layers.1.attn.q_rope` |",
        "### Cause: RoPE base is another (rope-theta)",
        "| change | take rope_theta from the config |",
        "| seen in | <https://example.org/issues/1> |",
        "### Logits: hello (5 tokens",
        "### Logits: bye (5 tokens",
        "```\nparity run cases/smollm2.toml\n```",
        "<details><summary>Not compared for <code>hf&#58;sdpa</code>: 3 taps",
        "- `attn.scores`: sdpa never forms it",
        "- `torch`: `2.13.0`",
    )
    places = [markdown.index(part) for part in parts]
    assert places == sorted(places)
    assert markdown.count("<details>") == markdown.count("</details>") == 4


def test_markdown_shows_a_result_with_next_to_nothing_in_it(sample: Sample) -> None:
    bare = replace(sample(Verdict.NOT_COMPARABLE), candidates=(), prompts=(), engines=())
    markdown = to_markdown(bare)
    assert markdown.startswith("## :warning: not comparable: `smollm2`")
    assert "left out" not in markdown


def test_markdown_stays_below_its_limit_and_counts_what_is_left_out(sample: Sample) -> None:
    one = hostile(sample(Verdict.FAIL))
    names = tuple(f"{i} \N{FACE WITH TEARS OF JOY}" + "|" * 500 for i in range(300))
    many = replace(
        one,
        candidates=tuple(replace(one.candidates[0], candidate=name) for name in names),
        prompts=one.prompts * 300,
    )
    markdown = to_markdown(many)
    assert MOST - 5_000 < len(markdown.encode()) <= MOST
    assert re.search(r"\*\d+ lines left out here for want of room", markdown)
    assert_obeys_nothing(markdown)
    shown = outside_code(markdown)
    assert shown.count("<details>") == shown.count("</details>")
    assert markdown.startswith("## :x: fail")
    small = to_markdown(sample(Verdict.FAIL))
    assert "left out" not in small
    assert len(to_markdown(sample(Verdict.FAIL), most=2_000).encode()) <= 2_000


def test_join_counts_the_cases_that_do_not_fit() -> None:
    assert join(["a\n", "b\n"]) == "a\n\nb\n"
    views = ["x" * 25_000 + "\n"] * 5
    joined = join(views)
    assert len(joined.encode()) <= MOST
    assert joined.endswith("*3 more cases left out here for want of room.*\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("layers.1.attn.q_rope", "`layers.1.attn.q_rope`"),
        ("@someone #1", "`@someone #1`"),
        ("a|b", "<code>a&#124;b</code>"),
        ("`", "<code>&#96;</code>"),
        ("a\nb", "<code>a&#92;nb</code>"),
        (" x", "<code> x</code>"),
        ("", "<code>&#8203;</code>"),
        ("<b>", "<code>&#60;b&#62;</code>"),
        ("\u202e", "<code>&#92;u202e</code>"),
        ("x" * 300, f"`{'x' * 200}... (100 more)`"),
    ],
)
def test_code_is_a_span_where_that_is_safe(text: str, shown: str) -> None:
    assert code(text) == shown


def test_prose_keeps_words_and_takes_markup_apart() -> None:
    assert prose("off by 3.2 units (layer 1)") == "off by 3.2 units (layer 1)"
    assert prose("q_rope _it_ __init__") == "q_rope &#95;it&#95; &#95;&#95;init&#95;&#95;"
    assert prose("*a* @b") == "&#42;a&#42; @&#8203;b"
    assert prose("see http://x.y or www.z") == "see http:&#8203;//x.y or www&#8203;.z"
    assert html_code("@a") == "<code>&#64;a</code>"


def test_link_is_one_for_plain_addresses_alone() -> None:
    assert link("https://github.com/a/b/issues/9") == "<https://github.com/a/b/issues/9>"
    for other in ("javascript:alert(1)", "http://a.b", "https://a b", "https://a|b", "https://a>b"):
        assert not link(other).startswith("<h")


def test_fence_is_longer_than_any_in_the_text() -> None:
    assert fenced("a\n```\nb") == "````\na\n```\nb\n````"
    assert fenced("x\x1b") == "```\nx\\x1b\n```"
