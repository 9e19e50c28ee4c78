"""What a gate runs: the passes, and how. The same on both sides; a baseline keeps it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .logits import PositionLogits
from .records import Pass, Request
from .side import Tap

#: Dtypes in which a model can be run.
DTYPES = ("float32", "bfloat16", "float16")

#: Runs where nobody names a prompt: digits, accents, code, two scripts, spaces in a row.
DEFAULT_TEXT = "On 3 May, Zoë sold 12 crêpes:\n    total = 12 * 7.5  # 北京"

#: Token ids where there is neither prompt nor tokenizer.
_LENGTH = 24
_STRIDE = 7919  # prime: ids from all over the vocabulary


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Attributes:
        passes: Runs of the model, in order.
        texts: Texts to tokenise, by name.
        dtype: Name of the dtype of the weights.
        attention: Attention implementation; None for what the library chooses.
        threads: Threads of torch.
    """

    passes: tuple[Pass, ...]
    texts: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "float32"
    attention: str | None = None
    threads: int = 1

    def request(
        self, model: str, *, noise: bool = True, trust_remote_code: bool = False
    ) -> Request:
        """The request for a model in a folder."""
        return Request(
            model=model,
            dtype=self.dtype,
            attention=self.attention,
            threads=self.threads,
            trust_remote_code=trust_remote_code,
            texts=self.texts,
            passes=self.passes,
            noise=noise,
        )


def passes_for(
    prompts: Mapping[str, Sequence[int]], *, decode: int, generate: int, pad: int
) -> tuple[Pass, ...]:
    """The passes of prompts: each with a cache, and all of them as one padded batch.

    The last ``decode`` tokens of each prompt go through the cache one by one. The batch, padded
    on the left, has logits alone kept.

    Args:
        prompts: Token ids by name.
        decode: Number of tokens that are fed one by one.
        generate: Number of tokens to choose greedily after each prompt.
        pad: Token id of pads.
    """
    passes = []
    for name, ids in prompts.items():
        single = min(decode, len(ids) - 1)
        passes.append(
            Pass(
                name,
                (tuple(ids),),
                chunks=(len(ids) - single, *[1] * single),
                cache=True,
                generate=generate,
            )
        )
    rows = [tuple(ids) for ids in prompts.values()]
    if len(rows) == 1:  # a batch takes two
        rows.append(rows[0][: max(1, len(rows[0]) // 2)])
    longest = max(map(len, rows))
    pads = [longest - len(row) for row in rows]
    padded = Pass(
        "padded batch",
        tuple((pad,) * n + row for n, row in zip(pads, rows, strict=True)),
        attention_mask=tuple((0,) * n + (1,) * len(row) for n, row in zip(pads, rows, strict=True)),
        taps=False,
    )
    return (*passes, padded) if any(pads) else tuple(passes)


def incomplete(
    plan: Plan, taps: Sequence[Tap], logits: Mapping[str, Sequence[PositionLogits]]
) -> str:
    """What a plan cannot be, or what is lacking of its outcome; empty for nothing.

    Every chunk of every pass ends in logits (or, of a model without a head, in its output), with
    each of their positions.
    """
    if plan.dtype not in DTYPES or plan.threads < 1:
        return f"a plan of dtype {plan.dtype} on {plan.threads} threads"
    ends = {(tap.passed, tap.chunk): tap for tap in taps if tap.role in ("logits", "out")}
    for each in plan.passes:
        for chunk, length in enumerate(each.chunks or (len(each.token_ids[0]),)):
            end = ends.get((each.name, chunk))
            if end is None:
                return f"no output of chunk {chunk} of pass {each.name}"
            positions = len(each.token_ids) * length
            if end.role == "logits" and len(logits.get(end.key, ())) != positions:
                found = len(logits.get(end.key, ()))
                return (
                    f"logits of {found} positions of chunk {chunk} of pass {each.name}, not of"
                    f" {positions}"
                )
    return ""


def made_up(vocabulary: int) -> tuple[int, ...]:
    """Token ids for a model without a tokenizer, all over its vocabulary but for the lowest ids."""
    low = min(4, vocabulary - 1)
    return tuple(low + i * _STRIDE % (vocabulary - low) for i in range(1, _LENGTH + 1))
