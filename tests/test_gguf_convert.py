import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from harness.checkpoint import Checkpoint, load_checkpoint
from harness.errors import CheckpointError

Array = npt.NDArray[np.float32]
State = dict[str, Array]

# All different, more than one kv head, and a head size that is not C / H.
L, V, C, F, H, K, D = 2, 11, 24, 20, 6, 2, 8

GGUF_OF_HF = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def state_dict(*, biases: tuple[str, ...] = (), tied: bool = False, qk_norm: bool = False) -> State:
    rng = np.random.default_rng(5)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (V, C)}
    shapes["model.norm.weight"] = (C,)
    if not tied:
        shapes["lm_head.weight"] = (V, C)
    for n in range(L):
        at = f"model.layers.{n}"
        linear = {
            "self_attn.q_proj": (H * D, C),
            "self_attn.k_proj": (K * D, C),
            "self_attn.v_proj": (K * D, C),
            "self_attn.o_proj": (C, H * D),
            "mlp.gate_proj": (F, C),
            "mlp.up_proj": (F, C),
            "mlp.down_proj": (C, F),
        }
        for name, shape in linear.items():
            shapes[f"{at}.{name}.weight"] = shape
            if name.startswith(biases):
                shapes[f"{at}.{name}.bias"] = shape[:1]
        shapes[f"{at}.input_layernorm.weight"] = shapes[f"{at}.post_attention_layernorm.weight"] = (
            C,
        )
        if qk_norm:
            shapes[f"{at}.self_attn.q_norm.weight"] = shapes[f"{at}.self_attn.k_norm.weight"] = (D,)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def interleave(rows: Array, heads: int) -> Array:
    """Row i of a head's first half goes to 2i, of its second half to 2i + 1."""
    result = np.empty_like(rows)
    for head in range(heads):
        for i in range(D // 2):
            result[head * D + 2 * i] = rows[head * D + i]
            result[head * D + 2 * i + 1] = rows[head * D + D // 2 + i]
    return result


def to_gguf(state: State, *, permuted: bool) -> State:
    result = {}
    for name, array in state.items():
        if name in OUTER:
            result[OUTER[name]] = array
            continue
        _, _, n, middle = name.split(".", 3)
        module, kind = middle.rsplit(".", 1)
        if permuted and module.endswith(("q_proj", "k_proj")):
            array = interleave(array, H if module.endswith("q_proj") else K)
        result[f"blk.{n}.{GGUF_OF_HF[module]}.{kind}"] = array
    return result


def facts(arch: str) -> dict[str, Any]:
    return {
        f"{arch}.block_count": L,
        f"{arch}.context_length": 128,
        f"{arch}.embedding_length": C,
        f"{arch}.feed_forward_length": F,
        f"{arch}.attention.head_count": H,
        f"{arch}.attention.head_count_kv": K,
        f"{arch}.attention.key_length": D,
        f"{arch}.attention.value_length": D,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 500000.0,
        f"{arch}.rope.dimension_count": D,
        f"{arch}.vocab_size": V,
        "general.file_type": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


@dataclass
class Draft:
    """A GGUF file before it is written, for a test to alter."""

    arch: str
    tensors: State
    facts: dict[str, Any]
    types: dict[str, gguf.GGMLQuantizationType] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.arch)
        for key, value in self.facts.items():
            add: Callable[[str, Any], None] = {
                bool: writer.add_bool,
                int: writer.add_uint32,
                float: writer.add_float32,
                str: writer.add_string,
                list: writer.add_array,
            }[type(value)]
            add(key, value)
        for name, array in self.tensors.items():
            kind = self.types.get(name)
            data = array if kind is None else gguf.quants.quantize(array, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def llama(state: State | None = None) -> Draft:
    tensors = to_gguf(state or state_dict(), permuted=True)
    return Draft("llama", tensors, facts("llama"))


def qwen3(state: State | None = None) -> Draft:
    tensors = to_gguf(state or state_dict(qk_norm=True), permuted=False)
    return Draft("qwen3", tensors, facts("qwen3"))


def load(draft: Draft, tmp_path: Path) -> Checkpoint:
    return load_checkpoint(draft.write(tmp_path / "m.gguf"), cache_dir=tmp_path / "cache")


def assert_same(checkpoint: Checkpoint, state: State) -> None:
    assert set(checkpoint.tensors) == set(state)
    for name, array in state.items():
        np.testing.assert_array_equal(checkpoint.tensors[name], array, err_msg=name)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("biases", [(), ("self_attn",), ("mlp",), ("self_attn", "mlp")])
def test_llama_round_trip_is_exact(tmp_path: Path, *, tied: bool, biases: tuple[str, ...]) -> None:
    state = state_dict(biases=biases, tied=tied)
    checkpoint = load(llama(state), tmp_path)
    assert_same(checkpoint, state)
    config = checkpoint.config
    assert config["tie_word_embeddings"] is tied
    assert config["attention_bias"] is ("self_attn" in biases)
    assert config["mlp_bias"] is ("mlp" in biases)


def test_llama_round_trip_test_can_fail(tmp_path: Path) -> None:
    state = state_dict()
    draft = llama(state)
    draft.tensors |= to_gguf({k: v for k, v in state.items() if "k_proj" in k}, permuted=False)
    checkpoint = load(draft, tmp_path)
    with pytest.raises(AssertionError, match="k_proj"):
        assert_same(checkpoint, state)


@pytest.mark.parametrize("biases", [(), ("self_attn",)])
def test_qwen3_round_trip_is_exact(tmp_path: Path, biases: tuple[str, ...]) -> None:
    state = state_dict(biases=biases, qk_norm=True)
    checkpoint = load(qwen3(state), tmp_path)
    assert_same(checkpoint, state)
    assert checkpoint.config["architectures"] == ["Qwen3ForCausalLM"]
    assert checkpoint.config["head_dim"] == D


def test_llama_config_is_complete_and_in_decimals(tmp_path: Path) -> None:
    assert dict(load(llama(), tmp_path).config) == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": C,
        "intermediate_size": F,
        "num_hidden_layers": L,
        "num_attention_heads": H,
        "num_key_value_heads": K,
        "head_dim": D,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "vocab_size": V,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }


def test_llama_defaults_are_those_of_the_format(tmp_path: Path) -> None:
    draft = llama()
    for key in ("rope.freq_base", "vocab_size", "attention.value_length"):
        del draft.facts[f"llama.{key}"]
    config = load(draft, tmp_path).config
    assert config["rope_theta"] == 10000.0
    assert config["vocab_size"] == V


@pytest.mark.parametrize("draft", [llama, qwen3])
def test_converted_directory_runs_in_transformers(
    tmp_path: Path, draft: Callable[[], Draft]
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    checkpoint = load(draft(), tmp_path)
    model = AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=torch.float32)
    assert {n for n, _ in model.named_parameters()} == set(checkpoint.tensors)
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(parameter.detach().numpy(), checkpoint.tensors[name])
    assert model.config.rope_parameters["rope_theta"] == 500000.0
    assert torch.isfinite(model(torch.tensor([[1, 4, 9]])).logits).all()


def test_quantised_tensors_become_what_they_stand_for(tmp_path: Path) -> None:
    draft = llama()
    wide = np.linspace(-2, 3, V * 32, dtype=np.float32).reshape(V, 32)
    draft.facts |= {"llama.embedding_length": 32}
    for name, array in draft.tensors.items():
        grown = tuple(32 if size == C else size for size in array.shape)
        draft.tensors[name] = np.resize(array, grown).astype(np.float32)
    draft.tensors["token_embd.weight"] = wide
    draft.types["token_embd.weight"] = gguf.GGMLQuantizationType.Q8_0
    embedding = load(draft, tmp_path).tensors["model.embed_tokens.weight"]
    # Q8_0: blocks of 32, a float16 scale of max / 127, so half a step is the largest error.
    assert embedding.dtype == np.float32
    assert 0 < np.abs(embedding - wide).max() <= 3.0 / 127 / 2 * 1.01


def change_facts(**changes: Any) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        for key, value in changes.items():
            name = key.replace("__", ".")
            if value is None:
                del draft.facts[name]
            else:
                draft.facts[name] = value

    return apply


def change_tensors(**changes: Any) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        for key, value in changes.items():
            name = key.replace("__", ".")
            if value is None:
                del draft.tensors[name]
            else:
                draft.tensors[name] = np.ones(value, dtype=np.float32)

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            change_tensors(blk__0__attn_gate__weight=(3,)),
            r"nobody \(1\): blk\.0\.attn_gate\.weight",
        ),
        (change_tensors(blk__2__ffn_up__weight=(F, C)), r"nobody \(1\): blk\.2\.ffn_up\.weight"),
        (change_tensors(blk__1__ffn_up__weight=None), r"missing \(1\): blk\.1\.ffn_up\.weight"),
        (change_tensors(blk__1__ffn_up__weight=(F, 3)), r"misshapen \(1\): blk\.1\.ffn_up"),
        (
            change_tensors(blk__1__attn_q__bias=(H * D,)),
            r"missing \(7\): blk\.0\.attn_q\.bias, blk\.\{0-1\}\.attn_k\.bias \(2\)",
        ),
        (change_tensors(token_embd__weight=(V + 1, C)), r"misshapen \(1\): token_embd"),
        (change_facts(llama__block_count=1), r"nobody \(9\): "),
        (change_facts(llama__block_count=10**9), "block_count 1000000000 and 21 tensors"),
        (
            change_facts(llama__embedding_length=None, llama__attention__head_count=None),
            r"missing \(2\): llama\.attention\.head_count, llama\.embedding_length",
        ),
        (
            change_facts(llama__logit_scale=2.0),
            r"unknown to the converter \(1\): llama\.logit_scale",
        ),
        (
            change_facts(llama__attention__causal=False),
            r"llama\.attention\.causal = False, not True",
        ),
        (change_facts(llama__expert_count=8), r"llama\.expert_count = 8, not 0"),
        (change_facts(llama__feed_forward_length=[F, F]), r"= \[20, 20\], not one int"),
        (change_facts(llama__rope__dimension_count=4), "dimension_count equal to the head size 8"),
        (change_facts(llama__attention__value_length=4), "value_length equal to the head size 8"),
        (change_facts(llama__attention__head_count_kv=4), "6 heads, 4 kv heads, head size 8"),
        (change_facts(llama__attention__head_count_kv=0), "6 heads, 0 kv heads, head size 8"),
        (change_facts(tokenizer__ggml__eos_token_id=V), "eos_token_id = 11: the metadata"),
        (change_facts(general__type="adapter"), "general.type model, found 'adapter'"),
        (change_facts(split__count=3), "one of 3 parts: merge the parts"),
    ],
)
def test_llama_refuses_what_it_cannot_honour(
    tmp_path: Path, change: Callable[[Draft], None], message: str
) -> None:
    draft = llama()
    change(draft)
    with pytest.raises(CheckpointError, match=message):
        load(draft, tmp_path)
    assert not list((tmp_path / "cache" / "gguf").glob("*-v*/"))


def test_harmless_metadata_is_accepted(tmp_path: Path) -> None:
    draft = llama()
    draft.facts |= {"llama.rope.scaling.finetuned": True, "llama.expert_count": 0}
    draft.facts |= {"general.name": "x", "quantize.imatrix.file": "y"}
    assert_same(load(draft, tmp_path), state_dict())


def test_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    draft = Draft("mamba", llama().tensors, facts("mamba"))
    with pytest.raises(CheckpointError, match="among gemma3, llama, qwen3, found 'mamba'"):
        load(draft, tmp_path)


def test_qwen3_needs_its_norms_and_its_head_size(tmp_path: Path) -> None:
    draft = qwen3(state_dict())
    with pytest.raises(CheckpointError, match=r"missing \(4\): .*attn_q_norm.*attn_k_norm"):
        load(draft, tmp_path)
    del draft.facts["qwen3.attention.key_length"]
    with pytest.raises(CheckpointError, match=r"missing \(1\): qwen3\.attention\.key_length"):
        load(draft, tmp_path)


def test_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    content = llama().write(tmp_path / "m.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [0, 3, 4, 8, 20, *range(24, len(content) - 32, len(content) // 40)]:
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=f"complete GGUF file, found {size} bytes"):
            load_checkpoint(path, cache_dir=tmp_path / "cache")


def test_damaged_header_is_refused(tmp_path: Path) -> None:
    content = llama().write(tmp_path / "m.gguf").read_bytes()
    path = tmp_path / "damaged.gguf"
    for at, value in ((4, 99), (8, 1 << 60), (16, 1 << 60), (24, 1 << 62)):
        damaged = bytearray(content)
        width = "<I" if at == 4 else "<Q"
        damaged[at : at + struct.calcsize(width)] = struct.pack(width, value)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="a complete GGUF file"):
            load_checkpoint(path, cache_dir=tmp_path / "cache")
