"""Healthy local errors in rounding units: the measurement behind ``UNIT_LIMIT``.

Run it with ``python benchmarks/rounding.py [--dtype float32] [--lengths 5 64 512] [--random 50]
[--families llama qwen3]``. It prints the worst and the median tap of each op and engine, on the
model of a case file and on random models of some families, as a Markdown table.
"""

import argparse
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rich.console import Console

from harness import HFEngine, ReferenceEngine, check
from harness.case_file import load_case
from harness.checkpoint import encode
from harness.engines.protocol import Engine
from harness.locate import locate
from harness.result import RunResult
from harness.subject import Subject, load_subject

CASE = Path(__file__).parent.parent / "cases" / "smollm2.toml"

FAMILIES = ("llama", "qwen3", "gemma3_text", "gpt2", "granite", "qwen3_moe", "stablelm")
ROPES = (
    {"rope_type": "default", "rope_theta": 1e4},
    {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0},
    {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--dtype", default="float32")
    options.add_argument("--lengths", type=int, nargs="*", default=[5, 64, 512])
    options.add_argument("--random", type=int, default=50, help="number of random models")
    options.add_argument("--families", nargs="*", default=["llama", "qwen3"], choices=FAMILIES)
    options.add_argument("--case", type=Path, default=CASE)
    options.add_argument("--decode", type=int, default=2)
    given = options.parse_args()
    console = Console(width=100)
    for length in given.lengths:
        result = _real(given.case, length, given.dtype, given.decode)
        console.print(f"\n{given.case.stem}, {length} tokens, {given.dtype}: {result.verdict}\n")
        console.print("\n".join(_table([result])))
    if given.random:
        results = list(_random_models(given.random, given.families, given.dtype, given.decode))
        verdicts = sorted({str(r.verdict) for r in results})
        names = " and ".join(given.families)
        console.print(
            f"\n{given.random} random {names} models, {given.dtype}: {', '.join(verdicts)}\n"
        )
        console.print("\n".join(_table(results)))


def _table(results: Iterable[RunResult]) -> Iterator[str]:
    """Worst and median units of each op, a column an engine."""
    units: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        for comparison in result.comparisons:
            if comparison.local is not None:
                units[comparison.op][comparison.candidate].append(comparison.local.units)
    engines = sorted({engine for row in units.values() for engine in row})
    yield "| op | " + " | ".join(f"{engine} worst / median" for engine in engines) + " |"
    yield "|---|" + "---|" * len(engines)
    for op, row in units.items():
        cells = [
            f"{max(row[e]):.2f} / {np.median(row[e]):.2f}" if e in row else "" for e in engines
        ]
        yield f"| {op} | " + " | ".join(cells) + " |"


def _engines(subject: Subject, dtype: str) -> list[Engine]:
    path = subject.checkpoint.path
    engines: list[Engine] = [
        HFEngine.load(path, attention=name, dtype=dtype) for name in ("eager", "sdpa")
    ]
    if dtype == "float32":
        engines.append(ReferenceEngine(subject.model))
    return engines


def _real(path: Path, length: int, dtype: str, decode: int) -> RunResult:
    case = load_case(path)
    subject = load_subject(locate(case.model, install=case.install))
    ids = encode(subject.checkpoint, case.prompts[-1].text or "")[:length]
    folder = subject.checkpoint.path
    engines = _engines(subject, dtype)
    return check(engines, checkpoint=folder, token_ids=[ids], decode=decode)


def _random_models(count: int, families: list[str], dtype: str, decode: int) -> Iterator[RunResult]:
    for seed in range(count):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        family = draw.choice(families)
        model = _random_model(family, draw)
        with torch.no_grad():
            for parameter in model.parameters():
                spread = draw.choice([0.02, 0.1, 0.5])
                parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, spread)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            subject = load_subject(folder)
            ids = [[draw.randrange(97) for _ in range(draw.choice([2, 7, 33, 90]))]]
            engines = _engines(subject, dtype)
            yield check(engines, checkpoint=folder, token_ids=ids, decode=decode)


def _random_model(family: str, draw: random.Random) -> torch.nn.Module:
    transformers.logging.disable_progress_bar()
    arguments = _gpt2_arguments(draw) if family == "gpt2" else _arguments(family, draw)
    config = transformers.CONFIG_MAPPING[family](**arguments)
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    return model


def _arguments(family: str, draw: random.Random) -> dict[str, Any]:
    kv_heads = draw.choice([1, 2, 3])
    heads = kv_heads * draw.choice([2, 3, 4])
    rope = draw.choice(ROPES)
    arguments = {
        "vocab_size": 97,
        "num_hidden_layers": draw.choice([2, 3]),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": draw.choice([4, 16, 64]),
        "intermediate_size": draw.choice([24, 200, 1500]),
        "rms_norm_eps": draw.choice([1e-6, 1e-5]),
        "max_position_embeddings": 256,
        "tie_word_embeddings": draw.random() < 0.5,
        "attention_bias": draw.random() < 0.5,
        "hidden_size": draw.choice([24, 96, 512]),
        "rope_parameters": rope,
    }
    if family not in ("qwen3", "qwen3_moe"):
        arguments |= {"hidden_size": heads * draw.choice([4, 16, 64])}
    if family in ("llama", "granite"):
        arguments |= {"mlp_bias": arguments["attention_bias"]}
    if family in OWN_ARGUMENTS:
        OWN_ARGUMENTS[family](draw, arguments)
    if family == "gemma3_text":
        local = {"rope_type": "default", "rope_theta": draw.choice([1e2, 1e4])}
        arguments |= {
            "rope_parameters": {"full_attention": rope, "sliding_attention": local},
            "sliding_window": draw.choice([2, 5, 30]),
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": draw.choice([4, 16, 100]),
            "final_logit_softcapping": draw.choice([None, 5.0, 30.0]),
        }
    return arguments


def _granite(draw: random.Random, arguments: dict[str, Any]) -> None:
    arguments |= {
        "embedding_multiplier": draw.choice([0.3, 12.0]),
        "attention_multiplier": draw.choice([0.0078125, 0.2]),
        "residual_multiplier": draw.choice([0.22, 1.7]),
        "logits_scaling": draw.choice([0.7, 8.0]),
    }


def _qwen3_moe(draw: random.Random, arguments: dict[str, Any]) -> None:
    experts = draw.choice([4, 8, 32])
    arguments |= {
        "moe_intermediate_size": draw.choice([8, 64, 512]),
        "num_experts": experts,
        "num_experts_per_tok": draw.choice([1, 2, 4]),
        "norm_topk_prob": draw.random() < 0.5,
        "mlp_only_layers": draw.choice([[], [0]]),
    }


def _stablelm(draw: random.Random, arguments: dict[str, Any]) -> None:
    for key in ("head_dim", "attention_bias"):
        arguments.pop(key)
    arguments |= {
        "layer_norm_eps": arguments.pop("rms_norm_eps"),
        "hidden_size": arguments["num_attention_heads"] * draw.choice([8, 16, 64]),
        "use_qkv_bias": draw.random() < 0.5,
        "qk_layernorm": draw.random() < 0.5,
        "use_parallel_residual": draw.random() < 0.5,
    }
    part = draw.choice([0.25, 0.5, 0.75])
    arguments["rope_parameters"] = {**arguments["rope_parameters"], "partial_rotary_factor": part}


OWN_ARGUMENTS: dict[str, Callable[[random.Random, dict[str, Any]], None]] = {
    "granite": _granite,
    "qwen3_moe": _qwen3_moe,
    "stablelm": _stablelm,
}


def _gpt2_arguments(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([2, 4, 9])
    return {
        "vocab_size": 97,
        "n_positions": 256,
        "n_embd": heads * draw.choice([4, 16, 64]),
        "n_inner": draw.choice([24, 200, 1500]),
        "n_layer": draw.choice([2, 3]),
        "n_head": heads,
        "layer_norm_epsilon": draw.choice([1e-6, 1e-5]),
        "activation_function": draw.choice(["gelu_new", "gelu_pytorch_tanh"]),
        "tie_word_embeddings": draw.random() < 0.5,
        "scale_attn_by_inverse_layer_idx": draw.random() < 0.5,
        "reorder_and_upcast_attn": draw.random() < 0.5,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


if __name__ == "__main__":
    main()
