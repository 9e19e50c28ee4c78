"""The core touches no file, clock, network or environment; whatever does is an edge, by name.

Two ways of looking: at the source of every module, and at a run of the core under an audit hook.
Clocks and the environment's variables raise no audit event, so for them the source has to do.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "harness"

#: Modules that touch the world, and why; every other one is core.
EDGES = {
    "__init__.py": "imports public names on first use",
    "cache_folder.py": "finds the folder of what is made once",
    "case_file.py": "reads case files",
    "checkpoint/directory.py": "reads checkpoints",
    "checkpoint/from_gguf/cache.py": "keeps converted files",
    "checkpoint/from_gguf/conversion_record.py": "reads and writes the note beside converted files",
    "checkpoint/from_gguf/convert.py": "writes converted files",
    "checkpoint/from_gguf/layout.py": "reads GGUF files",
    "checkpoint/from_gguf/tensor_writer.py": "writes converted files",
    "checkpoint/from_gguf/tokenizer_files.py": "writes converted files",
    "checkpoint/from_gguf/gguf_file.py": "reads GGUF files",
    "checkpoint/json_files.py": "reads checkpoints",
    "checkpoint/load.py": "finds checkpoints, in the hub's cache as well",
    "checkpoint/safetensors_file.py": "maps weights into memory",
    "checkpoint/tokenizer.py": "reads tokenizers",
    "ci_changed.py": "asks git what a change touches",
    "cli.py": "the command line",
    "cli_gate.py": "the command line",
    "cli_report.py": "the command line",
    "cli_trace.py": "the command line",
    "console.py": "prints to the terminal",
    "diffing.py": "finds trace files",
    "engines/hf_caches.py": "looks whether a package for quantised caches is installed",
    "engines/hf_attention.py": "looks among loaded modules for the one that calls it",
    "engines/hf_probe.py": "writes a model for transformers to load",
    "engines/mutants/output.py": "writes a config in which something is lost",
    "engines/plants/plant.py": "looks among loaded modules for the attention function of one",
    "engines/random_models.py": "draws models from a seed that is given",
    "engines/reference.py": "sets the number of threads of NumPy's library",
    "engines/recorder/entry.py": "reads a request, writes facts",
    "engines/recorder/heard.py": "listens to logs",
    "engines/recorder/models.py": "loads models",
    "engines/recorder/running.py": "looks among loaded modules for the cache class of one",
    "engines/recorder/session.py": "reads configs, versions and the machine",
    "engines/recorder/stages.py": "leaves the stage for the parent to find after a crash",
    "engines/recorder/weights.py": "draws weights from the names of parameters",
    "environment.py": "clock, platform, versions, cores",
    "gate/baseline_file.py": "reads and writes baselines",
    "gate/bisect_state.py": "keeps what a search has judged",
    "gate/building.py": "makes environments with pip or uv",
    "gate/environments.py": "finds and makes environments",
    "gate/history/__main__.py": "measures cases, keeps what was measured",
    "gate/history/case_file.py": "reads files of history",
    "gate/history/running.py": "keeps records in a temporary folder",
    "gate/index.py": "asks the package index, keeps its answer",
    "gate/kept.py": "keeps and removes environments, one run at a time",
    "gate/schema.py": "prints the schema",
    "gate/sharing.py": "finds what is installed",
    "gate/tools.py": "runs pip and uv",
    "gate/running.py": "keeps what is recorded while it is compared",
    "gate/searching.py": "keeps a model that is saved while releases are run",
    "gate/sketch.py": "draws its matrix from a key that never changes",
    "gate/upgrading.py": "keeps a model that is saved while releases are run",
    "gate/recording.py": "starts a process in another environment",
    "laws/candidate.py": "writes altered checkpoints",
    "laws/checkpoint_edit.py": "writes altered checkpoints",
    "laws/document.py": "writes the document of the laws",
    "laws/makers.py": "imports an engine that is named",
    "laws/models.py": "writes random models, drawn from a seed that is given",
    "laws/search.py": "stops by the clock to look for a smaller example",
    "locate.py": "finds models",
    "outputs.py": "prints results",
    "parts.py": "puts a model together that is installed in parts",
    "pytest_plugin/cases.py": "reads case files, among whatever pytest collects",
    "pytest_plugin/gates.py": "finds baselines",
    "pytest_plugin/names.py": "finds this package beside another of its name",
    "report/files.py": "writes reports",
    "report/folder.py": "reads a folder of results",
    "report/html.py": "reads its own template",
    "report/gate_outputs.py": "prints results",
    "report/index.py": "makes addresses relative to its folder",
    "report/rendering.py": "reads templates",
    "result_schema.py": "prints the schema",
    "score/command.py": "the command line; draws prompts from a seed that is given",
    "seeds/command.py": "the command line",
    "start.py": "signals and the end of the process",
    "trace/container.py": "maps trace files into memory",
    "trace/write.py": "writes trace files",
}
REFERENCE_EDGES = {"families/__init__.py": "finds the families that are there"}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MODULES = _words(
    "os time datetime random secrets subprocess socket tempfile shutil glob mmap platform signal"
    " ctypes fcntl urllib http uuid getpass locale logging multiprocessing pkgutil importlib"
    " threadpoolctl jinja2 huggingface_hub"
)
CALLS = _words("open input print exec eval compile __import__ breakpoint")
METHODS = _words(
    "open read_text read_bytes write_text write_bytes exists is_file is_dir mkdir rmdir iterdir"
    " glob rglob stat lstat unlink touch rename expanduser resolve cwd home chmod samefile"
    " memmap fromfile tofile"
)
PATH_FREE = {"float_info", "byteorder", "maxsize"}  # what `sys` knows of the language alone


def touches(source: str) -> list[str]:
    """What in a module's source touches the world."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [a.name for a in names if a.name.partition(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module), level=0):
                found += [module] if module.partition(".")[0] in MODULES else []
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                found.append(f"{name}()")
            case ast.Call(func=ast.Attribute(attr="open"), keywords=keywords) if any(
                keyword.arg == "cache" for keyword in keywords
            ):
                pass  # an engine begins a sequence
            case ast.Attribute(value=ast.Name(id="sys"), attr=name) if name not in PATH_FREE:
                found.append(f"sys.{name}")
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="random"), attr="default_rng"), args=[_]
            ):
                pass  # the seed is given
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="random"), attr=name)):
                found.append(f"random.{name}()")
            case ast.Attribute(value=ast.Name(id="np" | "numpy"), attr="load" | "save"):
                found.append(f"np.{node.attr}")
            case ast.Call(func=ast.Attribute(attr=name)) if name in METHODS:
                found.append(f".{name}()")
            case ast.Name(id="__file__"):
                found.append("__file__")
    return found


def modules(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))


@pytest.mark.parametrize("name", [name for name in modules(PACKAGE) if name not in EDGES])
def test_a_core_module_touches_nothing(name: str) -> None:
    assert touches((PACKAGE / name).read_text()) == []


@pytest.mark.parametrize("name", EDGES)
def test_an_edge_is_one(name: str) -> None:
    """An entry that is not needed any more would let something in unseen."""
    assert touches((PACKAGE / name).read_text())


@pytest.mark.parametrize("name", modules(ROOT / "references"))
def test_a_reference_touches_nothing(name: str) -> None:
    found = touches((ROOT / "references" / name).read_text())
    assert bool(found) is (name in REFERENCE_EDGES), found


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "import os.path",
        "from time import monotonic",
        "def f():\n    import datetime",
        "from random import Random",
        "import subprocess as s",
        "from importlib import metadata",
        "open('x')",
        "print('x')",
        "from pathlib import Path\nPath('x').read_text()",
        "p.exists()",
        "with p.open() as f: pass",
        "np.random.default_rng()",
        "np.random.normal(size=3)",
        "np.load('x')",
        "np.memmap('x')",
        "import sys\nsys.argv",
        "import sys\nx = sys.modules",
        "__file__",
    ],
)
def test_the_look_at_the_source_can_fail(source: str) -> None:
    assert touches(source)


@pytest.mark.parametrize(
    "source",
    [
        "from pathlib import Path\nPath('x').name",
        "import sys\nsys.float_info.max",
        "engine.open(cache=True)",
        "np.random.default_rng(7)",
        "import threading",
    ],
)
def test_the_look_at_the_source_lets_the_rest_be(source: str) -> None:
    assert touches(source) == []


#: A run of the core: reference, lanes, replay, verdict, document and words, all in memory. From the
#: hook on, an event of the kinds below is an error; a first run imports what is imported on use.
RUN = """
import sys
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
import numpy as np, msgspec, tokenizers, safetensors, rich.table
from harness import case, compare, greedy, logits, outcome, participants, result, verdict, walk
from harness.checkpoint import Checkpoint, check_finite, check_tensors
from harness.engines.reference import ReferenceEngine
from harness.report import wording
from harness.subject import Subject
from references.model import Model

class Inline(Executor):
    def submit(self, function, /, *arguments, **options):
        future = Future()
        future.set_result(function(*arguments, **options))
        return future

@contextmanager
def inline(threads):
    yield Inline()

def make():
    config = dict(model_type="llama", vocab_size=11, hidden_size=8, intermediate_size=12,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
        max_position_embeddings=9)
    draw = np.random.default_rng(0)
    shapes = Model(config, {}).shapes.items()
    arrays = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes}
    for array in arrays.values():
        array.flags.writeable = False
    checkpoint = Checkpoint(path=Path("nowhere"), config=config, tensors=arrays, origin="memory")
    return Subject(checkpoint, Model(config, checkpoint.tensors))

def run(subject):
    checkpoint, model = subject.checkpoint, subject.model
    check_tensors(checkpoint, model.shapes)
    check_finite(checkpoint, model.shapes)
    engine = ReferenceEngine(model, dtype="float32")
    tokens = np.array([[1, 2, 3]])
    chosen = greedy.greedy(engine, tokens, 2)
    chunks = [tokens, chosen[:, :1]]
    sides = [participants.RunningEngine(engine)]
    record = walk.walk(subject, sides, chunks, dtype="float32", threads=1,
        progress=lambda done, total: None, lanes=inline)
    prompt = outcome.prompt_result(subject, record, chunks, name="p", text="x",
        chosen={engine.name: chosen})
    environment = result.Environment({}, 1, None, "", "", 0.0, "")
    whole = outcome.conclude(subject, sides, [prompt], case="c", environment=environment)
    again = result.from_json(result.to_json(whole))
    assert again == whole
    return whole.verdict.value, len(whole.comparisons)

FORBIDDEN = ("open", "os.", "socket.", "subprocess.", "shutil.", "tempfile.", "glob.", "pathlib.",
             "mmap.", "urllib.", "fcntl.", "signal.")

def refuse(event, arguments):
    if event.startswith(FORBIDDEN):
        raise RuntimeError(f"the core caused {event} {arguments}")

subject = make()  # families are looked for in a folder
run(subject)
{fault}
sys.addaudithook(refuse)
print(*run(subject))
"""


def run_core(*, fault: str = "") -> subprocess.CompletedProcess[str]:
    code = RUN.replace("{fault}", fault)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True
    )


def test_the_core_runs_without_the_world() -> None:
    ran = run_core()
    assert ran.stderr == ""
    verdict, compared = ran.stdout.split()
    assert verdict == "pass"
    assert int(compared) > 80  # two chunks of two layers


@pytest.mark.parametrize(
    ("fault", "event"),
    [
        ("real = outcome.judge\ndef judge(*a, **k):\n    open('x')\n    return real(*a, **k)\n"
         "outcome.judge = judge", "open"),
        ("import os\nreal = walk.Lockstep\ndef lock(*a, **k):\n    os.listdir('.')\n"
         "    return real(*a, **k)\nwalk.Lockstep = lock", "os.listdir"),
        ("import subprocess\nreal = outcome.all_pairs\n"
         "def pair(*a):\n    subprocess.run(['true'])\n"
         "    return real(*a)\noutcome.all_pairs = pair", "subprocess.Popen"),
        ("import socket\nreal = outcome.worst\ndef worst(v):\n    socket.socket()\n"
         "    return real(v)\noutcome.worst = worst", "socket."),
    ],
)  # fmt: skip
def test_the_run_without_the_world_can_fail(fault: str, event: str) -> None:
    ran = run_core(fault=fault)
    assert ran.returncode == 1
    assert f"the core caused {event}" in ran.stderr


def importable(name: str) -> str:
    return ".".join(["harness", *Path(name).with_suffix("").parts]).removesuffix(".__init__")


def test_nothing_but_engines_loads_torch() -> None:
    """Importing all of the rest at once leaves torch and transformers where they are."""
    names = [importable(n) for n in modules(PACKAGE) if not n.startswith("engines/")]
    code = "import importlib, sys\nfor name in {!r}:\n    importlib.import_module(name)\n{}"
    check = "print(*{'torch', 'transformers', 'huggingface_hub'} & set(sys.modules))"
    for more, expected in (("", ""), ("import harness.engines.hf\n", "transformers")):
        ran = subprocess.run(
            [sys.executable, "-c", code.format(names, more + check)],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        assert bool(expected) is bool(ran.stdout.strip()), ran.stdout
