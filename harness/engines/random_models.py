"""Small random transformers models whose configs are not vacuous.

More than one head and fewer kv heads than heads, windows shorter than the prompt, positions beyond
the trained length, weights so large that a fault shows, rows of the embedding of very different
size: a model in which half of the mistakes change nothing proves nothing.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from .hf_modules import MODULE_MAPS

#: Number of tokens of the vocabulary.
VOCAB = 131

_SPREAD = 1.5


def families() -> tuple[str, ...]:
    """Families that random models can be made of: those that the engine maps."""
    return tuple(sorted(set(_OPTIONS) & set(MODULE_MAPS)))


def attentions(config: Any) -> tuple[str, ...]:
    """Attention implementations that a model of a config runs with."""
    return attentions_of(config.model_type)


def attentions_of(family: str) -> tuple[str, ...]:
    """Attention implementations that models of a family run with."""
    model = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[transformers.CONFIG_MAPPING[family]]
    return ("eager", "sdpa") if getattr(model, "_supports_sdpa", True) else ("eager",)


@contextmanager
def hushed() -> Iterator[None]:
    """Keep transformers from warning of configs that are odd on purpose."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def save_random(path: Path, family: str, seed: int) -> None:
    """Write a random model directory.

    Args:
        path: Folder, made if it is not there.
        family: One of :func:`families`.
        seed: Everything follows from it.
    """
    draw = random.Random(f"{family} {seed}")
    config = draw_config(family, draw)
    save_model(path, family, config, draw.randrange(1 << 30))


def save_model(path: Path, family: str, config: Mapping[str, Any], seed: int) -> None:
    """Write a model directory with random weights.

    Args:
        path: Folder, made if it is not there.
        family: One of :func:`families`.
        config: Arguments of its config, as :func:`draw_config` makes them.
        seed: The weights follow from it.
    """
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.CONFIG_MAPPING[family](**config)
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _fill(name, parameter, generator)
    bar = transformers.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()
    try:
        model.save_pretrained(path)
    finally:
        if bar:
            transformers.logging.enable_progress_bar()


def _fill(name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
    if parameter.dim() == 1:
        low, high = (-0.5, 0.5) if name.endswith("bias") else (0.5, 1.5)
        parameter.uniform_(low, high, generator=generator)
        return
    parameter.normal_(0.0, _SPREAD / parameter.shape[-1] ** 0.5, generator=generator)
    if "embed" in name or "wte" in name:  # rows down to a hundredth: there epsilon shows
        sizes = torch.empty(parameter.shape[0], 1).uniform_(-2.0, 0.5, generator=generator)
        parameter.mul_(_SPREAD * 10.0**sizes)


def draw_config(family: str, draw: random.Random) -> dict[str, Any]:
    """Arguments of a random config of a family."""
    return _OPTIONS[family](draw)


def _sizes(draw: random.Random) -> dict[str, Any]:
    kv_heads, groups = draw.choice([(1, 4), (2, 2), (2, 3), (3, 2), (2, 4)])
    head_dim = draw.choice([8, 16, 24])
    return {
        "vocab_size": VOCAB,
        "hidden_size": kv_heads * groups * draw.choice([6, 8, 12]),
        "intermediate_size": draw.choice([56, 96, 112]),
        "num_hidden_layers": draw.choice([2, 3, 4]),
        "num_attention_heads": kv_heads * groups,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 512,
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-4]),
        "attention_bias": draw.random() < 0.3,
        "tie_word_embeddings": draw.random() < 0.4,
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _rope(draw: random.Random) -> dict[str, Any]:
    theta = draw.choice([1e3, 2e4, 1e5, 5e5])
    kind = draw.choice(["default", "default", "linear", "dynamic", "llama3", "yarn"])
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": theta}
    if kind != "default":
        rope["factor"] = draw.choice([2.0, 4.0, 8.0])
    if kind in ("llama3", "yarn"):
        rope["original_max_position_embeddings"] = draw.choice([32, 64])
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": draw.choice([2.0, 4.0])}
    if kind == "yarn" and draw.random() < 0.5:
        rope |= {"beta_fast": 20.0, "beta_slow": 2.5}
    return rope


def _with_rope(draw: random.Random) -> dict[str, Any]:
    rope = _rope(draw)
    longest = {"max_position_embeddings": 12} if rope["rope_type"] == "dynamic" else {}
    if rope["rope_type"] == "yarn":
        stretched = int(rope["factor"] * rope["original_max_position_embeddings"])
        longest = {"max_position_embeddings": stretched}
    return {"rope_parameters": rope} | longest


def _kinds(draw: random.Random, layers: int) -> list[str]:
    kinds = ["sliding_attention", "full_attention"] * layers
    start = draw.randrange(2)
    return kinds[start : start + layers]


def _llama(draw: random.Random) -> dict[str, Any]:
    return _sizes(draw) | _with_rope(draw) | {"mlp_bias": draw.random() < 0.3}


def _qwen3(draw: random.Random) -> dict[str, Any]:
    sizes = _sizes(draw)
    window = {
        "use_sliding_window": True,
        "sliding_window": draw.choice([3, 5, 8]),
        "max_window_layers": 0,
        "layer_types": _kinds(draw, sizes["num_hidden_layers"]),
    }
    return sizes | _with_rope(draw) | window


def _gemma3(draw: random.Random) -> dict[str, Any]:
    sizes = _sizes(draw)
    scaled: dict[str, Any] = {"rope_type": "default", "rope_theta": draw.choice([1e5, 1e6])}
    if draw.random() < 0.6:
        scaled |= {"rope_type": "linear", "factor": draw.choice([2.0, 8.0])}
    local = {"rope_type": "default", "rope_theta": draw.choice([500.0, 1e4])}
    return sizes | {
        "rope_parameters": {"full_attention": scaled, "sliding_attention": local},
        "query_pre_attn_scalar": draw.choice([10, 20, 40]),
        "sliding_window": draw.choice([3, 5, 8]),
        "layer_types": _kinds(draw, sizes["num_hidden_layers"]),
        "final_logit_softcapping": draw.choice([None, 3.0, 20.0]),
    }


def _gpt2(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([2, 4, 6])
    return {
        "vocab_size": VOCAB,
        "n_embd": heads * draw.choice([8, 16]),
        "n_inner": draw.choice([56, 96]),
        "n_layer": draw.choice([2, 3, 4]),
        "n_head": heads,
        "n_positions": 256,
        "layer_norm_epsilon": draw.choice([1e-6, 1e-5, 1e-4]),
        "activation_function": draw.choice(["gelu_new", "gelu_pytorch_tanh"]),
        "scale_attn_by_inverse_layer_idx": draw.random() < 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _granite(draw: random.Random) -> dict[str, Any]:
    return _llama(draw) | {
        "embedding_multiplier": draw.choice([2.0, 12.0]),
        "attention_multiplier": draw.choice([0.1, 0.4]),
        "residual_multiplier": draw.choice([0.22, 0.7]),
        "logits_scaling": draw.choice([4.0, 8.0]),
    }


def _expert_sizes(draw: random.Random) -> dict[str, Any]:
    """Sizes that the kernels of experts take: rows of a multiple of 16 bytes in half precision."""
    sizes = _sizes(draw)
    return sizes | {"hidden_size": 8 * sizes["num_attention_heads"]}


def _qwen3_moe(draw: random.Random) -> dict[str, Any]:
    experts = draw.choice([4, 8])
    return _expert_sizes(draw) | {
        "rope_parameters": {"rope_type": "default", "rope_theta": draw.choice([1e3, 1e5])},
        "moe_intermediate_size": draw.choice([24, 40]),
        "num_experts": experts,
        "num_experts_per_tok": draw.choice([2, 3]),
        "norm_topk_prob": draw.random() < 0.5,
    }


def _stablelm(draw: random.Random) -> dict[str, Any]:
    sizes = _sizes(draw)
    heads, head_dim = sizes["num_attention_heads"], 16
    for key in ("head_dim", "rms_norm_eps", "attention_bias"):
        sizes.pop(key)
    share = draw.choice([0.25, 0.5, 0.75])
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share}
    return sizes | {
        "hidden_size": heads * head_dim,
        "layer_norm_eps": draw.choice([1e-5, 1e-4]),
        "rope_parameters": rope,
        "use_qkv_bias": draw.random() < 0.5,
    }


def _gpt_oss(draw: random.Random) -> dict[str, Any]:
    sizes = _expert_sizes(draw)
    for key in ("rms_norm_eps", "attention_bias"):
        sizes.pop(key)
    rope = {"rope_type": "default", "rope_theta": draw.choice([1e3, 1e5])}
    return sizes | {
        "intermediate_size": draw.choice([24, 40]),
        "num_local_experts": draw.choice([4, 8]),
        "num_experts_per_tok": draw.choice([2, 3]),
        "sliding_window": draw.choice([3, 5, 8]),
        "layer_types": _kinds(draw, sizes["num_hidden_layers"]),
        "rope_parameters": rope,
        "tie_word_embeddings": False,
    }


_OPTIONS = {
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "gpt_oss": _gpt_oss,
    "granite": _granite,
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "stablelm": _stablelm,
}
