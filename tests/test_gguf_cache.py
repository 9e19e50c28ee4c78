import multiprocessing
import os
import stat
from pathlib import Path

import gguf
import numpy as np
import pytest

from harness.checkpoint import load_checkpoint
from harness.checkpoint.from_gguf import cache, convert, convert_gguf
from harness.errors import CheckpointError

C = 8


def write(path: Path, *, value: float = 1.0) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(C)
    writer.add_feed_forward_length(C)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-6)
    names = ["attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output"]
    names += ["ffn_gate", "ffn_up", "ffn_down"]
    shapes = {f"blk.0.{n}.weight": (C,) if n.endswith("norm") else (C, C) for n in names}
    shapes |= {"token_embd.weight": (C, C), "output_norm.weight": (C,)}
    for name, shape in shapes.items():
        writer.add_tensor(name, np.full(shape, value, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def entries(cache_dir: Path) -> list[str]:
    return sorted(entry.name for entry in (cache_dir / "gguf").iterdir() if entry.is_dir())


def test_second_conversion_is_only_a_lookup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "m.gguf")
    first = convert_gguf(path, cache_dir=tmp_path)

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(convert, "write_converted", forbidden)
    assert convert_gguf(path, cache_dir=tmp_path) == first
    assert convert_gguf(path.rename(tmp_path / "renamed.gguf"), cache_dir=tmp_path) == first
    with pytest.raises(AssertionError, match="converted again"):
        convert_gguf(path.with_name("renamed.gguf"), cache_dir=tmp_path / "other")


def test_key_is_content_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.gguf")
    first = convert_gguf(path, cache_dir=tmp_path)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    write(path, value=2.0)
    os.utime(path, ns=times)  # same name, size and times, other weights
    second = load_checkpoint(path, cache_dir=tmp_path)
    assert second.path != first
    assert second.tensors["model.norm.weight"][0] == 2.0
    monkeypatch.setattr(cache, "CONVERTER_VERSION", 2)
    assert convert_gguf(path, cache_dir=tmp_path).name == second.path.name[:-1] + "2"


def test_interrupted_conversion_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "m.gguf")
    with monkeypatch.context() as patch:

        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(convert, "write_record", interrupt)  # the last step: all else is written
        with pytest.raises(KeyboardInterrupt):
            convert_gguf(path, cache_dir=tmp_path)
    assert entries(tmp_path) == []
    assert load_checkpoint(path, cache_dir=tmp_path).tensors


def test_left_over_of_a_killed_run_is_neither_used_nor_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    done = convert_gguf(path, cache_dir=tmp_path)
    left_over = done.with_name(done.name + ".part-dead")
    done.rename(left_over)
    (left_over / "model.safetensors").write_bytes(b"half")
    assert load_checkpoint(path, cache_dir=tmp_path).tensors
    assert entries(tmp_path) == [done.name]


def test_loser_of_a_race_takes_the_winners_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "m.gguf")
    real = convert.write_converted

    def race(source: Path, directory: Path, *, sha256: str) -> None:
        real(source, directory, sha256=sha256)
        winner = directory.with_name(directory.name.split(".part-")[0])
        winner.mkdir()
        real(source, winner, sha256=sha256)
        (winner / "won").touch()

    monkeypatch.setattr(convert, "write_converted", race)
    directory = convert_gguf(path, cache_dir=tmp_path)
    assert (directory / "won").exists()
    assert entries(tmp_path) == [directory.name]


def _convert(path: Path, cache_dir: Path) -> str:
    checkpoint = load_checkpoint(path, cache_dir=cache_dir)
    return f"{checkpoint.path} {checkpoint.fingerprint}"


def test_processes_at_once_agree(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        answers = pool.starmap(_convert, [(path, tmp_path / "cache")] * 8)
    assert len(set(answers)) == 1
    assert len(entries(tmp_path / "cache")) == 1


def test_converted_directory_is_readable_by_others(tmp_path: Path) -> None:
    directory = convert_gguf(write(tmp_path / "m.gguf"), cache_dir=tmp_path)
    assert stat.S_IMODE(directory.stat().st_mode) & 0o500 == 0o500
    assert not directory.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def test_unwritable_cache_is_told(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the cache should be")  # holds for root too, unlike modes
    with pytest.raises(CheckpointError) as caught:
        convert_gguf(write(tmp_path / "m.gguf"), cache_dir=blocked)
    assert "can be kept, found NotADirectoryError" in str(caught.value)
    assert "name another directory in LOGITS_PARITY_CACHE" in str(caught.value)


def test_damaged_cache_says_what_to_delete(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    directory = convert_gguf(path, cache_dir=tmp_path)
    (directory / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"delete {directory}"):
        load_checkpoint(path, cache_dir=tmp_path)
