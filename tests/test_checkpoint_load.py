import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from safetensors.numpy import save_file

from harness.checkpoint import CACHE_VARIABLE, default_cache_dir, load_checkpoint
from harness.errors import CheckpointError

HEAVY = ("torch", "transformers", "gguf", "tokenizers", "huggingface_hub", "safetensors")


def save(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    save_file({"w": np.ones(2, dtype=np.float32)}, path / "model.safetensors")
    return path


class Hub:
    """Stands in for snapshot_download: keeps what it was asked and gives what it was told to."""

    def __init__(self, answer: Path | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, repo_id: str, **options: Any) -> str:
        self.asked.append((repo_id, options))
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


def install(monkeypatch: pytest.MonkeyPatch, answer: Path | Exception) -> Hub:
    hub = Hub(answer)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    return hub


def test_load_asks_the_hub_for_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = install(monkeypatch, save(tmp_path / "snapshot"))
    checkpoint = load_checkpoint("org/name-1.5", revision="main")
    assert checkpoint.origin == "org/name-1.5"
    assert checkpoint.path == tmp_path / "snapshot"
    ((repo_id, options),) = hub.asked
    assert repo_id == "org/name-1.5"
    assert options["revision"] == "main"
    assert "model-*-of-*.safetensors" in options["allow_patterns"]
    assert not any(p.endswith((".bin", ".pt", ".pth")) for p in options["allow_patterns"])


def test_load_prefers_a_path_to_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = install(monkeypatch, AssertionError("asked"))
    save(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert load_checkpoint("org/name").tensors["w"].shape == (2,)
    assert not hub.asked


@pytest.mark.parametrize(
    "source",
    [
        "/no/where",
        "./org/name",
        "../org/name",
        "~nobody/name",
        "name",
        "a/b/c",
        "org/model.gguf",
        "org/model.safetensors",
        "",
        "org/na me",
        Path("org/name"),
    ],
)
def test_load_does_not_take_a_missing_path_for_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | Path
) -> None:
    hub = install(monkeypatch, AssertionError("asked"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    with pytest.raises(CheckpointError):
        load_checkpoint(source)
    assert not hub.asked


def test_load_says_what_the_hub_said(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ConnectionError("Name or\nservice not known"))
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint("org/name")
    assert str(caught.value) == (
        "org/name: expected a repository on the Hugging Face hub (there is no such path here), "
        "found ConnectionError: Name or service not known: check the spelling, the network and, "
        "for a gated model, your access; or name a local directory"
    )


def test_load_refuses_a_revision_of_a_path(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a path on the disk, with revision 'v2'"):
        load_checkpoint(save(tmp_path / "m"), revision="v2")


@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        ("model.safetensors", b"\x10\0\0\0\0\0\0\0", "name the directory that holds both"),
        ("notes.txt", b"hello", "name a directory with config.json"),
        ("empty", b"", "name a directory with config.json"),
    ],
)
def test_load_refuses_other_files(tmp_path: Path, name: str, content: bytes, advice: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=advice):
        load_checkpoint(tmp_path / name)


def test_cache_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache_dir() == Path("/home/someone/.cache/logits-parity")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache_dir() == Path("/xdg/logits-parity")
    monkeypatch.setenv(CACHE_VARIABLE, "~/mine")
    assert default_cache_dir() == Path("/home/someone/mine")


def imported_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*[m for m in {HEAVY} if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return set(answer.stdout.split())


def test_import_stays_light() -> None:
    assert imported_by("import harness.checkpoint") == set()


def test_import_stays_light_can_fail() -> None:
    assert "safetensors" in imported_by("import harness.checkpoint, safetensors")


def test_load_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    path = save(tmp_path / "m")
    statement = f"from harness.checkpoint import load_checkpoint; load_checkpoint({str(path)!r})"
    assert imported_by(statement) == {"safetensors"}
