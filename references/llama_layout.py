"""Families whose checkpoints are laid out as Llama's: config keys, parameters, the way through."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import ops
from .blocks import ACTIVATIONS
from .config import MOST_LAYERS, ConfigReader, unusable
from .step import Handle, Step
from .weights import Weights

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Decoder:
    """The config keys that all families of this layout follow, under short names.

    Attributes:
        vocab: V.
        channels: C.
        mlp_channels: F.
        layers: Number of decoder layers.
        heads: H.
        kv_heads: K.
        head_dim: D.
        eps: Of all norms.
        activation: Of the MLP's gate; a key of :data:`references.blocks.ACTIVATIONS`.
        tied: Whether the head is the embedding table.
        attention_bias: Whether the four projections of attention have a bias.
    """

    vocab: int
    channels: int
    mlp_channels: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    activation: str
    tied: bool
    attention_bias: bool


def read_decoder(
    read: ConfigReader,
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    activation: tuple[str, str] = ("hidden_act", "silu"),
    eps: tuple[str, float] = ("rms_norm_eps", 1e-6),
    tied: bool = False,
    attention_bias: bool = False,
) -> Decoder:
    """Read the shared keys.

    Args:
        read: The config.
        kv_heads: What the family takes for K where the config does not name it, None for as many
            as there are heads; a null always means that.
        head_dim: The same for D, None for C / H.
        activation: The key that names the activation, and its default.
        eps: The key that holds the epsilon of all norms, and its default.
        tied: Default of ``tie_word_embeddings``.
        attention_bias: Default of ``attention_bias``.

    Raises:
        ConfigError: A key that is absent or unusable.
    """
    channels, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    own = heads if kv_heads is None or read.is_null("num_key_value_heads") else kv_heads
    shared = read.integer("num_key_value_heads", own)
    if heads % shared:
        raise unusable("num_key_value_heads", f"a divisor of the {heads} heads", shared)
    return Decoder(
        vocab=read.integer("vocab_size"),
        channels=channels,
        mlp_channels=read.integer("intermediate_size"),
        layers=read.integer("num_hidden_layers", most=MOST_LAYERS),
        heads=heads,
        kv_heads=shared,
        head_dim=read.integer("head_dim", channels // heads if head_dim is None else head_dim),
        eps=read.number(*eps),
        activation=read.choice(activation[0], ACTIVATIONS, default=activation[1]),
        tied=read.flag("tie_word_embeddings", default=tied),
        attention_bias=read.flag("attention_bias", default=attention_bias),
    )


def read_layer_types(read: ConfigReader, implied: Sequence[str]) -> list[str]:
    """``layer_types``, one of full and sliding attention for each layer.

    Args:
        read: The config.
        implied: What the other keys mean where ``layer_types`` is not there; one for each layer.

    Raises:
        ConfigError: Another number of entries, or an unknown one.
    """
    kinds = read.get("layer_types", list(implied))
    usable = isinstance(kinds, list) and len(kinds) == len(implied)
    if not usable or not set(map(str, kinds)) <= {FULL, SLIDING}:
        raise unusable("layer_types", f"{len(implied)} of {FULL} or {SLIDING}", kinds)
    return [str(kind) for kind in kinds]


def llama_layout_shapes(config: Decoder, *, mlp_bias: bool) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of a checkpoint laid out as Llama's."""
    c, f = config.channels, config.mlp_channels
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab, c),
        "model.norm.weight": (c,),
    }
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab, c)
    attention = {"q_proj": (q, c), "k_proj": (kv, c), "v_proj": (kv, c), "o_proj": (c, q)}
    mlp = {"gate_proj": (f, c), "up_proj": (f, c), "down_proj": (c, f)}
    linears = {f"self_attn.{n}": (shape, config.attention_bias) for n, shape in attention.items()}
    linears |= {f"mlp.{n}": (shape, mlp_bias) for n, shape in mlp.items()}
    for layer in range(config.layers):
        at = f"model.layers.{layer}"
        shapes[f"{at}.input_layernorm.weight"] = (c,)
        shapes[f"{at}.post_attention_layernorm.weight"] = (c,)
        for name, (shape, bias) in linears.items():
            shapes[f"{at}.{name}.weight"] = shape
            if bias:
                shapes[f"{at}.{name}.bias"] = shape[:1]
    return shapes


def llama_layout_decoder(
    step: Step,
    weights: Weights,
    config: Decoder,
    token_ids: Handle,
    layer: Callable[[Handle, int], Handle],
) -> Handle:
    """Embedding, layers, final norm and head: token ids [B, T] to logits [B, T, V].

    Args:
        step: Makes the taps embed, final_norm and logits.
        weights: The model's parameters.
        config: Sizes and epsilon.
        token_ids: [B, T].
        layer: From the residual stream [B, T, C] and the index of a layer to the stream after it.
    """
    table = weights["model.embed_tokens.weight"]
    x = step("embed", ops.embedding, table, token_ids)
    for index in range(config.layers):
        x = layer(x, index)
    x = step("final_norm", ops.rms_norm, x, weights["model.norm.weight"], eps=config.eps)
    return step("logits", ops.linear, x, table if config.tied else weights["lm_head.weight"])
