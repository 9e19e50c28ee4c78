"""Configs, case files, results and other documents at random: read, or refused with a ParityError.

Never another exception, nor a hang. Whatever was found once stays as an example. `make fuzz` draws
many more, and new ones each time.
"""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from rich.console import Console

from harness.case_file import load_case, parse_case
from harness.checkpoint import Checkpoint, encode
from harness.checkpoint.from_gguf.conversion_record import (
    FILE_NAME,
    ConversionRecord,
    read_record,
    write_record,
)
from harness.checkpoint.json_files import parse_json_object
from harness.errors import CaseError, CheckpointError, ParityError, UsageError
from harness.report.html import to_html
from harness.report.text import View
from harness.result import from_json, to_json
from harness.subject import refusals_as_errors
from references import families
from references.model import Model
from references.step import Compute, Weight

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 40)
    | st.sampled_from([1 << 31, 1 << 63, 10**400, 10**7])
    | st.floats()
    | st.sampled_from([0.0, 1.0, 0.5, 1e-300, 1e300, math.inf, math.nan])
    | st.text(max_size=4)
    | st.sampled_from(["default", "linear", "dynamic", "llama3", "yarn", "full_attention"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@st.composite
def edited(draw: st.DrawFn, original: bytes) -> bytes:
    """One to three pieces of a document removed, put in, doubled or changed."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 8) | st.integers(0, len(data)))
        piece = draw(
            st.binary(max_size=4)
            | st.sampled_from(
                [b'"', b"{", b"[", b"1e999", b"NaN", b"9" * 5000, b"\\ud800", b"[" * 9999]
            )
            | st.just(bytes(data[at : at + length]))
        )
        data[at : at + draw(st.sampled_from([0, 1, length]))] = piece
    return bytes(data)


@st.composite
def altered(draw: st.DrawFn, document: Any) -> Any:
    """A document of which one to three values are removed or replaced."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        parent = document
        while True:
            assume(parent)
            keys = sorted(parent) if isinstance(parent, dict) else range(len(parent))
            key = draw(st.sampled_from(list(keys)))
            if not isinstance(parent[key], dict | list) or not parent[key] or draw(st.booleans()):
                break
            parent = parent[key]
        if draw(st.booleans()):
            del parent[key]
        else:
            parent[key] = draw(_like(parent[key]) if draw(st.booleans()) else JSON)
    return document


def _like(value: Any) -> st.SearchStrategy[Any]:
    """Other values of the same type, so that not every change is refused for its type."""
    for kind, other in ((bool, st.booleans()), (int, st.integers(-2, 1 << 40))):
        if isinstance(value, kind):
            return other
    if isinstance(value, float):
        return st.floats(allow_nan=False, allow_infinity=False)
    return st.text(max_size=12) if isinstance(value, str) else JSON


SIZES = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
SIZES |= {"max_position_embeddings": 16}
ROPE = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1000.0, "beta_fast": 4.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": SIZES | {"rope_scaling": ROPE, "rms_norm_eps": 1e-5, "bos_token_id": 1},
    "qwen3": SIZES | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "gemma3_text": SIZES | {"sliding_window": 3, "query_pre_attn_scalar": 6},
    "qwen3_moe": SIZES | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 5},
    "stablelm": SIZES | {"head_dim": 2, "partial_rotary_factor": 1.0, "qk_layernorm": True},
    "gpt_oss": SIZES | {"num_local_experts": 3, "num_experts_per_tok": 2, "rope_scaling": ROPE},
    "granite": SIZES | {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "mlp_bias": False},
    "gpt2": {"vocab_size": 11, "n_embd": 8, "n_head": 2, "n_layer": 2, "n_positions": 16},
}
CONFIGS = {family: {"model_type": family} | config for family, config in CONFIGS.items()}
KEYS = sorted({key for config in CONFIGS.values() for key in config} | {"rope_parameters"})


def run_or_refuse(config: dict[str, Any]) -> bool:
    """Whether a model of this config runs; it is refused when it is made or not at all."""
    try:
        with refusals_as_errors():
            shapes = Model(config, {}).shapes
    except CheckpointError:
        return False
    if sum(math.prod(shape) for shape in shapes.values()) > 100_000 or len(shapes) > 200:
        return True  # accepted; no checkpoint of such a size is made here
    draw = np.random.default_rng(0)
    arrays = {name: draw.normal(size=shape) for name, shape in shapes.items()}

    def lift(weight: Weight) -> Any:
        return weight.array

    model = Model(config, arrays)
    length = min(4, model.config.max_positions or 4)
    with np.errstate(all="ignore"):
        logits, _ = model.prefill(Compute(lift, np.dtype(np.float64)), np.zeros((1, length), int))
    assert logits.shape == (1, length, model.config.vocab)
    return True


@pytest.mark.parametrize("family", families.names())
def test_every_family_is_fuzzed_from_a_config_that_runs(family: str) -> None:
    assert run_or_refuse(CONFIGS[family])


@given(
    config=st.sampled_from(sorted(CONFIGS)).flatmap(lambda family: altered(CONFIGS[family])),
    more=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=1),
)
@example(CONFIGS["llama"], {"num_hidden_layers": 10**7})
@example(CONFIGS["llama"], {"rms_norm_eps": 10**400})
@example(CONFIGS["llama"], {"rope_scaling": ROPE | {"rope_theta": 1.0}})
def test_law_a_config_runs_or_is_refused(config: dict[str, Any], more: dict[str, Any]) -> None:
    run_or_refuse(config | more)


@given(raw=edited(json.dumps(CONFIGS["llama"]).encode()))
def test_law_the_bytes_of_a_config_run_or_are_refused(raw: bytes) -> None:
    try:
        config = parse_json_object(raw, "config.json")
    except CheckpointError:
        return
    run_or_refuse(config)


@given(raw=st.binary(max_size=40) | edited(b'{"a": [1, 2.5, {"b": null}], "c": "\\u00e9"}'))
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b'{"a": ' + b"9" * 5000 + b"}")
def test_law_json_is_read_as_the_library_reads_it(raw: bytes) -> None:
    try:
        value = parse_json_object(raw, "x.json")
    except CheckpointError:
        return
    assert repr(value) == repr(json.loads(raw))  # NaN is not equal to itself


CASE = b"""\
format = "logits-parity/case"
version = 1
name = "a"
model = "owner/name"
engines = ["hf:eager", "reference"]
dtype = "float32"
threads = 2
greedy = 2
decode = 1
[[prompts]]
name = "p"
token_ids = [[1, 2], [3, 4]]
length = 2
[[prompts]]
text = "hello"
"""


@given(raw=edited(CASE))
@example(b"x = " + b"[" * 100_000)
@example(b"x = " + b"9" * 5000)
@example(CASE.replace(b"[1, 2]", b"[1, 99999999999999999999]"))
@example(CASE.replace(b"owner/name", b"~nosuchuser/name"))
@example(CASE.replace(b"owner/name", b"x" * 5000))
@example(CASE.replace(b"owner/name", b"a\\u0000b"))
def test_law_a_case_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    path.write_bytes(raw)
    try:
        case = load_case(path)
    except CaseError:
        return
    for prompt in case.prompts:
        assert (prompt.text is None) != (prompt.token_ids is None)
        np.array(prompt.token_ids or (), dtype=np.int64)


TOML = st.one_of(
    st.booleans().map(lambda b: str(b).lower()),
    st.integers().map(str),
    st.sampled_from(
        ["nan", "-inf", "1e400", "1979-05-27", "07:32:00", "{}", "[]", "[[]]", "'''a'''"]
    ),
    st.text(max_size=5).map(json.dumps),
    st.lists(st.integers(-2, 9).map(str), max_size=3).map(lambda xs: f"[{', '.join(xs)}]"),
)


@given(
    key=st.sampled_from(
        ["name", "model", "engines", "dtype", "threads", "seed", "greedy", "decode"]
    )
    | st.sampled_from(["install", "prompts", "format", "version", "text", "token_ids", "length"]),
    value=TOML,
    prompt=st.booleans(),
)
def test_law_a_case_of_any_values_is_read_or_refused(key: str, value: str, *, prompt: bool) -> None:
    lines = CASE.decode().splitlines()
    lines = [line for line in lines if not line.startswith(f"{key} =")]
    lines.insert(len(lines) if prompt else 2, f"{key} = {value}")
    try:
        parse_case("\n".join(lines), name="c")
    except CaseError:
        return


@pytest.fixture(scope="module")
def result(sample: Callable[..., Any]) -> bytes:
    return to_json(sample(layers=1, chunks=1, engines=("hf:eager",)))


def render_or_refuse(raw: bytes) -> None:
    try:
        result = from_json(raw, where="result.json")
    except UsageError:
        return
    assert "</html>" in to_html(result)
    with open("/dev/null", "w") as nowhere:
        Console(file=nowhere, width=80).print(View(result))


@given(data=st.data())
def test_law_the_bytes_of_a_result_are_rendered_or_refused(result: bytes, data: Any) -> None:
    render_or_refuse(data.draw(edited(result)))


@given(data=st.data())
def test_law_a_result_of_any_values_is_rendered_or_refused(result: bytes, data: Any) -> None:
    document = data.draw(altered(json.loads(result)))
    render_or_refuse(json.dumps(document).encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("raw", [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000])
def test_a_result_nested_deep_is_refused(raw: bytes) -> None:
    with pytest.raises(UsageError, match="expected a JSON document"):
        from_json(raw)


TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
    "post_processor": None,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
}


@given(document=altered(TOKENIZER))
def test_law_a_tokenizer_is_used_or_refused(
    tmp_path_factory: pytest.TempPathFactory, document: Any
) -> None:
    path = tmp_path_factory.getbasetemp()
    (path / "tokenizer.json").write_text(json.dumps(document))
    array = np.zeros(1)
    array.flags.writeable = False
    checkpoint = Checkpoint(path=path, config={}, tensors={"w": array}, origin="x")
    try:
        ids = encode(checkpoint, "abba")
    except ParityError:
        return
    assert all(isinstance(token, int) for token in ids)


@given(data=st.data())
def test_law_a_conversion_record_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    folder: Path = tmp_path_factory.getbasetemp()
    record = ConversionRecord("m.gguf", "0" * 64, "llama", {"F32": 3}, None)
    write_record(folder, record)
    (folder / FILE_NAME).write_bytes(data.draw(edited((folder / FILE_NAME).read_bytes())))
    try:
        found = read_record(folder)
    except CheckpointError:
        return
    assert found is not None
