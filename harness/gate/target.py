"""What a gate runs: a model, and the plan that a user's options make of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..checkpoint import Checkpoint, encode, load_checkpoint
from ..errors import CheckpointError
from ..locate import locate
from .plan import DEFAULT_TEXT, Plan, made_up, passes_for

#: Most tokens of a prompt: what is kept of a run grows with them.
LONGEST = 512


@dataclass(frozen=True, slots=True)
class Target:
    """A model to be run.

    Attributes:
        name: As the user named it.
        checkpoint: Its config and weights.
    """

    name: str
    checkpoint: Checkpoint

    @property
    def folder(self) -> str:
        """What transformers is given."""
        return str(self.checkpoint.path.absolute())


@dataclass(frozen=True, slots=True)
class Options:
    """How a model is run.

    Attributes:
        texts: Prompts as text.
        token_ids: Prompts as token ids.
        dtype: Name of the dtype.
        attention: Attention implementation, None for what the library chooses.
        threads: Threads of torch.
        decode: Number of tokens at the end of each prompt that go through the cache one by one.
        generate: Number of tokens to choose greedily.
        trust_remote_code: Whether code in the model's folder may run.
    """

    texts: tuple[str, ...] = ()
    token_ids: tuple[tuple[int, ...], ...] = ()
    dtype: str = "float32"
    attention: str | None = None
    threads: int = 1
    decode: int = 1
    generate: int = 8
    trust_remote_code: bool = False


def find(model: str) -> Target:
    """Find a model.

    Raises:
        ParityError: There is none of that name, or it is damaged.
    """
    return Target(model, load_checkpoint(locate(model)))


def make_plan(target: Target, options: Options) -> Plan:
    """What is run: the prompts given, or one that the tokenizer makes of a text of ours.

    Raises:
        CheckpointError: A text is given and the model has no tokenizer.
        UsageError: A token id that the model does not have.
    """
    checkpoint = target.checkpoint
    config = checkpoint.config
    texts = {f"text {i}": text for i, text in enumerate(options.texts, start=1)}
    prompts = {name: tuple(encode(checkpoint, text)) for name, text in texts.items()}
    prompts |= {f"tokens {i}": ids for i, ids in enumerate(options.token_ids, start=1)}
    if not prompts:
        try:
            prompts = {"text": tuple(encode(checkpoint, DEFAULT_TEXT))}
            texts = {"text": DEFAULT_TEXT}
        except CheckpointError:  # no tokenizer: any tokens will do
            prompts = {"tokens": made_up(_vocabulary(config))}
    pad = config.get("pad_token_id")
    return Plan(
        passes=passes_for(
            {name: ids[:LONGEST] for name, ids in prompts.items()},
            decode=options.decode,
            generate=options.generate,
            pad=pad if isinstance(pad, int) and pad >= 0 else 0,
        ),
        texts=texts,
        dtype=options.dtype,
        attention=options.attention,
        threads=options.threads,
    )


def _vocabulary(config: Mapping[str, object]) -> int:
    size = config.get("vocab_size")
    return size if isinstance(size, int) and size > 0 else 2
