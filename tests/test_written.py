"""Where a constant is written, in the spelling of the file."""

from typing import Any

import pytest

from harness.diagnose.written import where_written

NESTED: dict[str, Any] = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "layer_types": ["sliding_attention", "full_attention"],
}
ROWS: list[tuple[str, float, dict[str, Any], str, int | None, str]] = [
    ("rope_theta", 1e5, {"rope_theta": 1e5}, "attn.q_rope", 0, "rope_theta (top level)"),
    (
        *("rope_theta", 1e5, {"rope_parameters": {"rope_theta": 100000}}, "attn.q_rope", 0),
        "rope_parameters.rope_theta",
    ),
    ("rope_theta", 1e4, NESTED, "attn.q_rope", 0, "rope_parameters.sliding_attention.rope_theta"),
    ("rope_theta", 1e6, NESTED, "attn.q_rope", 1, "rope_parameters.full_attention.rope_theta"),
    ("factor", 8.0, NESTED, "attn.q_rope", 1, "rope_parameters.full_attention.factor"),
    ("factor", 4.0, {"rope_scaling": {"factor": 4}}, "attn.q_rope", 1, "rope_scaling.factor"),
    (
        *("rope_theta", 1e4, {"rope_local_base_freq": 1e4}, "attn.q_rope", 0),
        "rope_local_base_freq (top level)",
    ),
    ("rope_theta", 1e4, {}, "attn.q_rope", 0, "default of the family, no key"),
    ("attention_factor", 1.0, {}, "attn.q_rope", 0, "1 where nothing scales, no key"),
    (
        *("attention_factor", 1.14, {"rope_scaling": {"type": "yarn", "factor": 4.0}}),
        *("attn.q_rope", 0, "made of rope_scaling.factor, no key of its own"),
    ),
    ("position_offset", 0.0, {}, "attn.q_rope", 0, "positions begin at 0, no key"),
    (
        *("scale", 0.125, {"hidden_size": 576, "num_attention_heads": 9}, "attn.scores", 0),
        "(hidden_size / num_attention_heads) ** -0.5 = 64 ** -0.5",
    ),
    (
        *("scale", 0.125, {"head_dim": 64, "hidden_size": 48, "num_attention_heads": 6}),
        *("attn.context", 0, "head_dim ** -0.5 = 64 ** -0.5"),
    ),
    (
        *("scale", 256**-0.5, {"query_pre_attn_scalar": 256, "head_dim": 64}, "attn.scores", 0),
        "query_pre_attn_scalar ** -0.5 = 256 ** -0.5",
    ),
    ("scale", 0.19, {"attention_multiplier": 0.19}, "attn.scores", 0, "attention_multiplier"),
    (
        *("scale", 8**-0.5 / 3, {"n_embd": 48, "n_head": 6}, "attn.scores", 2),
        "(n_embd / n_head) ** -0.5 = 8 ** -0.5 / (layer + 1)",
    ),
    (
        *("scale", 1.0, {"n_embd": 48, "n_head": 6, "scale_attn_weights": False}),
        *("attn.scores", 0, "scale_attn_weights = false"),
    ),
    ("eps", 1e-5, {"rms_norm_eps": 1e-5}, "attn_norm", 0, "rms_norm_eps"),
    ("eps", 1e-5, {"layer_norm_epsilon": 1e-5}, "final_norm", None, "layer_norm_epsilon"),
    ("eps", 1e-6, {}, "final_norm", None, "default of the family, no key"),
    ("softcap", 30.0, {"final_logit_softcapping": 30}, "logits", None, "final_logit_softcapping"),
    (
        *("softcap", 50.0, {"attn_logit_softcapping": 50, "final_logit_softcapping": 30}),
        *("attn.scores_capped", 0, "attn_logit_softcapping"),
    ),
    ("window", 512.0, {"sliding_window": 512}, "attn.mask", 0, "sliding_window"),
    (
        *("embedding_multiplier", 12.0, {"embedding_multiplier": 12.0}, "embed_scaled", None),
        "embedding_multiplier",
    ),
    (
        *("embedding_multiplier", 25.25, {"hidden_size": 640}, "embed", None),
        "hidden_size ** 0.5 = 640 ** 0.5",
    ),
    (
        *("residual_multiplier", 0.22, {"residual_multiplier": 0.22}, "resid_mid", 0),
        "residual_multiplier",
    ),
    ("logits_scale", 8.0, {"logits_scaling": 8.0}, "logits", None, "logits_scaling"),
]


@pytest.mark.parametrize(("constant", "value", "config", "kind", "layer", "words"), ROWS)
def test_the_key_is_named_as_the_file_spells_it(
    constant: str,
    value: float,
    config: dict[str, Any],
    kind: str,
    layer: int | None,
    words: str,
) -> None:
    assert where_written(constant, value, config, kind, layer) == words
