"""What facts are measured on: the model in several engines, a prompt and a paragraph."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import encode
from ..engines.reference import ReferenceEngine
from ..errors import UsageError
from ..greedy import greedy
from ..references_seam import step as seam
from ..subject import Subject, load_subject

if TYPE_CHECKING:
    from ..engines.hf import HFEngine

Array = NDArray[Any]
TokenIds = NDArray[np.int64]

PROMPT = "The capital of France is"
SECOND_PROMPT = "The largest planet is"
GREEDY_TOKENS = 20

#: The paragraph is cut to the length of the seed's.
PARAGRAPH_TOKENS = 249
PARAGRAPH = """\
A hundred years later the machine existed, and the trouble began. Early programmers wired their \
instructions by hand, and a loose plug could turn a table of firing angles into noise. They \
learned to check their results against slower methods: a sum done twice, a value known from \
theory, a column that had to come out at zero. Rounding was a science of its own. A number with \
ten digits, multiplied by another, has twenty, and half of them must go; what is thrown away at \
each step is small, but the steps are many. In 1947 John von Neumann and Herman Goldstine wrote \
that the errors of a long elimination would drown its result, and they were too pessimistic: \
errors have signs, and signs cancel. James Wilkinson, who had worked beside Alan Turing on the \
Pilot ACE, showed why. A computed solution, he said, is the exact solution of a problem that lies \
close to the one that was asked, and the question is only how close. The same question returned \
with the language models. A network of a hundred million weights is a long chain of products and \
sums, and no two libraries add them in the same order. Two programs that mean the same will \
differ in the last digits of every number; two programs that mean different things may differ by \
no more than that.
"""


class Bench:
    """A Llama model, loaded once, and what several facts look at.

    Args:
        source: A directory, a GGUF file or a hub id.

    Raises:
        ParityError: It cannot be loaded, or is no Llama.
    """

    def __init__(self, source: str | Path) -> None:
        self.subject: Subject = load_subject(source)
        family = self.subject.checkpoint.config["model_type"]
        if family != "llama":
            raise UsageError(
                "parity seeds",
                expected="SmolLM2-135M-Instruct, a model of the family llama",
                found=f"the family {family}",
                advice="leave --model out, or name a folder that holds this model",
            )
        self.tokens = self._encode(PROMPT)
        self.second = self._encode(SECOND_PROMPT)
        self.paragraph = self._encode(PARAGRAPH)[:, :PARAGRAPH_TOKENS]

    def _encode(self, text: str) -> TokenIds:
        return np.array([encode(self.subject.checkpoint, text)], dtype=np.int64)

    @cached_property
    def eager(self) -> "HFEngine":
        """Transformers with eager attention, float32."""
        return self._load("eager")

    @cached_property
    def sdpa(self) -> "HFEngine":
        """Transformers with torch's fused attention, float32."""
        return self._load("sdpa")

    def _load(self, attention: str) -> "HFEngine":
        from ..engines.hf import HFEngine

        return HFEngine.load(self.subject.checkpoint.path, attention=attention)

    @cached_property
    def reference(self) -> ReferenceEngine:
        """The independent reference, float32."""
        return ReferenceEngine(self.subject.model)

    @property
    def step(self) -> seam.Step:
        """The reference's plain step, float32."""
        dtype = np.dtype(np.float32)
        return seam.Compute(lambda weight: np.asarray(weight.array, dtype), dtype)

    @cached_property
    def logits(self) -> Array:
        """Logits [1, T, V] of the prompt, of eager."""
        from ..engines.hf_probe import forward

        return forward(self.eager.model, self.tokens)

    @cached_property
    def greedy(self) -> TokenIds:
        """The 20 tokens [1, 20] that eager chooses after the prompt."""
        return greedy(self.eager, self.tokens, GREEDY_TOKENS)

    @cached_property
    def taps(self) -> Mapping[str, Array]:
        """Intermediates of the prompt, of eager."""
        seen: dict[str, Array] = {}
        with self.eager.open(cache=False) as session:
            session.feed(self.tokens, seen.__setitem__)
        return seen

    @cached_property
    def random_q(self) -> Array:
        """Normal numbers [1, 9, 5, 64] in float32: the shape of the prompt's queries."""
        draw = np.random.default_rng(0)
        return draw.standard_normal((1, 9, 5, 64), dtype=np.float32)

    @property
    def theta(self) -> float:
        """The config's rope theta."""
        config: Any = self.subject.model.config
        return float(config.rope.theta)


def apart(x: Array, y: Array) -> float:
    """Largest absolute difference."""
    return float(np.abs(x.astype(np.float64) - y.astype(np.float64)).max())
