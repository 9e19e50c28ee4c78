"""Commands, case files and places that cannot be used, seen from outside.

One row is one kind of bad input: the command, and what it says. Words of the system or of a library
stand as ``*`` in a row.
"""

import errno
import fnmatch
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import HFEngine, check
from harness.errors import ParityError, UsageError
from harness.report.files import write_report, write_together

RUN = ("run", "case.toml")
KEYS = (
    "the keys format, version, name, model, prompts, engines, dtype, threads, seed, greedy, decode,"
    " install, probe, probe_length"
)
ENGINE = "hf:<attention implementation> or reference, with @<dtype> behind it or not"
LISTED = "an attention implementation that transformers lists: *"
WRITTEN = "a file that can be written"
ELSEWHERE = "choose another folder or file, or mend its permissions"
KEPT = "a directory in which a converted GGUF file can be kept"
ROOM = "make room or name another directory in LOGITS_PARITY_CACHE"
LABELS = "write the ids that the tokenizer gives; -100 marks are labels, not input"
SAVED = "write it again with `parity run --json`"

#: Arguments, then what is said: where, expected, found, advice.
ROWS: dict[str, tuple[tuple[str, ...], str, str, str, str]] = {
    "token id beyond the vocabulary": (
        (*RUN, "--tokens", "1,101"),
        "token ids",
        "0 to 100, the rows of the embedding",
        "101",
        "use the tokenizer that belongs to this checkpoint",
    ),
    "token id below zero": (
        (*RUN, "--tokens", "1,-100"),
        "prompt 'tokens-1'",
        "token ids of 0 and up",
        "-100",
        LABELS,
    ),
    "token id beyond 64 bits": (
        (*RUN, "--tokens", "1,99999999999999999999"),
        "prompt 'tokens-1'",
        "token ids of 0 and up, at most 2147483647",
        "a number beyond 64 bits",
        LABELS,
    ),
    "no token ids": (
        (*RUN, "--tokens", ""),
        "--tokens",
        "whole numbers between commas",
        "''",
        'write --tokens "1,2,3"',
    ),
    "empty prompt": (
        (*RUN, "--prompt", ""),
        "prompt 'prompt-1'",
        "a text",
        "an empty one",
        "write something to compute, or give token_ids",
    ),
    "text without a tokenizer": (
        (*RUN, "--prompt", "hello"),
        "model",
        "tokenizer.json",
        "no such file",
        "let transformers write it, AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR), or"
        " pass token ids instead of text",
    ),
    "prompt longer than the positions": (
        (*RUN, "--tokens", ",".join(["1"] * 300)),
        "prompt 'tokens-1'",
        "at most 256 positions, the config's max_position_embeddings",
        "300 tokens and 2 more to decode",
        "shorten the prompt with length, or lower decode and greedy",
    ),
    "misspelt engine": (
        (*RUN, "--engine", "referense"),
        "engine",
        ENGINE,
        "'referense'",
        "did you mean reference? *",
    ),
    "misspelt attention": (
        (*RUN, "--engine", "hf:spda"),
        "engine hf:spda",
        LISTED,
        "'spda'",
        "did you mean hf:sdpa?",
    ),
    "unknown attention": (
        (*RUN, "--engine", "hf:zzz"),
        "engine hf:zzz",
        LISTED,
        "'zzz'",
        "for example hf:eager or hf:sdpa",
    ),
    "unknown dtype of an engine": (
        (*RUN, "--engine", "hf:eager@float8"),
        "dtype",
        "float32 or bfloat16 or float16",
        "float8",
        "choose one of them",
    ),
    "more threads than a process can have": (
        (*RUN, "--threads", "1000000"),
        "case 'case'",
        "threads of 1024 or fewer",
        "1000000",
        "write about as many as there are cores, or leave it out",
    ),
    "a model that is a device": (
        (*RUN, "--model", "/dev/zero"),
        "/dev/zero",
        "a directory or a file",
        "neither: a pipe, a socket or a device",
        "name the checkpoint itself",
    ),
    "a model path that is too long": (
        (*RUN, "--model", "./" + "x" * 5000),
        "model './x*",
        "a checkpoint folder or a GGUF file",
        "no such path",
        "check the path; a relative one counts from the case file",
    ),
    "a home folder that nobody has": (
        (*RUN, "--model", "~nosuchuser/model"),
        "model '~nosuchuser/model'",
        "a checkpoint folder or a GGUF file",
        "no such path",
        "check the path; a relative one counts from the case file",
    ),
    "reports into a file": (
        (*RUN, "--report-dir", "case.toml"),
        "case.toml/case.json",
        WRITTEN,
        "a file where its folder should be",
        ELSEWHERE,
    ),
    "result into a folder": (
        (*RUN, "--json", "model", "--no-report"),
        "model",
        WRITTEN,
        "is a directory",
        ELSEWHERE,
    ),
    "a result that is none": (
        ("report", "model/config.json"),
        "model/config.json",
        "format logits-parity/result version 1",
        "(None, None)",
        SAVED,
    ),
    "a result that is a folder": (
        ("report", "model"),
        "model",
        "a readable result file",
        "is a directory",
        "name a JSON file that `parity run`, `gate` or `upgrade` wrote",
    ),
}

#: A line of a case file in place of another, then what is said.
CASES: dict[str, tuple[str, str, str, str, str, str]] = {
    "misspelt key": (
        "greedy = 2",
        "gredy = 2",
        "case.toml",
        KEYS,
        "'gredy'",
        "did you mean 'greedy'?",
    ),
    "misspelt key of a prompt": (
        "token_ids",
        "token_id",
        "case.toml: prompt 1",
        "the keys name, text, token_ids, length, padding, pad_token, prefill, decode, greedy",
        "'token_id'",
        "did you mean 'token_ids'?",
    ),
    "a syntax error": (
        "greedy = 2",
        "greedy = = 2",
        "case.toml",
        "TOML",
        "a syntax error: *line 6*",
        "mend that line; texts stand in quotes, several lines in three of them",
    ),
    "a number of 5000 digits": (
        "greedy = 2",
        "greedy = " + "9" * 5000,
        "case.toml",
        "TOML",
        "a syntax error: Exceeds the limit * for integer string conversion*",
        "mend that line; texts stand in quotes, several lines in three of them",
    ),
    "lists nested deep": (
        "greedy = 2",
        "greedy = " + "[" * 20_000,
        "case.toml",
        "TOML",
        "a syntax error: maximum recursion depth exceeded*",
        "mend that line; texts stand in quotes, several lines in three of them",
    ),
    "a version to come": (
        "version = 1",
        "version = 2",
        "case.toml",
        "version = 1",
        "version = 2",
        "upgrade: pip install -U logits-parity",
    ),
}


def agrees(said: tuple[str, ...], row: tuple[str, ...]) -> bool:
    return all(fnmatch.fnmatchcase(s, p) for s, p in zip(said, row, strict=True))


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_a_command_that_cannot_be_followed_is_refused(
    desk: Any, row: tuple[tuple[str, ...], str, str, str, str]
) -> None:
    arguments, *expected = row
    said = desk.refuses(*arguments)
    assert agrees(said, tuple(expected)), said


@pytest.mark.parametrize("row", CASES.values(), ids=list(CASES))
def test_a_case_file_that_cannot_be_followed_is_refused(
    desk: Any, row: tuple[str, str, str, str, str, str]
) -> None:
    old, new, *expected = row
    desk.case.write_text(desk.case.read_text().replace(old, new))
    said = desk.refuses()
    assert agrees(said, tuple(expected)), said


@pytest.mark.parametrize(
    ("token_ids", "found"),
    [([[1, 101]], "101"), ([[1, 1 << 70]], "a number beyond 64 bits"), ([[1], [2, 3]], "*1, 2")],
)
def test_token_ids_are_refused_from_python(
    tiny: Callable[..., Path], load_model: Callable[..., Any], token_ids: Any, found: str
) -> None:
    with pytest.raises(ParityError) as caught:
        check(HFEngine(load_model(tiny())), checkpoint=tiny(), token_ids=token_ids)
    assert fnmatch.fnmatchcase(caught.value.found, found)


@pytest.fixture
def gguf_case(desk: Any) -> Any:
    (desk.folder / "model.gguf").write_bytes(b"GGUF" + bytes(100))
    desk.case.write_text(desk.case.read_text().replace("./model", "model.gguf"))
    return desk


@pytest.mark.parametrize("cache", ["case.toml", "case.toml/below"])
def test_a_cache_below_a_file_is_refused(gguf_case: Any, cache: str) -> None:
    said = gguf_case.refuses(LOGITS_PARITY_CACHE=cache)
    assert agrees(said, (f"{cache}/gguf", KEPT, "NotADirectoryError: Not a directory", ROOM)), said


def test_a_user_without_a_home_folder_is_told_what_to_set(gguf_case: Any) -> None:
    said = gguf_case.refuses(LOGITS_PARITY_CACHE="~nosuchuser/cache")
    assert agrees(
        said,
        (
            "cache folder",
            "a home folder, or the name of another folder in LOGITS_PARITY_CACHE",
            "no home folder for ~nosuchuser/cache",
            "set LOGITS_PARITY_CACHE to a folder that can be written",
        ),
    ), said


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (errno.EACCES, "PermissionError: Permission denied"),
        (errno.ENOSPC, "OSError: No space left on device"),
        (errno.EROFS, "OSError: Read-only file system"),
    ],
)
def test_a_cache_that_cannot_be_written_is_refused(
    gguf_case: Any, monkeypatch: pytest.MonkeyPatch, code: int, found: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    said = gguf_case.refuses()
    assert agrees(said, (f"{gguf_case.folder}/cache/gguf", KEPT, found, ROOM)), said


@pytest.mark.parametrize("method", ["is_file", "iterdir"])
def test_a_closed_folder_is_refused(
    desk: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Whoever runs the tests may be allowed to open every folder, so this one only says not."""
    real = getattr(Path, method)

    def closed(self: Path) -> Any:
        if "model" in self.parts:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real(self)

    monkeypatch.setattr(Path, method, closed)
    said = desk.refuses()
    expected = ("model", "a readable directory", "permission denied", "check its permissions")
    assert agrees(said, expected), said


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with no room left, where one can be mounted."""
    folder = tmp_path / "full"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    try:
        mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("mounting is not permitted here; the same is tested with a stand-in everywhere")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_earlier_reports(desk: Any, full_disk: Path) -> None:
    for name in ("case.html", "case.json"):
        (full_disk / name).write_text(f"the earlier {name}")
    (full_disk / "ballast").write_bytes(bytes(48 * 1024))
    said = desk.refuses(*RUN, "--report-dir", "full")
    room = "make room there, or choose another folder"
    assert agrees(said, ("full/case.*", WRITTEN, "no space left on device", room)), said
    assert sorted(p.name for p in full_disk.iterdir()) == ["ballast", "case.html", "case.json"]
    assert (full_disk / "case.html").read_text() == "the earlier case.html"
    assert (full_disk / "case.json").read_text() == "the earlier case.json"


def test_a_full_disk_ends_a_conversion(desk: Any, full_disk: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(desk.folder / "model.gguf", "llama")
    for add, value in (
        (writer.add_block_count, 1),
        (writer.add_context_length, 64),
        (writer.add_embedding_length, 64),
        (writer.add_feed_forward_length, 64),
        (writer.add_head_count, 2),
        (writer.add_layer_norm_rms_eps, 1e-6),
    ):
        add(value)
    square = [f"attn_{n}" for n in ("q", "k", "v", "output")] + ["ffn_gate", "ffn_up", "ffn_down"]
    names = ["token_embd", "output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"]
    for name in [*names, *(f"blk.0.{n}" for n in square)]:
        shape = (64,) if name.endswith("norm") else (64, 64)
        writer.add_tensor(f"{name}.weight", np.ones(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    desk.case.write_text(desk.case.read_text().replace("./model", "model.gguf"))
    said = desk.refuses(LOGITS_PARITY_CACHE="full")
    assert agrees(said, ("full/gguf", KEPT, "OSError: No space left on device", ROOM)), said
    assert not list(full_disk.glob("gguf/*-v*/"))  # nothing half written is kept


@pytest.mark.parametrize("number", [1, 2])
def test_neither_report_is_replaced_when_one_cannot_be_written(
    sample: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    for name in ("x.html", "x.json"):
        (tmp_path / name).write_text("earlier")
    calls = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == number:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="found no space left on device: make room there"):
        write_report(sample(), tmp_path, stem="x")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {
        "x.html": "earlier",
        "x.json": "earlier",
    }


def test_files_are_replaced_together_can_be_seen_to_work(tmp_path: Path) -> None:
    write_together({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"1", "b": b"2"}


def command(*arguments: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    parts = [sys.executable, "-c", "from harness.start import main; main()", *arguments]
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(parts, text=True, check=False, cwd=cwd, env=environment, **options)


def test_the_real_command_refuses_in_words_alone(desk: Any) -> None:
    (desk.model / "model.safetensors").write_bytes(b"")
    ran = command("run", "case.toml", cwd=desk.folder, capture_output=True)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr == (
        "Error: model/model.safetensors\n"
        "  expected: at least 8 bytes\n"
        "  found:    0\n"
        "  advice:   the file is damaged or its download stopped early; fetch it again\n"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [("--help",), ("report", "saved.json")])
def test_standard_output_without_room_is_told(
    desk: Any, sample: Callable[..., Any], arguments: tuple[str, ...]
) -> None:
    from harness.result import to_json

    (desk.folder / "saved.json").write_bytes(to_json(sample()))
    with open("/dev/full", "w") as full:
        ran = command(*arguments, cwd=desk.folder, stdout=full, stderr=subprocess.PIPE)
    assert ran.returncode == 2
    assert "found:    no space left on device" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr


def test_weights_that_are_changed_and_sound_are_another_model(desk: Any) -> None:
    """What no reader can see: a flipped bit that leaves a healthy number. The fingerprint can."""
    from harness.checkpoint import load_checkpoint

    path = desk.model / "model.safetensors"
    before = load_checkpoint(desk.model).fingerprint
    content = bytearray(path.read_bytes())
    content[-2] ^= 1  # of the lowest bits of a float32's mantissa
    path.write_bytes(content)
    assert load_checkpoint(desk.model).fingerprint != before
    assert json.loads((desk.model / "config.json").read_text())["model_type"] == "llama"
    with pytest.raises(AssertionError, match="PASS: The engines agree"):
        desk.refuses()
