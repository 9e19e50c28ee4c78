"""GPT-2: pre-norm decoder with learned positions, LayerNorm, biases and a plain MLP.

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners, section 2.3, on
Radford et al. 2018, Improving Language Understanding by Generative Pre-Training, section 4.1 (the
decoder, learned positions, GELU). Parameter names are those of Hugging Face checkpoints, whose
weights of the layers are [in, out] and whose queries, keys and values are one projection.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import ops
from ..blocks import ACTIVATIONS, Chunk, attend
from ..config import MOST_LAYERS, ConfigReader, unusable
from ..step import Handle, Step
from ..weights import Weights

#: Old checkpoints carry the causal mask, and the value of what it hides, as buffers.
DERIVED = (r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",)

BASE = "transformer."


@dataclass(frozen=True, slots=True)
class Config:
    """The config keys that GPT-2 follows, under short names.

    Attributes:
        positions: Number of learned positions.
        scaled: Whether scores are divided by the root of the head dimension.
        scaled_by_layer: Whether scores are also divided by the number of the layer, from 1.
    """

    vocab: int
    positions: int
    channels: int
    mlp_channels: int
    layers: int
    heads: int
    eps: float
    activation: str
    tied: bool
    scaled: bool
    scaled_by_layer: bool

    @property
    def max_positions(self) -> int | None:
        """Length that the model was made for; there are no further positions."""
        return self.positions

    def scale(self, layer: int) -> float:
        """What multiplies the scores of a layer."""
        scale = (self.channels // self.heads) ** -0.5 if self.scaled else 1.0
        return scale / (layer + 1) if self.scaled_by_layer else scale


def read_config(raw: Mapping[str, Any], defaults: Mapping[str, Any]) -> Config:
    """Read a GPT-2 config.

    ``reorder_and_upcast_attn`` says in which dtype scores are formed, and so changes no number
    beyond rounding.

    Raises:
        ConfigError: A key that is absent, unusable or unknown.
    """
    read = ConfigReader(raw, defaults)
    channels, heads = read.integer("n_embd", 768), read.integer("n_head", 12)
    if channels % heads:
        raise unusable("n_head", f"a divisor of n_embd, {channels}", heads)
    positions = read.integer("n_positions", 1024)
    if read.integer("n_ctx", positions) != positions:
        raise unusable("n_ctx", f"n_positions, {positions}", read.get("n_ctx"))
    read.choice("add_cross_attention", {False}, default=False)
    read.flag("reorder_and_upcast_attn", default=False)
    config = Config(
        vocab=read.integer("vocab_size", 50257),
        positions=positions,
        channels=channels,
        mlp_channels=read.integer("n_inner", 4 * channels),
        layers=read.integer("n_layer", 12, most=MOST_LAYERS),
        heads=heads,
        eps=read.number("layer_norm_epsilon", 1e-5),
        activation=read.choice("activation_function", ACTIVATIONS, default="gelu_new"),
        tied=read.flag("tie_word_embeddings", default=True),
        scaled=read.flag("scale_attn_weights", default=True),
        scaled_by_layer=read.flag("scale_attn_by_inverse_layer_idx", default=False),
    )
    read.finish()
    return config


def parameters(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter; those of the layers' linear maps are [in, out]."""
    c, f = config.channels, config.mlp_channels
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (config.vocab, c),
        "transformer.wpe.weight": (config.positions, c),
    }
    linears = {"attn.c_attn": (c, 3 * c), "attn.c_proj": (c, c)}
    linears |= {"mlp.c_fc": (c, f), "mlp.c_proj": (f, c)}
    norms = [f"transformer.h.{n}.{name}" for n in range(config.layers) for name in ("ln_1", "ln_2")]
    for norm in (*norms, "transformer.ln_f"):
        shapes |= {f"{norm}.weight": (c,), f"{norm}.bias": (c,)}
    for layer in range(config.layers):
        for name, shape in linears.items():
            at = f"transformer.h.{layer}.{name}"
            shapes |= {f"{at}.weight": shape, f"{at}.bias": shape[1:]}
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab, c)
    return shapes


def forward(
    step: Step, weights: Weights, config: Config, token_ids: Handle, chunk: Chunk
) -> Handle:
    """One forward pass: token ids [B, T] to logits [B, T, V]."""
    heads, activation = config.heads, ACTIVATIONS[config.activation]

    def norm(tap: str, x: Handle, prefix: str) -> Handle:
        return step(tap, ops.layer_norm, x, *weights.linear(prefix), eps=config.eps)

    table = weights["transformer.wte.weight"]
    x = step("embed", ops.embedding, table, token_ids)
    places = step("pos_embed", ops.embedding, weights["transformer.wpe.weight"], chunk.positions)
    x = step("embed_sum", ops.add, x, places)
    for index in range(config.layers):
        tap, at = f"layers.{index}", f"transformer.h.{index}"
        attn, mlp = f"{tap}.attn", f"{tap}.mlp"

        y = norm(f"{tap}.attn_norm", x, f"{at}.ln_1")
        y = step(f"{attn}.qkv", ops.affine, y, *weights.linear(f"{at}.attn.c_attn"))
        q, k, v = (
            step(f"{attn}.{name}", ops.part_heads, y, part=part, parts=3, heads=heads)
            for part, name in enumerate("qkv")
        )
        y = attend(step, attn, q, k, v, chunk=chunk, layer=index, scale=config.scale(index))
        y = step(f"{attn}.out", ops.affine_merged, y, *weights.linear(f"{at}.attn.c_proj"))
        x = step(f"{tap}.resid_mid", ops.add, x, y)

        y = norm(f"{tap}.mlp_norm", x, f"{at}.ln_2")
        y = step(f"{mlp}.fc", ops.affine, y, *weights.linear(f"{at}.mlp.c_fc"))
        y = step(f"{mlp}.act", activation, y)
        y = step(f"{mlp}.out", ops.affine, y, *weights.linear(f"{at}.mlp.c_proj"))
        x = step(f"{tap}.resid_post", ops.add, x, y)
    x = norm("final_norm", x, "transformer.ln_f")
    return step("logits", ops.linear, x, table if config.tied else weights["lm_head.weight"])
