"""Try a built wheel outside the checkout: command line, Python entry and pytest plugin.

Run it with ``python tests/try_wheel.py DIST`` after building; it exits non-zero when something does
not work. The wheel goes into a folder of its own, in front of everything installed, and is
used in a repository that has a harness, references and a conftest.py of its own.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

CHECKPOINT = """
import sys, torch, transformers
torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, rope_parameters={"rope_theta": 5000.0,
    "rope_type": "default"},
)
transformers.LlamaForCausalLM(config).save_pretrained(sys.argv[1])
"""

CASE = """
format = "logits-parity/case"
version = 1
model = "../model"
greedy = 3
decode = 1
[[prompts]]
name = "ids"
token_ids = [[1, 2, 3, 4, 5]]
"""

THEIRS = {
    "harness/__init__.py": "OWNER = 'them'\n",
    "references/paper.py": "TITLE = 'a paper of theirs'\n",
    "conftest.py": "import harness\nassert harness.OWNER == 'them', harness.__file__\n",
    "tests/test_theirs.py": """
def test_theirs():
    import harness.engine
    import references.paper
    assert harness.engine.run() == 42
""",
    "harness/engine.py": "def run():\n    return 42\n",
    "tests/test_wheel.py": """
import logits_parity

def test_wheel_is_used(parity):
    assert logits_parity.__file__.startswith({site!r}), logits_parity.__file__
    model = logits_parity.HFEngine.load("model").model
    result = parity.assert_parity(model, checkpoint="model", token_ids=[[1, 2, 3]])
    assert isinstance(result, logits_parity.RunResult)
""",
    "test_alone/test_alone.py": """
def test_wheel_is_found_under_both_names():
    import harness, logits_parity
    assert harness.__file__.startswith({site!r}), harness.__file__
    assert harness.RunResult is logits_parity.RunResult
""",
    "cases/tiny.toml": CASE,
}


#: Keeps an editable installation of the checkout, conftest.py and all, out of the way.
SITECUSTOMIZE = """
import os, sys
sys.path[:] = [p for p in sys.path if os.path.realpath(p) != {checkout!r}]
"""


def main(dist: Path) -> None:
    """Install the one wheel in ``dist`` and use it in a repository that has a harness too."""
    (wheel,) = dist.glob("*.whl")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        site, repository = folder / "site", folder / "repository"
        for path, text in THEIRS.items():
            file = repository / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(
                text if file.suffix == ".toml" else text.replace("{site!r}", repr(str(site)))
            )
        pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel.resolve())
        _run(folder, *pip)
        checkout = str(Path(__file__).resolve().parent.parent)
        (site / "sitecustomize.py").write_text(SITECUSTOMIZE.format(checkout=checkout))
        environment = os.environ | {"PYTHONPATH": str(site)}
        _run(repository, "-c", CHECKPOINT, "model", environment=environment)
        parity = site / "bin" / "parity"  # what pip made of the entry point
        _run(repository, parity, "--help", environment=environment)
        _run(repository, parity, "run", "cases/tiny.toml", environment=environment)
        _run(repository, "-m", "logits_parity", "run", "cases/tiny.toml", environment=environment)
        assert (repository / "reports" / "tiny.html").stat().st_size > 0
        _try_pytest(repository, environment)
        alone = ("-P", "-m", "pytest", "-q", "--confcutdir=test_alone", "test_alone")
        _run(repository, *alone, environment=environment)


def _try_pytest(repository: Path, environment: dict[str, str]) -> None:
    """Their tests and ours, as ``pytest`` runs them, in every import mode and with workers."""
    for mode, *more in (
        ("prepend",),
        ("append",),
        ("importlib", "-o", "pythonpath=."),
        ("append", "-n2"),
    ):
        (repository / "reports" / "tiny.html").unlink()
        options = ("-q", f"--import-mode={mode}", "--junitxml=junit.xml", *more)
        paths = ("tests", "cases")
        _run(repository, "-P", "-m", "pytest", *options, *paths, environment=environment)
        assert (repository / "reports" / "tiny.html").stat().st_size > 0
        cases = list(ElementTree.parse(repository / "junit.xml").iter("testcase"))
        assert sorted(str(case.get("name")) for case in cases) == [
            "test_theirs",
            "test_wheel_is_used",
            "tiny",
        ], cases


def _run(folder: Path, *arguments: object, environment: dict[str, str] | None = None) -> None:
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=False, text=True, capture_output=True
    )
    shown = " ".join(command[1:]).replace("\n", " ").strip()[:100]
    if done.returncode:
        sys.exit(f"{shown}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    sys.stderr.write(f"ok: {shown}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
