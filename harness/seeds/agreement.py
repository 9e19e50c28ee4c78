"""Facts about the logits of implementations that agree."""

import numpy as np

from ..greedy import greedy, greedy_from_draft
from ..logits import count_equal
from .bench import GREEDY_TOKENS, Bench, apart
from .fact import Fact, around

#: What separates all figures of the whole model from the seed's.
OTHER_WEIGHTS = "other weights: the package's are Q4_1, dequantised to float32"

#: What separates figures of rounding.
OTHER_KERNELS = "rounding, which follows the processor, the releases and the number of threads"


def largest_logit(bench: Bench) -> float:
    """Largest magnitude among the logits of the last position."""
    return float(np.abs(bench.logits[0, -1]).max())


def eager_against_sdpa(bench: Bench) -> float:
    """How far two attention implementations are apart at the last position."""
    from ..engines.hf_probe import forward

    return apart(bench.logits[0, -1], forward(bench.sdpa.model, bench.tokens)[0, -1])


def greedy_tokens(bench: Bench) -> float:
    """Number of leading greedy tokens, of 20, in which all engines agree."""
    chosen = bench.greedy
    others = (
        greedy(bench.sdpa, bench.tokens, GREEDY_TOKENS),
        greedy_from_draft(bench.subject.model, bench.step, bench.tokens, chosen),
    )
    return float(min(count_equal(chosen[0], other[0]) for other in others))


def last_position_alone(bench: Bench) -> float:
    """Logits of the last position: among those of all, and computed alone."""
    from ..engines.hf_probe import forward

    return apart(bench.logits[0, -1], forward(bench.eager.model, bench.tokens, keep=1)[0, -1])


FACTS = (
    # Weights in 4 bits move single logits by a few units, not the scale of all of them.
    Fact(
        "largest logit at the last position",
        "20.6",
        largest_logit,
        **around(20.6, 1.5),
        reason=OTHER_WEIGHTS,
    ),
    # The same products, added in another order: a size, within a power of ten. Zero would mean
    # that both ran the same kernel.
    Fact(
        "eager against sdpa, last position",
        "3.34e-5",
        eager_against_sdpa,
        **around(3.34e-5, 10),
        reason=OTHER_KERNELS,
    ),
    # A count: rounding of 1e-5 changes no token unless two logits are that close.
    Fact("greedy tokens that agree, of 20", "20", greedy_tokens, 20, 20, figure=20, digits=2),
    # The last matrix product in another shape: as above.
    Fact(
        "logits_to_keep=1 against all positions",
        "2.48e-5",
        last_position_alone,
        **around(2.48e-5, 10),
        reason=OTHER_KERNELS,
    ),
)
