"""The reference runs where nothing else is installed, and a family is found by its file."""

import subprocess
import sys
from pathlib import Path

import pytest

from references import families
from references.errors import ConfigError

ROOT = Path(__file__).parent.parent

#: Runs a model in an interpreter where an import of anything else than these is an error.
ALONE = """
import importlib.abc, sys
sys.path.insert(0, {root!r})

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ImportError("refused: " + name)

sys.meta_path.insert(0, Refuse())
import numpy as np
from references.model import Model
from references.step import Compute

sizes = dict(vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=2)
heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=6, max_position_embeddings=9)
for family in ("llama", "qwen3"):
    config = {{"model_type": family}} | sizes | heads
    shapes = Model(config, {{}}).shapes
    draw = np.random.default_rng(0)
    model = Model(config, {{name: draw.normal(size=shape) for name, shape in shapes.items()}})
    step = Compute(lambda weight: weight.array, np.float64)
    logits, cache = model.prefill(step, np.array([[1, 2, 3]]))
    print(logits.shape, cache.length)
"""


def run_alone(root: Path, refused: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    code = ALONE.format(root=str(root), refused=refused)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=root, check=False, capture_output=True, text=True
    )


REFUSED = ("transformers", "torch", "harness", "safetensors", "gguf", "tokenizers", "msgspec")


def test_a_model_runs_where_nothing_else_can_be_imported() -> None:
    done = run_alone(ROOT, REFUSED)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["(1, 3, 11) 3"] * 2


def test_the_check_can_fail() -> None:
    done = run_alone(ROOT, ("array_api_compat",))
    assert "refused: array_api_compat" in done.stderr
    assert done.returncode == 1


def test_a_family_is_found_by_the_name_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert families.names() == [
        "gemma3_text",
        "gpt2",
        "gpt_oss",
        "granite",
        "llama",
        "qwen3",
        "qwen3_moe",
        "stablelm",
    ]
    (tmp_path / "planted3.py").write_text('DERIVED = ("planted",)\n')
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    try:
        assert families.names() == [
            "gemma3_text",
            "gpt2",
            "gpt_oss",
            "granite",
            "llama",
            "planted3",
            "qwen3",
            "qwen3_moe",
            "stablelm",
        ]
        assert families.load("planted3").DERIVED == ("planted",)
    finally:
        sys.modules.pop("references.families.planted3", None)


@pytest.mark.parametrize(
    "model_type", ["mamba", "Llama", "llama.config", "__init__", "", "None", "../llama"]
)
def test_an_unknown_family_is_refused_with_those_that_are_known(model_type: str) -> None:
    with pytest.raises(ConfigError) as caught:
        families.load(model_type)
    assert str(caught.value) == (
        f"config.json: model_type: expected one of {', '.join(families.names())}, "
        f"found {model_type!r}: the reference has no such family yet: "
        "add references/families/<model_type>.py"
    )


@pytest.mark.parametrize("family", families.names())
def test_every_family_has_what_a_model_asks_of_it(family: str) -> None:
    module = families.load(family)
    assert isinstance(module.DERIVED, tuple)
    assert all(callable(f) for f in (module.read_config, module.parameters, module.forward))
