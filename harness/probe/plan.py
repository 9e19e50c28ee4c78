"""From a checkpoint to its probes and to what they show."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..case import Prompt
from ..references_seam import model as models
from ..result import ProbeReport
from .probes import make_probes
from .sights import Evidence, make_sights
from .traits import Traits, read_traits
from .vocabulary import read_vocabulary
from .witness import bear_witness

#: Most tokens of a probe.
MOST = 1024

#: Logits of a probe have at most so many elements (256 MiB in float64), if nobody asks for more.
_MOST_LOGITS = 1 << 25

#: Probes are not shorter than this for the sake of memory.
_LEAST = 32

#: Decoding steps behind the longest probe.
_DECODE = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """The probes of a checkpoint.

    Attributes:
        prompts: What to run.
        report: What they are and what they show.
    """

    prompts: tuple[Prompt, ...]
    report: ProbeReport


def make_plan(
    model: models.Model,
    raw: Mapping[str, Any],
    *,
    dtype: str,
    most: int | None = None,
    unpadded: tuple[str, ...] = (),
) -> Plan:
    """Make a model's probes.

    Runs the float64 reference once, over the first probe.

    Args:
        model: The reference over the checkpoint.
        raw: Its config.json.
        dtype: Of the candidates.
        most: Most tokens of a probe, None for what fits in little memory and time.
        unpadded: Names of candidates that take no padding; with any there are no padded probes.
    """
    traits = read_traits(model, raw)
    words = read_vocabulary(np.asarray(traits.table.array), traits.special)
    limit, why = _limit(traits, most)
    probes = make_probes(traits, words, dtype=dtype, limit=limit, padded=not unpadded)
    tokens = np.array(probes[0].rows, dtype=np.int64)
    testimony = bear_witness(model, traits, tokens, dtype=dtype)
    seen = Evidence(traits, words, probes, testimony, dtype, why, unpadded)
    report = ProbeReport(
        probes=tuple(probe.info() for probe in probes), sights=make_sights(seen), limit=limit
    )
    return Plan(tuple(probe.prompt() for probe in probes), report)


def _limit(traits: Traits, most: int | None) -> tuple[int, str]:
    """Most tokens of a row, and why no more."""
    limit, why = most or MOST, f"a probe has at most {most or MOST:,} tokens"
    fits = max(_LEAST, _MOST_LOGITS // traits.vocab)
    if most is None and fits < limit:
        limit = fits
        why = f"a probe has at most {limit:,} tokens, for {traits.vocab:,} logits each"
    if traits.longest is not None and traits.longest - _DECODE < limit:
        limit = max(2, traits.longest - _DECODE)
        why = f"the model has {traits.longest:,} positions"
    return limit, why
