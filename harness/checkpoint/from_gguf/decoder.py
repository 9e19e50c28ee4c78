"""What Llama and its descendants have in common: keys, config entries and tensors."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ...errors import CheckpointError
from .architecture import Array, Rule, Sizes, Source

REQUIRED_KEYS: Mapping[str, type] = MappingProxyType(
    {
        "block_count": int,
        "context_length": int,
        "embedding_length": int,
        "feed_forward_length": int,
        "attention.head_count": int,
        "attention.layer_norm_rms_epsilon": float,
    }
)
OPTIONAL_KEYS: Mapping[str, type] = MappingProxyType(
    {
        "vocab_size": int,
        "attention.head_count_kv": int,
        "attention.key_length": int,
        "attention.value_length": int,
        "rope.dimension_count": int,
        "rope.scaling.type": str,
        "rope.scaling.factor": float,
        "rope.scaling.original_context_length": int,
        "rope.scaling.yarn_beta_fast": float,
        "rope.scaling.yarn_beta_slow": float,
    }
)
FIXED_KEYS: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "attention.causal": (True,),
        "expert_count": (0,),
        "expert_used_count": (0,),
        "rope.scaling.attn_factor": (1.0,),
        "rope.scaling.yarn_ext_factor": (1.0,),
        "rope.scaling.yarn_attn_factor": (1.0,),
        "rope.scaling.yarn_log_multiplier": (0.0,),
    }
)
HARMLESS_KEYS = frozenset({"rope.scaling.finetuned"})  # says how it was trained


def unpermute_rows(heads: str) -> Callable[[Array, Sizes], Array]:
    """Undo the row order of GGUF's interleaved RoPE.

    GGUF's Llama rotates neighbours (2i, 2i + 1) within a head; Hugging Face's rotates (i, i + D/2).

    Args:
        heads: The letter of the number of heads, `H` for q and `K` for k.

    Returns:
        A function of an array [heads * D, ...] and the sizes.
    """

    def unpermute(array: Array, sizes: Sizes) -> Array:
        count, rest = sizes[heads], array.shape[1:]
        pairs = array.reshape(count, sizes["D"] // 2, 2, *rest)
        return pairs.swapaxes(1, 2).reshape(array.shape)

    return unpermute


def decoder_rules(
    *,
    q_transform: Callable[[Array, Sizes], Array] | None = None,
    k_transform: Callable[[Array, Sizes], Array] | None = None,
) -> tuple[Rule, ...]:
    """Embedding, head, norms and attention of a Llama-like decoder; biases are group members."""
    layer, attention = "model.layers.{n}", "model.layers.{n}.self_attn"
    rules = [
        Rule("token_embd.weight", "model.embed_tokens.weight", ("V", "C")),
        Rule("output_norm.weight", "model.norm.weight", ("C",)),
        Rule("output.weight", "lm_head.weight", ("V", "C"), group="head"),
        Rule("blk.{n}.attn_norm.weight", f"{layer}.input_layernorm.weight", ("C",)),
        Rule("blk.{n}.ffn_norm.weight", f"{layer}.post_attention_layernorm.weight", ("C",)),
        Rule("blk.{n}.ffn_gate.weight", f"{layer}.mlp.gate_proj.weight", ("F", "C")),
        Rule("blk.{n}.ffn_up.weight", f"{layer}.mlp.up_proj.weight", ("F", "C")),
        Rule("blk.{n}.ffn_down.weight", f"{layer}.mlp.down_proj.weight", ("C", "F")),
    ]
    projections = (
        ("attn_q", "q_proj", "H*D", "C", q_transform),
        ("attn_k", "k_proj", "K*D", "C", k_transform),
        ("attn_v", "v_proj", "K*D", "C", None),
        ("attn_output", "o_proj", "C", "H*D", None),
    )
    for source, target, rows, columns, transform in projections:
        source, target = f"blk.{{n}}.{source}", f"{attention}.{target}"
        rules += [
            Rule(f"{source}.weight", f"{target}.weight", (rows, columns), transform=transform),
            Rule(f"{source}.bias", f"{target}.bias", (rows,), "attention_bias", transform),
        ]
    return tuple(rules)


def decoder_config(source: Source, *, rope_theta: float) -> dict[str, Any]:
    """Entries of config.json that all Llama-like decoders share.

    Raises:
        CheckpointError: If the head counts or sizes contradict each other.
    """
    facts, path = source.facts, source.file.path
    heads = facts["attention.head_count"]
    hidden = facts["embedding_length"]
    head_dim = facts.get("attention.key_length", facts.get("rope.dimension_count"))
    if head_dim is None:
        head_dim = hidden // heads if heads > 0 else 0
    for key in ("attention.value_length", "rope.dimension_count"):
        if facts.get(key, head_dim) != head_dim:
            raise CheckpointError(
                str(path),
                expected=f"{key} equal to the head size {head_dim}",
                found=str(facts[key]),
                advice="heads that differ or rotate in part cannot be told in this config.json",
            )
    embedding = source.file.shapes.get("token_embd.weight") or (0,)
    config = {
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": facts["feed_forward_length"],
        "num_hidden_layers": facts["block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts.get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": facts["context_length"],
        "rms_norm_eps": facts["attention.layer_norm_rms_epsilon"],
        "rope_theta": float(rope_theta),
        "vocab_size": facts.get("vocab_size", embedding[0]),
        "tie_word_embeddings": "head" not in source.groups,
        "attention_bias": "attention_bias" in source.groups,
        "torch_dtype": "float32",
    }
    _check_heads(source, config)
    return config


def measure_decoder(config: Mapping[str, Any]) -> Sizes:
    """Sizes behind the axis letters; `L` layers, `R` rotated pairs of a head."""
    return {
        "V": config["vocab_size"],
        "C": config["hidden_size"],
        "F": config["intermediate_size"],
        "H": config["num_attention_heads"],
        "K": config["num_key_value_heads"],
        "D": config["head_dim"],
        "R": config["head_dim"] // 2,
        "L": config["num_hidden_layers"],
    }


def _check_heads(source: Source, config: Mapping[str, Any]) -> None:
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    sound = heads > 0 and kv_heads > 0 and heads % kv_heads == 0 and config["head_dim"] > 0
    if not sound or config["head_dim"] % 2:
        raise CheckpointError(
            str(source.file.path),
            expected="heads in multiples of the kv heads, and an even head size",
            found=f"{heads} heads, {kv_heads} kv heads, head size {config['head_dim']}",
            advice="the metadata is damaged; fetch or convert the file again",
        )
