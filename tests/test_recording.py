"""Recording from outside: a process in an environment, its record, and all that can go wrong."""

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import UsageError
from harness.gate.recording import FACTS, TAPS, read_record, record, record_all
from harness.gate.records import Make, Pass, Record, Request

PYTHON = Path(sys.executable)
IDS = ((5, 9, 11, 3, 7), (1, 2, 3, 4, 6))
CONFIG = {
    "vocab_size": 31,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "eos_token_id": None,
}
PASSES = (
    Pass("broken", IDS, forward={"inputs_embeds": [[[0.5] * 32] * 5] * 2}),
    Pass("prompt", IDS, generate=3),
    Pass("cached", IDS, chunks=(3, 1, 1), cache=True, generate=3),
    Pass("eager", IDS, attention="eager", attention_mask=((0, 1, 1, 1, 1), (1,) * 5)),
    Pass("unknown", IDS, attention="sdpa_of_tomorrow"),
    Pass("logits alone", IDS, taps=False),
)
IN_A_LAYER = [
    ".input_layernorm",
    ".self_attn.q_proj",
    ".self_attn.k_proj",
    ".self_attn.v_proj",
    ".self_attn:query",
    ".self_attn:key",
    ".self_attn:value",
    ".self_attn:mask",
    ".self_attn:context",
    ".self_attn.o_proj.in",
    ".self_attn.o_proj",
    ".self_attn",
    ".post_attention_layernorm.in",
    ".post_attention_layernorm",
    ".mlp.gate_proj",
    ".mlp.act_fn",
    ".mlp.up_proj",
    ".mlp.down_proj.in",
    ".mlp.down_proj",
    ".mlp",
]
REQUEST = Request(make=Make("LlamaConfig", CONFIG), passes=PASSES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = [tmp_path_factory.mktemp("records") / name for name in ("first", "second")]
    with ThreadPoolExecutor() as executor:
        list(executor.map(lambda folder: record(PYTHON, REQUEST, folder=folder), made))
    return made


@pytest.fixture(scope="module")
def made(folders: list[Path]) -> Record:
    return read_record(folders[0])


def tap(
    record: Record, name: str, tap: str, chunk: int = 0
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    found = [t for t in record.recorded_pass(name).taps if (t.tap, t.chunk) == (tap, chunk)]
    return record.array(found[0].key)


def test_two_records_of_one_request_have_equal_bytes(folders: list[Path]) -> None:
    for name in (FACTS, TAPS):
        first, second = ((folder / name).read_bytes() for folder in folders)
        assert first == second


def test_the_model_is_told(made: Record) -> None:
    facts = made.facts
    assert (facts.model_class, facts.config_class) == ("LlamaForCausalLM", "LlamaConfig")
    assert (facts.attention, facts.dtype) == ("sdpa", "float32")
    assert facts.config is not None
    assert facts.config["hidden_size"] == 32
    assert facts.tied == (("model.embed_tokens.weight", "lm_head.weight"),)
    assert ("model.layers.1.mlp.down_proj", "Linear") in [
        (each.path, each.class_name) for each in facts.modules
    ]
    digests = [each.digest for each in facts.parameters if each.shape == (32,)]
    assert len(digests) == len(set(digests)) == 5
    assert facts.machine is not None
    assert facts.machine.threads == 1
    assert {"python", "torch", "transformers", "numpy"} <= set(facts.versions)


def test_a_pass_that_fails_keeps_no_other_from_running(made: Record) -> None:
    failed = {each.name: each.failed for each in made.facts.passes if each.failed is not None}
    assert list(failed) == ["broken", "unknown"]
    assert failed["broken"] is not None
    assert (failed["broken"].stage, failed["broken"].type) == ("pass:broken", "ValueError")
    assert failed["unknown"] is not None
    assert "sdpa_of_tomorrow" in failed["unknown"].message
    assert "<packages>/transformers/models/llama" in failed["broken"].traceback
    assert "<recorder>/running.py" in failed["broken"].traceback
    assert made.facts.failed == made.facts.failures[0] == failed["broken"]
    assert [each.name for each in made.facts.passes] == [each.name for each in PASSES]


def test_taps_come_in_execution_order_with_names_of_their_own(made: Record) -> None:
    names = [each.tap for each in made.recorded_pass("prompt").taps]
    assert len(set(names)) == len(names)
    layer = "model.layers.1"
    start = names.index(f"{layer}.input_layernorm")
    end = start + len(IN_A_LAYER)
    assert [name.removeprefix(layer) for name in names[start:end]] == IN_A_LAYER
    assert names[end] == layer
    assert names[-2:] == ["lm_head", "logits"]


def test_equal_taps_share_an_array(made: Record) -> None:
    keys = {each.tap: each.key for each in made.recorded_pass("prompt").taps}
    assert keys["logits"] == keys["lm_head"] == "prompt/0/lm_head"
    assert keys["model.layers.0.self_attn"] == keys["model.layers.0.self_attn.o_proj"]


def test_the_cache_changes_nothing_but_rounding(made: Record) -> None:
    whole = tap(made, "prompt", "logits")
    parts = [tap(made, "cached", "logits", chunk) for chunk in range(3)]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=1e-4)
    assert made.recorded_pass("cached").cache_class == "DynamicCache"
    generated = made.recorded_pass("prompt").generated
    assert generated is not None
    assert [row[0] for row in generated] == whole[:, -1].argmax(-1).tolist()
    assert generated == made.recorded_pass("cached").generated
    assert 3 < np.abs(whole).max() < 20, "logits are of a size at which faults show"


def test_shapes_and_masks_of_attention(made: Record) -> None:
    at = "model.layers.0.self_attn"
    assert tap(made, "eager", f"{at}:query").shape == (2, 4, 5, 8)
    assert tap(made, "eager", f"{at}:key").shape == (2, 2, 5, 8)
    assert tap(made, "eager", f"{at}:probs").shape == (2, 4, 5, 5)
    mask = tap(made, "eager", f"{at}:mask")
    assert mask.shape == (2, 5, 5)
    assert mask.dtype == np.bool_
    assert np.array_equal(mask[1], np.tril(np.ones((5, 5), np.bool_)))
    assert not mask[0, 1:, 0].any()


def test_noise_is_the_size_of_rounding(made: Record) -> None:
    for each in made.recorded_pass("prompt").taps:
        if each.role != "mask":
            size = float(np.linalg.norm(made.array(each.key)))
            assert each.noise is not None
            assert each.noise <= 1e-5 * size, each.tap
    last = made.recorded_pass("prompt").taps[-1]
    assert last.noise is not None
    assert last.noise > 1e-8 * float(np.linalg.norm(made.array(last.key)))


def test_logits_at_pads_are_nobodys(made: Record) -> None:
    logits = tap(made, "eager", "logits")
    assert np.all(logits[0, 0] == 0)
    assert np.all(np.any(logits != 0, axis=-1)[[0, 1], 1:])
    assert np.any(logits[1, 0] != 0)


def test_a_pass_without_taps_keeps_the_logits(made: Record) -> None:
    assert [each.tap for each in made.recorded_pass("logits alone").taps] == ["logits"]
    assert np.array_equal(tap(made, "logits alone", "logits"), tap(made, "prompt", "logits"))


def test_a_saved_model_is_read_back_with_its_tokenizer_told(tmp_path: Path) -> None:
    saved = tmp_path / "model"
    made = record(PYTHON, replace(REQUEST, save_to=str(saved)), folder=tmp_path / "save")
    assert made.facts.failed is None
    assert (saved / "config.json").is_file()
    (saved / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    again = record(
        PYTHON,
        Request(model=str(saved), texts={"a": "a b"}, passes=PASSES[1:2], noise=False),
        folder=tmp_path / "again",
    )
    facts = again.facts
    assert facts.failed is None, facts.failed
    assert facts.parameters == made.facts.parameters
    assert facts.loading is not None
    assert facts.loading.missing == facts.loading.unexpected == ()
    assert facts.config_as_saved is not None
    assert facts.config_as_saved["hidden_size"] == 32
    assert facts.tokenizer is not None
    assert facts.tokenizer.ids == {"a": (1, 2)}
    assert {each.noise for each in again.facts.passes[0].taps} == {None}


TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"?": 0, "a": 1, "b": 2}, "unk_token": "?"},
}


# What goes wrong ----------------------------------------------------------------------------------


def interpreter(folder: Path, script: str) -> Path:
    """Something that is started in place of an interpreter: $5 is the request."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("script", "kind", "stage", "message"),
    [
        ("echo last words; kill -SEGV $$", "Crash", "start", "ended by signal SIGSEGV"),
        (
            "printf pass:a > stage; echo last words; kill -KILL $$",
            "Crash",
            "pass:a",
            "out of memory",
        ),
        ("echo last words >&2; exit 3", "Crash", "start", "exit code 3"),
        ("echo last words; printf load > stage; sleep 60", "Timeout", "load", "after 0.5 seconds"),
    ],
)
def test_a_process_that_dies_is_a_record(
    tmp_path: Path, script: str, kind: str, stage: str, message: str
) -> None:
    python = interpreter(tmp_path, script)
    failed = record(python, REQUEST, folder=tmp_path / "r", timeout=0.5).facts.failed
    assert failed is not None
    assert (failed.type, failed.stage) == (kind, stage)
    assert message in failed.message
    assert failed.traceback == "last words"


def test_an_interrupt_ends_the_other_process(tmp_path: Path) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    python = interpreter(tmp_path, "sleep 60 & echo $! > child; wait")
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            record(python, REQUEST, folder=tmp_path / "r")
    finally:
        signal.signal(signal.SIGALRM, before)
    child = int((tmp_path / "r" / "child").read_text())
    assert gone(child)


def gone(process: int) -> bool:
    """Whether a process has ended; one that nobody waited for counts."""
    try:
        state = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True
    return state.rpartition(")")[2].split()[0] == "Z"


def test_nothing_is_downloaded_and_nothing_of_ours_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    python = interpreter(tmp_path, "env > seen")
    record(python, replace(REQUEST, threads=3), folder=tmp_path / "r")
    seen = dict(
        line.partition("=")[::2] for line in (tmp_path / "r" / "seen").read_text().split("\n")
    )
    assert seen["HF_HUB_OFFLINE"] == seen["TRANSFORMERS_OFFLINE"] == "1"
    assert seen["OMP_NUM_THREADS"] == seen["MKL_NUM_THREADS"] == "3"
    assert "PYTHONPATH" not in seen
    assert Path(seen["PWD"]).samefile(tmp_path / "r")


def test_an_environment_without_transformers_fails_at_import(tmp_path: Path) -> None:
    python = interpreter(tmp_path, f'exec {vars(sys)["_base_executable"]} -S "$@"')
    failed = record(python, REQUEST, folder=tmp_path / "r").facts.failed
    assert failed is not None
    assert (failed.stage, failed.type) == ("import", "ModuleNotFoundError")


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="expected a Python interpreter that starts, found no such"
    ):
        record(tmp_path / "python", REQUEST, folder=tmp_path / "r")


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match="expected an empty folder"):
        record(PYTHON, REQUEST, folder=tmp_path)
    assert os.listdir(tmp_path) == ["mine"]


@pytest.mark.parametrize(
    "text", ['{"format": "logits-parity/record", "version": 2}', "{", "[]", None]
)
def test_an_unknown_record_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / FACTS).write_text(text)
    with pytest.raises(UsageError, match="expected logits-parity/record version 1, found"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token_ids": ((1, 2), (1,))}, "rows of token ids of one length"),
        ({"token_ids": ((),)}, "at least 1"),
        ({"chunks": (3, 1), "cache": True}, "5 together"),
        ({"chunks": (5, 0), "cache": True}, "5 together"),
        ({"chunks": (4, 1)}, "a cache for more than one chunk"),
    ],
)
def test_a_pass_that_cannot_be_run_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Pass(**({"name": "p", "token_ids": IDS} | options))


def test_a_request_names_one_model_and_each_pass_once() -> None:
    with pytest.raises(UsageError, match="found both"):
        replace(REQUEST, model="/m")
    with pytest.raises(UsageError, match="found neither"):
        replace(REQUEST, make=None)
    with pytest.raises(UsageError, match="passes of distinct names"):
        replace(REQUEST, passes=(PASSES[0], PASSES[0]))


def small(hidden: int) -> Request:
    passes = (Pass("prompt", IDS, generate=2),)
    return Request(make=Make("LlamaConfig", CONFIG | {"intermediate_size": hidden}), passes=passes)


def test_records_of_one_process_are_those_of_one_process_each(tmp_path: Path) -> None:
    requests = [small(24), small(16), small(24)]
    together = record_all(PYTHON, requests, folder=tmp_path / "together")
    record(PYTHON, requests[2], folder=tmp_path / "alone")
    assert [each.facts.failed for each in together] == [None] * 3
    for name in (FACTS, TAPS):
        alone = (tmp_path / "alone" / name).read_bytes()
        assert (tmp_path / "together" / "2" / name).read_bytes() == alone
        assert (tmp_path / "together" / "0" / name).read_bytes() == alone
        assert (tmp_path / "together" / "1" / name).read_bytes() != alone


def test_what_ends_a_process_of_several_is_recorded_by_itself(tmp_path: Path) -> None:
    """The interpreter stands for a library that crashes on the second of two models."""
    fake = tmp_path / "python"
    fake.write_text(
        f'#!/bin/sh\nif [ $# -gt 4 ]; then exec "{PYTHON}" "$1" "$2" "$3" "$4"; fi\n'
        f'exec "{PYTHON}" "$@"\n'
    )
    fake.chmod(0o755)
    found = record_all(fake, [small(24), small(16)], folder=tmp_path / "records")
    assert [each.facts.failed for each in found] == [None, None]
    assert (tmp_path / "records" / "1" / "alone" / FACTS).is_file()
    assert not (tmp_path / "records" / "0" / "alone").exists()


def test_records_of_one_process_have_one_number_of_threads(tmp_path: Path) -> None:
    requests = [small(24), replace(small(24), threads=2)]
    with pytest.raises(UsageError, match="expected one number of threads, found 1, 2"):
        record_all(PYTHON, requests, folder=tmp_path)
