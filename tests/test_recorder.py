"""The recorder's parts, in process: products, attention, watching, weights, what is written."""

import ast
import json
import logging
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from harness.engines.recorder.attention import Attention
from harness.engines.recorder.heard import heard
from harness.engines.recorder.plain import plain
from harness.engines.recorder.products import product
from harness.engines.recorder.running import run_pass, state_of
from harness.engines.recorder.stages import Stages
from harness.engines.recorder.store import Kept, Noise
from harness.engines.recorder.watching import Watch, Wide
from harness.engines.recorder.weights import fill, normal

FOLDER = Path(__file__).parent.parent / "harness" / "engines" / "recorder"
ALLOWED = {"torch", "transformers", "safetensors", "numpy"}
B, H, K, T, S, D = 2, 4, 2, 5, 7, 8


def drawn(*shape: int, name: str = "x") -> torch.Tensor:
    return torch.from_numpy(normal(name, shape)).float()


# What it needs ------------------------------------------------------------------------------------


def foreign(source: str) -> set[str]:
    """What a module imports that an environment with transformers alone does not have."""
    import sys

    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            outside = node.level > 1  # beyond its own folder
            found.add(".." if outside else str(node.module).partition(".")[0])
            found -= {str(node.module).partition(".")[0]} if node.level == 1 else set()
    return found - set(sys.stdlib_module_names) - ALLOWED


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_the_recorder_needs_nothing_of_the_project(path: Path) -> None:
    assert not foreign(path.read_text())


@pytest.mark.parametrize("source", ["import msgspec", "from ..errors import X", "import harness.a"])
def test_the_check_of_what_it_needs_can_fail(source: str) -> None:
    assert foreign(source)


# Products and attention ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [
        ("bhtd,bhsd->bhts", (B, H, T, D), (B, H, S, D)),
        ("bthd,bshd->bhts", (B, T, H, D), (B, S, H, D)),
        ("bhts,bshd->bthd", (B, H, T, S), (B, S, H, D)),
    ],
)
def test_a_product_written_as_an_equation_is_rows_times_columns(
    equation: str, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    operands = drawn(*left), drawn(*right, name="y")
    found = product("einsum", (equation, *operands), {}, torch.einsum(equation, *operands))
    assert found is not None
    torch.testing.assert_close(found.left @ found.right, found.out)


@pytest.mark.parametrize("equation", ["bhtd,bhsd->bht", "bhtd,bhtd->bhtd", "...td,...sd->...ts"])
def test_other_equations_are_no_products(equation: str) -> None:
    operands = drawn(B, H, T, D), drawn(B, H, T, D, name="y")
    assert product("einsum", (equation, *operands), {}, torch.einsum(equation, *operands)) is None


def test_a_product_with_weights_is_none_of_two_activations() -> None:
    weight = torch.nn.Parameter(drawn(B, D, S))
    x = drawn(B, T, D)
    assert product("matmul", (x, weight), {}, x @ weight) is None


def causal(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An additive mask [T, S] whose last query reads all keys."""
    hidden = torch.ones(T, S).tril(S - T) == 0
    return torch.zeros(T, S).masked_fill(hidden, torch.finfo(dtype).min)


ALIBI = 0.3 * torch.arange(S).float() * torch.tensor([1.0, 0.5, 0.25, 0.1]).reshape(1, H, 1, 1)


class Attending(torch.nn.Module):
    """Attention, written as releases have written it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        groups, scale, mask = H // K, D**-0.5, causal()
        if self.way == "sdpa":
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, enable_gqa=True
            )
        if self.way == "sdpa alibi":
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask=ALIBI + mask, scale=0.25, enable_gqa=True
            )
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        if self.way == "eager":
            scores = torch.matmul(query, key.transpose(2, 3)) * scale + mask
            probs = functional.softmax(scores, dim=-1, dtype=torch.float32)
            mixed: torch.Tensor = self.dropout(probs) @ value
            return mixed
        if self.way == "in place":
            scores = query @ key.transpose(-1, -2)
            scores /= math.sqrt(D)
            scores += ALIBI
            scores = scores.masked_fill(mask != 0, -10000.0)
            return torch.matmul(scores.softmax(-1), value)
        if self.way == "added before it is scaled":
            scores = (query @ key.transpose(-1, -2) + ALIBI) / 2.0 + mask
            return torch.matmul(self.dropout(torch.softmax(scores, -1)), value)
        if self.way == "sink":
            scores = query @ key.transpose(-1, -2) * scale + mask
            sunk = torch.cat([scores, torch.full((B, H, T, 1), 0.5)], dim=-1)
            probs = functional.softmax(sunk, dim=-1)[..., :-1]
            return torch.matmul(self.dropout(probs), value)
        if self.way == "einsum":
            scores = torch.einsum("bhtd,bhsd->bhts", query * scale, key) + mask
            return torch.einsum("bhts,bhsd->bhtd", functional.softmax(scores, -1), value)
        flat = [x.flatten(0, 1) for x in (query, key, value)]
        bias = ALIBI.expand(B, H, 1, S).reshape(B * H, 1, S)
        scores = torch.baddbmm(bias, flat[0], flat[1].transpose(1, 2), beta=1.0, alpha=scale)
        probs = torch.softmax(scores.view(B, H, T, S) + mask, dim=-1).view(B * H, T, S)
        return torch.bmm(self.dropout(probs), flat[2]).view(B, H, T, D)


class Around(torch.nn.Module):
    """A model of one attention."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.attn = Attending(way)

    def forward(self, *given: torch.Tensor) -> Any:
        return self.attn(*given)


SINK = "sink"
WAYS = ("sdpa", "sdpa alibi", "eager", "in place", "added before it is scaled", "einsum", "baddbmm")


def watched(way: str) -> tuple[torch.Tensor, Kept]:
    model, kept = Around(way).eval(), Kept()
    query, key, value = drawn(B, H, T, D), drawn(B, K, S, D, name="k"), drawn(B, K, S, D, name="v")
    watch = Watch(model, kept, B)
    watch.begin("p", 0, T)
    with watch.installed():
        out = model(query, key, value)
    assert torch.equal(out, model(query, key, value)), "watching changes nothing"
    return out, kept


def test_a_sink_is_no_key() -> None:
    out, kept = watched(SINK)
    taps = {each["role"]: kept.arrays[each["key"]] for each in kept.taps["p"]}
    assert {taps[role].shape for role in ("scores", "probs")} == {(B, H, T, S)}
    assert taps["mask"].shape == (B, T, S)
    torch.testing.assert_close(taps["scores"], recomputed(kept)["scores"])
    torch.testing.assert_close(taps["context"], out)
    assert float(taps["probs"].sum(-1).max()) < 0.99


def recomputed(kept: Kept) -> dict[str, torch.Tensor]:
    """Scores and context of what was tapped, by the definition of attention."""
    taps = {each["role"]: kept.arrays[each["key"]] for each in kept.taps["p"]}
    scale = next(each["scale"] for each in kept.taps["p"] if each["role"] == "query")
    groups = H // taps["key"].shape[1]
    key, value = (taps[role].repeat_interleave(groups, 1) for role in ("key", "value"))
    scores = scale * taps["query"] @ key.transpose(-1, -2) + taps.get("bias", 0.0)
    seen = taps["mask"][:, None]
    probs = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)
    return {"scores": scores.masked_fill(~seen, 0.0), "probs": probs, "context": probs @ value}


@pytest.mark.parametrize("way", WAYS)
def test_attention_is_tapped_so_that_it_can_be_computed_again(way: str) -> None:
    out, kept = watched(way)
    taps = {each["role"]: kept.arrays[each["key"]] for each in kept.taps["p"]}
    formed = {"scores", "probs"} if "sdpa" not in way else set()
    biased = {"bias"} if way not in ("sdpa", "eager", "einsum") else set()
    expected = {"query", "key", "value", "mask", "context", "out", "in"} | formed | biased
    assert set(taps) | {"in"} == expected
    assert taps["key"].shape == (B, K, S, D)
    assert torch.equal(taps["mask"], (causal() == 0).expand(B, T, S))
    torch.testing.assert_close(taps["context"], out)
    for role, again in recomputed(kept).items():
        if role in taps:
            torch.testing.assert_close(taps[role], again, rtol=1e-5, atol=1e-5)


def test_recomputing_attention_can_fail() -> None:
    _, kept = watched("baddbmm")
    kept.taps["p"] = [each for each in kept.taps["p"] if each["role"] != "bias"]
    context = next(each for each in kept.taps["p"] if each["role"] == "context")
    assert (recomputed(kept)["context"] - kept.arrays[context["key"]]).abs().max() > 0.01


class Odd(torch.nn.Module):
    """Attention of two axes, as no model has it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x)


def test_attention_of_unknown_form_costs_its_taps_alone_and_is_told() -> None:
    model, kept = torch.nn.Sequential(Odd(), torch.nn.Identity()), Kept()
    watch = Watch(model, kept, 3)
    watch.begin("p", 0, T)
    with watch.installed(), pytest.warns(UserWarning, match="^0: taps inside attention left out:"):
        out = model(drawn(5, 3))
    assert out.shape == (5, 3)
    assert [each["tap"] for each in kept.taps["p"]][-2:] == ["0", "1"]


def test_a_mask_of_one_head_is_told_by_head() -> None:
    seen = {}
    attention = Attention(lambda role, tensor, scale: seen.update({role: tensor}), B, T)
    mask = torch.ones(B, H, T, S, dtype=torch.bool)
    mask[:, 1, :, 0] = False
    given = drawn(B, H, T, D), drawn(B, H, S, D), drawn(B, H, S, D)
    out = functional.scaled_dot_product_attention(*given, attn_mask=mask)
    attention.see("scaled_dot_product_attention", given, {"attn_mask": mask}, out)
    assert torch.equal(seen["mask"], mask)


def test_query_heads_that_are_packed_as_positions_are_told_as_heads() -> None:
    """As 5.24 hands over a single token of grouped heads where a mask is given."""
    seen = {}
    attention = Attention(lambda role, tensor, scale: seen.update({role: tensor}), B, 1)
    query, mask = drawn(B, H, 1, D), torch.ones(B, 1, 1, S, dtype=torch.bool)
    mask[..., :2] = False
    keys, values = drawn(B, K, S, D, name="k"), drawn(B, K, S, D, name="v")
    given = query.reshape(B, K, H // K, D), keys, values
    packed = mask.expand(B, 1, H // K, S)
    out = functional.scaled_dot_product_attention(*given, attn_mask=packed)
    attention.see("scaled_dot_product_attention", given, {"attn_mask": packed}, out)
    assert torch.equal(seen["query"], query)
    assert torch.equal(seen["mask"], mask[:, 0])
    key, value = (each.repeat_interleave(H // K, 1) for each in (keys, values))
    expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    torch.testing.assert_close(seen["context"], expected)


def test_causal_attention_without_a_mask_is_told_as_a_mask() -> None:
    seen = {}
    attention = Attention(lambda role, tensor, scale: seen.update({role: tensor}), B, T)
    given = drawn(B, H, T, D), drawn(B, H, T, D), drawn(B, H, T, D)
    out = functional.scaled_dot_product_attention(*given, is_causal=True)
    attention.see("scaled_dot_product_attention", given, {"is_causal": True}, out)
    assert torch.equal(seen["mask"], torch.ones(B, T, T, dtype=torch.bool).tril())


# Where taps go ------------------------------------------------------------------------------------


class Chain(torch.nn.Module):
    """Two calls of one module, a module that changes nothing, and named arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.same = torch.nn.Identity()
        self.last = Named()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(
            attention_mask=torch.zeros(1, 1), hidden_states=self.same(self.linear(self.linear(x)))
        )
        return made


class Named(torch.nn.Module):
    """Hands a tuple out."""

    def forward(self, attention_mask: torch.Tensor, hidden_states: torch.Tensor) -> Any:
        return None, {"first": hidden_states * 2}


def test_taps_are_named_by_module_and_call_and_equal_ones_share_an_array() -> None:
    model, kept = Chain().eval(), Kept()
    watch = Watch(model, kept, 1)
    watch.begin("p", 0, T)
    with watch.installed():
        model(drawn(1, 3))
    found = [(each["tap"], each["key"]) for each in kept.taps["p"]]
    assert found == [
        ("linear.in", "p/0/linear.in"),
        ("linear", "p/0/linear"),
        ("linear#2", "p/0/linear#2"),
        ("same", "p/0/linear#2"),
        ("last", "p/0/last"),
    ]
    assert not model.linear._forward_hooks
    assert not model.linear._forward_pre_hooks


def test_what_is_changed_in_place_afterwards_is_kept_as_it_was() -> None:
    kept = Kept()
    kept.begin("p", 0)
    tensor = torch.ones(2)
    kept.offer("a", tensor, module="a", class_name="A", role="out")
    tensor += 1
    assert kept.arrays["p/0/a"].tolist() == [1.0, 1.0]


def test_noise_is_the_norm_of_the_difference_from_float64() -> None:
    kept = Kept()
    noise = Noise(kept)
    for taps, more in ((kept, 0.0), (noise, 3.0)):
        taps.begin("p", 0)
        for name, shape in (("a", (4,)), ("b", (2, 8))):
            value = torch.ones(shape, dtype=torch.float64 if more else torch.float32) + more
            taps.offer(name, value, module=name, class_name="A", role="out")
    noise.offer("c", torch.ones(1), module="c", class_name="A", role="out")
    assert {each["tap"]: each["noise"] for each in kept.taps["p"]} == {"a": 6.0, "b": 12.0}


def test_noise_that_is_not_finite_is_unknown() -> None:
    kept = Kept()
    for taps, value in ((kept, torch.inf), (Noise(kept), 1.0)):
        taps.begin("p", 0)
        taps.offer("a", torch.full((2,), value), module="a", class_name="A", role="out")
    assert kept.taps["p"][0]["noise"] is None


def test_the_wide_run_reads_float32_as_float64() -> None:
    x = torch.tensor([1.0 + 2.0**-40], dtype=torch.float64)
    assert x.float().item() == 1.0
    with Wide():
        found = (
            x.float(),
            x.to(torch.float32),
            x.to(dtype=torch.float32),
            torch.mul(torch.softmax(x, -1, dtype=torch.float32), x),
        )
    assert [each.item() for each in found] == [x.item()] * 4


def test_the_wide_run_multiplies_by_groups() -> None:
    rows, experts = drawn(5, 16), drawn(3, 16, 8, name="e")
    offs = torch.tensor([2, 2, 5], dtype=torch.int32)
    narrow = torch._grouped_mm(rows, experts, offs=offs)
    with Wide():
        wide = torch._grouped_mm(rows.double(), experts.double(), offs=offs)
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide.float(), narrow)


# Running ------------------------------------------------------------------------------------------


class Growing(torch.nn.Module):
    """A model whose state changes as it runs, as that of dynamic rope does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.seen: torch.Tensor
        self.longest = 0

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen = self.seen + 1.0
        self.longest += 1
        return {"logits": input_ids[..., None] + self.seen * self.longest}


def test_one_pass_leaves_nothing_for_the_next() -> None:
    model, kept = Growing(), Kept()
    before = state_of(model)
    asked: dict[str, Any] = {
        "token_ids": [[1, 2]],
        "chunks": None,
        "attention_mask": None,
        "cache": False,
    }
    asked |= {"forward": {}, "generate": 0, "taps": True}
    for name in ("a", "b"):
        run_pass(model, {"name": name} | asked, kept, before)
    assert kept.arrays["a/0/logits"].tolist() == kept.arrays["b/0/logits"].tolist()
    assert model.longest == 0


# Weights ------------------------------------------------------------------------------------------


def test_numbers_follow_from_a_name_for_ever() -> None:
    """A release of NumPy that changes them would make every baseline look changed."""
    assert (normal("model.embed_tokens.weight", (2, 2)) * 65536).astype(int).tolist() == PINNED
    many = normal("many", (200, 100))
    assert abs(many.mean()) < 0.03
    assert abs(many.std() - 1) < 0.03
    assert abs((many**4).mean() - 2.9) < 0.1  # twelve uniform numbers: 3 - 1.2 / 12
    assert not np.array_equal(normal("many", (4,)), normal("few", (4,)))


PINNED = [[1434, -83679], [-40821, -27769]]


def test_weights_are_filled_by_what_they_are_and_buffers_stay() -> None:
    model: Any = torch.nn.Sequential(torch.nn.Embedding(50, 400), torch.nn.Linear(400, 300))
    model.append(torch.nn.LayerNorm(300))
    model.register_buffer("kept", torch.ones(2))
    fill(model)
    spread = {name: float(p.detach().std()) for name, p in model.named_parameters()}
    expected = {"0.weight": 0.15, "1.weight": 0.05, "1.bias": 0.1, "2.weight": 0.1, "2.bias": 0.1}
    assert spread == pytest.approx(expected, rel=0.15)
    assert float(model[2].weight.detach().mean()) == pytest.approx(1.0, abs=0.05)
    assert model.kept.tolist() == [1.0, 1.0]


class Tied(torch.nn.Module):
    """An embedding and a head, one matrix or two."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head


def test_what_is_tied_changes_no_number_of_the_embedding() -> None:
    models = [Tied(tied=tied) for tied in (True, False)]
    for model in models:
        fill(model)
    assert torch.equal(models[0].embed.weight, models[1].embed.weight)
    assert torch.equal(models[0].head.weight, models[0].embed.weight)
    assert not torch.equal(models[1].head.weight, models[1].embed.weight)


# What is written ----------------------------------------------------------------------------------


def test_any_value_is_made_plain() -> None:
    value = {1: (2, np.float32(0.5)), "x": {3, 1}, "inf": math.inf, "nan": math.nan, "t": True}
    made = plain(value | {"dtype": torch.float32})
    assert made == {
        "1": [2, 0.5],
        "x": [1, 3],
        "inf": "inf",
        "nan": "nan",
        "t": True,
        "dtype": "torch.float32",
    }
    json.dumps(made, allow_nan=False)


def test_warnings_are_heard_once_each_with_their_stage() -> None:
    stage = "load"
    with heard(lambda: stage, lambda text: text.replace("/home/me", "<model>")) as found:
        for _ in range(2):
            warnings.warn("from /home/me", FutureWarning, stacklevel=1)
            logging.getLogger("transformers.models").warning("logged")
            logging.getLogger("transformers.models").info("not worth a word")
        stage = "pass:a"
        logging.getLogger("transformers").error("late")
    assert found == [
        {"stage": "load", "text": "FutureWarning: from <model>"},
        {"stage": "load", "text": "logged"},
        {"stage": "pass:a", "text": "late"},
    ]


def test_the_gravest_failure_is_told_first_and_addresses_are_not(tmp_path: Path) -> None:
    stages = Stages(tmp_path, {"/home/me": "<model>"})
    assert stages.gravest() is None
    for name in ("tokenizer", "pass:a", "load"):
        with stages.stage(name):
            raise ValueError(f"{name} of <object at 0x7f12ab34cd> in /home/me")
    assert [each["stage"] for each in stages.failures] == ["tokenizer", "pass:a", "load"]
    gravest = stages.gravest()
    assert gravest is not None
    assert gravest["message"] == "load of <object at 0x...> in <model>"
    assert "ValueError" in gravest["traceback"]
    assert (tmp_path / "stage").read_text() == "load"
