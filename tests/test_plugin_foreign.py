"""The plugin in somebody else's repository, which has harness, references and cases of its own."""

import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import harness
import logits_parity
from harness.result import RunResult
from references import ops

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parent.parent
Run = Callable[..., str]

THEIRS = {
    "harness/engine.py": "ANSWER = 42\ndef strict(x):\n    assert x == ANSWER\n",
    "harness/checks/deep.py": "from ..engine import ANSWER\n",
    "references/paper.py": "TITLE = 'a paper of theirs'\n",
    "tests/test_theirs.py": """
import harness, references
import harness.checks.deep
from harness.engine import ANSWER, strict
from references.paper import TITLE
import pytest

def test_harness_is_theirs():
    assert ANSWER == harness.checks.deep.ANSWER == 42
    assert TITLE == "a paper of theirs"
    assert not hasattr(harness, "HFEngine")

def test_nothing_of_ours_is_found_under_their_name():
    with pytest.raises(ModuleNotFoundError, match="harness.result"):
        import harness.result

def test_assertions_in_their_harness_are_as_they_were():
    with pytest.raises(AssertionError) as caught:
        strict(41)
    assert str(caught.value) == ""
""",
}
ROOT_CONFTEST = "from harness.engine import ANSWER\nimport references.paper\n"


@pytest.fixture
def repository(pytester: pytest.Pytester) -> Callable[..., Path]:
    def make(*, packages: bool = True, conftest: bool = False, ini: str = "") -> Path:
        for path, text in THEIRS.items():
            file = pytester.path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        for folder in ("harness", "harness/checks", "references") if packages else ():
            (pytester.path / folder / "__init__.py").touch()
        if conftest:
            (pytester.path / "conftest.py").write_text(ROOT_CONFTEST)
        (pytester.path / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
        return pytester.path

    return make


#: Starts as an installation from a wheel does: the packages lie in one folder of ``sys.path``, and
#: this checkout, with a conftest.py of its own, does not.
START = """
import os, sys
installed = [p for p in sys.path if os.path.realpath(p) != {checkout!r}]
sys.path[:] = {first!r} + installed + [{site!r}]
"""
PYTEST = "import pytest; raise SystemExit(pytest.console_main())"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as pip makes it of the wheel."""
    folder = tmp_path_factory.mktemp("site")
    for package in ("harness", "references"):
        shutil.copytree(ROOT / package, folder / package)
    for module in ("logits_parity.py", "pytest_logits_parity.py"):
        shutil.copy(ROOT / module, folder)
    about = folder / "logits_parity-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: logits-parity\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[pytest11]\nlogits-parity = pytest_logits_parity\n")
    files = (path.relative_to(folder) for path in folder.rglob("*.*") if path.is_file())
    (about / "RECORD").write_text("".join(f"{path},,\n" for path in files))
    return folder


@pytest.fixture
def run(site: Path) -> Run:
    """Runs code from outside; by default pytest, with the current folder off the path."""

    def call(root: Path, *arguments: str, code: str = PYTEST, first: Sequence[str] = ()) -> str:
        start = START.format(checkout=str(ROOT), first=list(first), site=str(site))
        command = [sys.executable, "-P", "-c", start + code, *arguments]
        done = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
        return f"exit code {done.returncode}\n{done.stdout}{done.stderr}"

    return call


ARRANGEMENTS: dict[str, tuple[tuple[str, ...], Sequence[str], bool, str]] = {
    "prepend": (("--import-mode=prepend",), (), True, ""),
    "append": (("--import-mode=append",), (), True, ""),
    "importlib and pythonpath": (("--import-mode=importlib",), (), False, "pythonpath = ."),
    "importlib and python -m": (("--import-mode=importlib",), ("",), False, ""),
    "prepend and pythonpath": ((), (), False, "pythonpath = ."),
    "append and workers": (("--import-mode=append", "-n", "2"), (), True, ""),
}


@pytest.mark.parametrize("packages", [True, False], ids=["packages", "namespaces"])
@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_their_tests_run_as_before(
    repository: Callable[..., Path], run: Run, name: str, *, packages: bool
) -> None:
    arguments, first, conftest, ini = ARRANGEMENTS[name]
    root = repository(packages=packages, conftest=conftest, ini=ini)
    found = run(root, *arguments, first=first)
    assert found.startswith("exit code 0"), found
    assert "3 passed" in found


@pytest.mark.parametrize("packages", [True, False], ids=["packages", "namespaces"])
def test_their_tests_would_break_without_the_plugin_giving_way(
    repository: Callable[..., Path], run: Run, *, packages: bool
) -> None:
    root = repository(packages=packages, conftest=True)
    found = run(root, "--import-mode=append", "-p", "no:logits-parity")
    assert "No module named 'harness.engine'" in found


def test_session_of_theirs_leaves_no_trace_of_ours(
    repository: Callable[..., Path], run: Run
) -> None:
    root = repository(conftest=True)
    (root / "conftest.py").write_text(
        "import sys\n"
        "def pytest_unconfigure():\n"
        "    heavy = {'torch', 'transformers', 'numpy', 'rich'} & set(sys.modules)\n"
        "    print('loaded', sorted(heavy))\n"
    )
    found = run(root, "-s")
    assert "loaded []" in found
    assert "logits parity" not in found
    assert not (root / "reports").exists()


PORT = """
import harness
import pytest
from logits_parity import HFEngine, ParityError, RunResult, Verdict

MODEL = {model!r}

def test_harness_is_theirs():
    from harness.engine import ANSWER
    assert ANSWER == 42

def test_model_in_memory(parity):
    model = HFEngine.load(MODEL).model
    result = parity.assert_parity(model, checkpoint=MODEL, token_ids=[[1, 2, 3]], decode=1)
    assert isinstance(result, RunResult)
    assert result.verdict in (Verdict.PASS, Verdict.ROUNDING)
    assert result.case == "test_model_in_memory"

def test_engines_by_name(parity):
    parity.assert_parity(["hf:sdpa", "reference"], checkpoint=MODEL, token_ids=[[1, 2]])

def test_broken_model(parity):
    model = HFEngine.load(MODEL).model
    model.model.layers[1].self_attn.scaling *= 1.5
    parity.assert_parity(model, checkpoint=MODEL, token_ids=[[1, 2, 3, 4]])

def test_unusable_input(parity):
    parity.assert_parity("hf:eager", checkpoint=MODEL, token_ids=[[1, -2]])

def test_error_is_theirs_to_catch(parity):
    with pytest.raises(ParityError, match="exactly one of token_ids and prompt"):
        parity.check("hf:eager", checkpoint=MODEL)
"""
CASE = """
format = "logits-parity/case"
version = 1
model = {model!r}
engines = ["hf:eager", "reference"]
greedy = 0
decode = 1
[[prompts]]
token_ids = [[1, 2, 3, 4, 5]]
"""


@pytest.mark.parametrize(
    ("mode", "workers"), [("append", ()), ("importlib", ()), ("prepend", ("-n", "2"))]
)
def test_their_repository_uses_the_fixture_and_case_files(
    repository: Callable[..., Path],
    run: Run,
    tiny: Callable[..., Path],
    mode: str,
    workers: tuple[str, ...],
) -> None:
    ini = "pythonpath = ." if mode == "importlib" else ""
    root = repository(packages=mode != "prepend", conftest=mode != "importlib", ini=ini)
    (root / "tests" / "test_port.py").write_text(PORT.format(model=str(tiny())))
    (root / "cases").mkdir()
    (root / "cases" / "tiny.toml").write_text(CASE.format(model=str(tiny())))
    found = run(root, f"--import-mode={mode}", "--junitxml", "junit.xml", *workers)
    assert found.startswith("exit code 1"), found
    assert "2 failed, 8 passed" in found
    assert "FAILED tests/test_port.py::test_broken_model - " in found
    assert "test_broken_model: fail at layers.1.attn.scores of hf:eager" in found
    assert "token ids of 0 and up, found -2" in found
    assert "Traceback" not in found
    assert "parity.assert_parity(" not in found
    assert "4 compared: " in found
    stems = sorted(path.stem for path in (root / "reports").glob("*.html"))
    tests = ("broken_model", "engines_by_name", "model_in_memory")
    assert stems == [*(f"tests_test_port.py_test_{name}" for name in tests), "tiny"]
    cases = ET.parse(root / "junit.xml").iter("testcase")
    properties = {
        case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")}
        for case in cases
    }
    assert properties["test_broken_model"]["parity_verdict"] == "fail"
    report = properties["tiny"]["parity_report"]
    assert report == "reports/tiny.html"
    assert (root / report).stat().st_size > 10_000


def test_command_line_is_ours_beside_their_harness(
    repository: Callable[..., Path], run: Run
) -> None:
    code = "import logits_parity; logits_parity.main()"
    found = run(repository(), "report", "absent.json", code=code, first=[""])
    assert found.startswith("exit code 2")
    assert "Error: absent.json" in found


def test_module_is_the_command_line() -> None:
    command = [sys.executable, "-m", "logits_parity", "--version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("parity ")


def test_entry_points_go_by_our_own_name() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="parity")
    assert script.load() is logits_parity.main


def test_there_is_one_class_whichever_name_it_is_imported_by() -> None:
    assert logits_parity.RunResult is harness.RunResult is RunResult
    assert RunResult.__module__ == "logits_parity.harness.result"
    assert ops.__name__ == "logits_parity.references.ops"
    assert logits_parity.__all__ == harness.__all__


def test_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'logits_parity' has no attribute 'HFEngin'"):
        _ = logits_parity.HFEngin


def test_submodule_that_does_not_exist_is_an_import_error() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'harness\.absent'"):
        __import__("harness.absent")
