"""What the recorder is asked, and what it found: plain data, JSON by :mod:`msgspec`.

The recorder in :mod:`harness.engines.recorder` runs in another environment, where nothing of this
is installed. What both sides share is the two JSON documents whose fields stand here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError

REQUEST_FORMAT = "logits-parity/record-request"
REQUEST_VERSION = 1
FORMAT = "logits-parity/record"
VERSION = 1

#: Attention implementations that a pass may ask for.
ATTENTIONS = (None, "eager", "sdpa")

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Make:
    """A tiny model made on the spot, its weights drawn from a hash of each parameter's name.

    Attributes:
        config_class: Name of a config class of transformers.
        config: Its arguments.
        model_class: An auto class or a model class of transformers.
        after_save_load: Whether what runs is the model after ``save_pretrained`` and
            ``from_pretrained``.
    """

    config_class: str
    config: Mapping[str, Any] = field(default_factory=dict)
    model_class: str = "AutoModelForCausalLM"
    after_save_load: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of the model.

    Attributes:
        name: Distinct within a request.
        token_ids: Rows of equal length, [B, T].
        chunks: Numbers of tokens fed one after the other, None for all at once.
        attention_mask: Rows of 0 and 1, [B, T], None to give none. Logits are recorded as 0 at
            pads: what a model computes there is nobody's.
        cache: Whether the model keeps a cache; needed for more than one chunk.
        forward: More arguments of ``forward``; lists become tensors, and ``position_ids`` are cut
            as the tokens are.
        attention: Attention implementation, None for that of the request.
        generate: Number of tokens to generate greedily afterwards, without taps.
        generate_kwargs: More arguments of ``generate``.
        taps: Whether anything but the logits is kept.
    """

    name: str
    token_ids: tuple[tuple[int, ...], ...]
    chunks: tuple[int, ...] | None = None
    attention_mask: tuple[tuple[int, ...], ...] | None = None
    cache: bool = False
    forward: Mapping[str, Any] = field(default_factory=dict)
    attention: str | None = None
    generate: int = 0
    generate_kwargs: Mapping[str, Any] = field(default_factory=dict)
    taps: bool = True

    def __post_init__(self) -> None:
        lengths = {len(row) for row in self.token_ids}
        where = f"pass {self.name!r}"
        if len(lengths) != 1 or 0 in lengths:
            raise UsageError(
                where,
                expected="rows of token ids of one length, at least 1",
                found=f"lengths {sorted(lengths)}",
                advice="pad the rows and give an attention_mask",
            )
        total = max(lengths)
        if self.chunks is not None and (sum(self.chunks) != total or min(self.chunks) < 1):
            raise UsageError(
                where,
                expected=f"chunks of at least 1 token, {total} together",
                found=str(self.chunks),
                advice="cut the tokens into chunks that cover them",
            )
        if self.chunks is not None and len(self.chunks) > 1 and not self.cache:
            raise UsageError(
                where,
                expected="a cache for more than one chunk",
                found="cache=False",
                advice="set cache=True, or leave chunks out",
            )


@dataclass(frozen=True, slots=True)
class Request:
    """What the recorder is to do; exactly one of ``model`` and ``make`` is given.

    Attributes:
        model: Absolute path of an HF directory.
        make: A model made on the spot.
        dtype: Name of a torch dtype.
        attention: Attention implementation, None for what the library chooses.
        threads: Threads of torch.
        trust_remote_code: Whether code in the model's folder may run.
        texts: Texts to tokenise, by name, to compare tokenizers.
        passes: Runs of the model, in order.
        noise: Whether each pass is run in float64 as well.
        save_to: Folder to save the model in; nothing is run then.
    """

    model: str | None = None
    make: Make | None = None
    dtype: str = "float32"
    attention: str | None = None
    threads: int = 1
    trust_remote_code: bool = False
    texts: Mapping[str, str] = field(default_factory=dict)
    passes: tuple[Pass, ...] = ()
    noise: bool = True
    save_to: str | None = None

    def __post_init__(self) -> None:
        if (self.model is None) == (self.make is None):
            raise UsageError(
                "record request",
                expected="either model or make",
                found="both" if self.model else "neither",
                advice="name a model folder, or say how a model is made",
            )
        names = [each.name for each in self.passes]
        if len(set(names)) < len(names):
            raise UsageError(
                "record request",
                expected="passes of distinct names",
                found=", ".join(names),
                advice="rename one",
            )


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in the recorded environment: a result like any other.

    Attributes:
        stage: ``import``, ``config``, ``tokenizer``, ``load``, ``pass:NAME``, ``save``, or
            ``start`` where the recorder did not get as far as that.
        type: Class of the error; ``Crash`` for a process that ended without a word, ``Timeout``.
        message: Its text.
        traceback: Where it was raised, or the last lines that the process printed.
    """

    stage: str
    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning of Python or of transformers' log, as it came first.

    Attributes:
        stage: As of a :class:`Failure`.
        text: The model's folder reads ``<model>`` in it, and addresses in memory ``0x...``.
    """

    stage: str
    text: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What numbers depend on apart from versions.

    Attributes:
        platform: System and architecture.
        processor: Name of the processor's model.
        capability: Vector instructions that torch uses.
        threads: Threads of torch.
        blas: Library that multiplies matrices.
    """

    platform: str
    processor: str
    capability: str
    threads: int
    blas: str


@dataclass(frozen=True, slots=True)
class Loading:
    """What ``from_pretrained`` said of the weights."""

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """What the tokenizer made of the texts.

    Attributes:
        class_name: Its class.
        ids: Token ids by name of the text.
        special: Special tokens and their ids by role.
    """

    class_name: str
    ids: Mapping[str, tuple[int, ...]]
    special: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordedTap:
    """One tensor of one chunk.

    Attributes:
        tap: ``PATH``, ``PATH.in``, ``PATH:ROLE`` or ``logits``; ``PATH#2`` in a second call.
        chunk: Which chunk of the pass.
        key: Of the array in the file; taps of equal bytes and shape share it.
        module: Path of the module.
        class_name: Its class.
        role: out, in, query, key, value, mask, bias, scores, probs, context or logits.
        shape: Of the array.
        dtype: Of the array, as torch names it.
        noise: Euclidean norm of what this run differs by from the one in float64; None if unknown.
        scale: Of ``query`` alone: the factor that the library puts on products of these queries
            and the keys. Queries of two releases are alike where query times scale is. None if
            unknown.
    """

    tap: str
    chunk: int
    key: str
    module: str
    class_name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    noise: float | None = None
    scale: float | None = None


@dataclass(frozen=True, slots=True)
class RecordedPass:
    """What one pass came to.

    Attributes:
        name: As asked for.
        attention: Attention implementation that the config named.
        taps: In execution order, chunk by chunk; of a failed pass, those before the failure.
        failed: The error that ended it.
        cache_class: Class of the cache that the model handed back.
        generated: Token ids [B, N] that were generated.
    """

    name: str
    attention: str | None
    taps: tuple[RecordedTap, ...] = ()
    failed: Failure | None = None
    cache_class: str | None = None
    generated: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes:
        name: Of the first place it stands in.
        shape: Its shape.
        dtype: As torch names it.
        digest: First 16 hexadecimal digits of the SHA-256 of its bytes, row by row.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    digest: str


@dataclass(frozen=True, slots=True)
class Module:
    """One module: its path, empty for the model, and its class."""

    path: str
    class_name: str


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was recorded but the arrays.

    Attributes:
        failed: The gravest failure, None if all went well.
        failures: All of them, in order.
        versions: Of Python and of packages.
        machine: None if the process did not get so far, like all that follows.
        model_class: Class of the model.
        config_class: Class of the config.
        config: The config as the library understood it.
        config_as_saved: The config file as it stands.
        config_defaults: What the library's config of no model in particular has.
        generation_config: Defaults of ``generate`` for this model.
        generation_defaults: Those of no model in particular.
        attention: Attention implementation that was chosen.
        dtype: Of the parameters.
        modules: In the model's order.
        parameters: In the model's order.
        tied: Names of one and the same parameter, the first place first.
        loading: What was said of the weights; None for a model made on the spot.
        tokenizer: None if no texts were given or it failed.
        warnings: Once each, in order.
        passes: As asked for.
    """

    format: str = FORMAT
    version: int = VERSION
    failed: Failure | None = None
    failures: tuple[Failure, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Machine | None = None
    model_class: str | None = None
    config_class: str | None = None
    config: Mapping[str, Any] | None = None
    config_as_saved: Mapping[str, Any] | None = None
    config_defaults: Mapping[str, Any] | None = None
    generation_config: Mapping[str, Any] | None = None
    generation_defaults: Mapping[str, Any] | None = None
    attention: str | None = None
    dtype: str | None = None
    modules: tuple[Module, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    tied: tuple[tuple[str, str], ...] = ()
    loading: Loading | None = None
    tokenizer: Tokenizer | None = None
    warnings: tuple[Warned, ...] = ()
    passes: tuple[RecordedPass, ...] = ()


class Record:
    """Facts and arrays of one environment; arrays are mapped into memory on first use.

    Args:
        facts: Everything but the arrays.
        arrays: Maps the file of arrays.

    Attributes:
        facts: As given.
    """

    def __init__(self, facts: Facts, arrays: Callable[[], Mapping[str, Array]] = dict) -> None:
        self.facts = facts
        self._read = arrays

    @cached_property
    def _arrays(self) -> Mapping[str, Array]:
        return self._read()

    def array(self, key: str) -> Array:
        """The array of a tap's key, read-only, as it was computed; bfloat16 is ml_dtypes'.

        Raises:
            KeyError: There is no such key.
        """
        return np.asarray(self._arrays[key])

    def recorded_pass(self, name: str) -> RecordedPass:
        """The pass of a name.

        Raises:
            KeyError: There is none.
        """
        for each in self.facts.passes:
            if each.name == name:
                return each
        raise KeyError(name)
