"""Try a built wheel outside the checkout: command line, Python entry and pytest plugin.

Run it with ``python tests/try_wheel.py DIST`` after building; it exits non-zero when something does
not work. The wheel goes into a folder of its own, in front of everything installed.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

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

TEST = """
import harness
from harness import HFEngine

def test_wheel_is_used(parity):
    assert harness.__file__.startswith({site!r}), harness.__file__
    parity.assert_parity(HFEngine.load("model"), checkpoint="model", token_ids=[[1, 2, 3]])
"""


def main(dist: Path) -> None:
    """Install the one wheel in ``dist`` and use it."""
    (wheel,) = dist.glob("*.whl")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        site = folder / "site"
        _run(
            folder,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            site,
            wheel.resolve(),
        )
        environment = os.environ | {"PYTHONPATH": str(site)}
        _run(folder, "-c", CHECKPOINT, "model", environment=environment)
        (folder / "cases").mkdir()
        (folder / "cases" / "tiny.toml").write_text(CASE)
        (folder / "test_wheel.py").write_text(TEST.format(site=str(site)))
        parity = "from harness.cli import main; main()"
        _run(folder, "-c", parity, "--help", environment=environment)
        _run(folder, "-c", parity, "run", "cases/tiny.toml", environment=environment)
        assert (folder / "reports" / "tiny.html").stat().st_size > 0
        _run(folder, "-m", "pytest", "-q", "cases", "test_wheel.py", environment=environment)


def _run(folder: Path, *arguments: object, environment: dict[str, str] | None = None) -> None:
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=False, text=True, capture_output=True
    )
    shown = " ".join(command[1:3]).splitlines()[0][:60]
    if done.returncode:
        sys.exit(f"{shown}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    sys.stderr.write(f"ok: {shown}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
