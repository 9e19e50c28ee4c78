"""The reference stands alone, and starting up stays light; each check is shown to fail."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOREIGN = ("transformers", "torch", "harness")


def imported(source: str) -> set[str]:
    """Top-level names of all absolute imports anywhere in a file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).partition(".")[0])
    return found


def loaded(statement: str) -> set[str]:
    """Top-level modules that are loaded after a statement in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "path", sorted((ROOT / "references").rglob("*.py")), ids=lambda path: path.stem
)
def test_references_import_nothing_that_they_are_held_against(path: Path) -> None:
    assert not imported(path.read_text()) & set(FOREIGN)


def test_references_load_nothing_that_they_are_held_against() -> None:
    statement = (
        "import references.model\nfrom references import families\n"
        "assert len([families.load(name) for name in families.names()]) > 1"
    )
    assert not loaded(statement) & set(FOREIGN)


@pytest.mark.parametrize(
    "source",
    ["import transformers", "def f():\n    from torch.nn import Linear", "import harness.taps"],
)
def test_the_check_of_imports_can_fail(source: str) -> None:
    assert imported(source) & set(FOREIGN)


@pytest.mark.parametrize(
    "statement",
    [
        "import harness",
        "import pytest_logits_parity",
        "import logits_parity",
        "import harness.start",
        "import harness.cli",
    ],
)
def test_starting_up_loads_no_torch(statement: str) -> None:
    assert not loaded(statement) & {"torch", "transformers", "numpy"}


def test_the_check_of_loaded_modules_can_fail() -> None:
    assert "numpy" in loaded("import harness.compare")


@pytest.mark.parametrize(
    "path", sorted((ROOT / "harness").rglob("*.py")), ids=lambda path: path.stem
)
def test_the_harness_imports_itself_relatively(path: Path) -> None:
    """It may be loaded under another parent, beside somebody's own harness and references."""
    allowed = {"references"} if path.name == "references_seam.py" else set()
    assert not imported(path.read_text()) & ({"harness", "references"} - allowed)


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted((ROOT / "harness").rglob("*.py"))
        if "engines" not in path.relative_to(ROOT).parts
    ],
    ids=lambda path: path.stem,
)
def test_only_engines_import_torch(path: Path) -> None:
    assert not imported(path.read_text()) & {"torch", "transformers"}
