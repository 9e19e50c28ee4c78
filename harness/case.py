"""Cases: what to run, on which prompts, with which engines; see :mod:`.case_file` for files."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import CaseError
from .locate import locate
from .padding import SIDES

#: The element types that candidates may run in.
DTYPES = ("float32", "bfloat16", "float16")

#: Candidates of a case that names none. In half precision the reference takes part in float64 only.
DEFAULT_ENGINES = ("hf:eager", "hf:sdpa", "reference")

#: No vocabulary comes near; what lies beyond is damage, and would not fit an array of integers.
LARGEST_ID = (1 << 31) - 1

#: Far more do not fail but end the process: the system has no room for them.
MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Prompt:
    """One input of a case: a text to tokenise, or token ids as they are.

    Attributes:
        name: Unique within the case.
        text: Text for the model's tokenizer, or None.
        token_ids: Rows of token ids, or None. Exactly one of the two is given.
        length: Cut to this many tokens; a prompt that has fewer is an error.
        padding: ``left`` or ``right``: the side on which rows are filled up to the longest. None
            if they are of one length.
        pad_token: What they are filled up with; None for the config's pad_token_id, or 0.
        prefill: Number of tokens of each forward pass that the prompt is fed in; empty for one.
        decode: Number of decoding steps of this prompt, None for the case's.
        greedy: The same of greedy tokens.
    """

    name: str
    text: str | None = None
    token_ids: tuple[tuple[int, ...], ...] | None = None
    length: int | None = None
    padding: str | None = None
    pad_token: int | None = None
    prefill: tuple[int, ...] = ()
    decode: int | None = None
    greedy: int | None = None

    def __post_init__(self) -> None:
        where = f"prompt {self.name!r}"
        if (self.text is None) == (self.token_ids is None):
            found = "neither" if self.text is None else "both"
            raise CaseError(
                where,
                expected="exactly one of text and token_ids",
                found=found,
                advice="give the prompt as text, or as token ids, and not as the two of them",
            )
        if self.text == "":
            raise CaseError(
                where,
                expected="a text",
                found="an empty one",
                advice="write something to compute, or give token_ids",
            )
        _at_least(where, "length", self.length, 1)
        if self.token_ids is not None:
            _check_rows(where, self.token_ids, self.length, padded=self.padding is not None)
        _check_padding(where, self)
        for length in self.prefill:
            _at_least(where, "prefill", length, 1)
        _at_least(where, "decode", self.decode, 0)
        _at_least(where, "greedy", self.greedy, 0)


def _check_padding(where: str, prompt: Prompt) -> None:
    if prompt.padding is None and prompt.pad_token is not None:
        raise CaseError(
            where,
            expected="padding beside pad_token",
            found="none",
            advice='write padding = "left", or leave pad_token out',
        )
    if prompt.padding is None:
        return
    if prompt.padding not in SIDES:
        raise CaseError(
            where,
            expected=f"padding {_alternatives(SIDES)}",
            found=repr(prompt.padding),
            advice=nearest(prompt.padding, SIDES) or "write one of these",
        )
    if prompt.token_ids is None:
        raise CaseError(
            where,
            expected="token_ids beside padding",
            found="a text, which is one row",
            advice="give rows of token_ids, or leave padding out",
        )
    _at_least(where, "pad_token", prompt.pad_token, 0)


def _check_rows(
    where: str, rows: tuple[tuple[int, ...], ...], length: int | None, *, padded: bool
) -> None:
    lengths = sorted({len(row) for row in rows})
    if not lengths or lengths[0] == 0:
        raise CaseError(
            where,
            expected="at least one token id in every row",
            found="an empty row" if lengths else "no rows",
            advice="write token_ids = [1, 2, 3]",
        )
    if len(lengths) > 1 and not padded:
        raise CaseError(
            where,
            expected="rows of token_ids of one length",
            found=f"lengths {', '.join(map(str, lengths))}",
            advice="make them equally long, or a prompt of each; cases and `parity run` can also "
            'pad them: padding = "left"',
        )
    odd = [token for row in rows for token in row if not 0 <= token <= LARGEST_ID]
    if odd:
        raise CaseError(
            where,
            expected="token ids of 0 and up" + (f", at most {LARGEST_ID}" if odd[0] > 0 else ""),
            found=str(odd[0]) if abs(odd[0]) < 1 << 64 else "a number beyond 64 bits",
            advice="write the ids that the tokenizer gives; -100 marks are labels, not input",
        )
    if length is not None and lengths[0] < length:
        raise CaseError(
            where,
            expected=f"at least length = {length} token ids",
            found=str(lengths[0]),
            advice="give more token ids, or a smaller length",
        )


@dataclass(frozen=True, slots=True)
class Case:
    """What to compare.

    Attributes:
        name: Names the report; the stem of the case file where it says nothing else.
        model: A path, a hub id, or ``package:PKG/FILE``; see :func:`resolve_model`.
        prompts: At least one, of different names.
        engines: Candidates, of different names.
        dtype: Element type of the candidates: float32, bfloat16 or float16.
        threads: Number of CPU threads, None for what the library chooses.
        seed: Seed of whatever draws random numbers, None for none.
        greedy: Number of tokens to choose greedily after each prompt.
        decode: Number of decoding steps with a cache whose taps are compared.
        install: The command that provides the model, for messages.
        probe: Whether to run probes beside the prompts; see :mod:`harness.probe`. With them there
            need be no prompt.
        probe_length: Most tokens of a probe, None for what takes little memory and time.
    """

    name: str
    model: str
    prompts: tuple[Prompt, ...]
    engines: tuple[str, ...] = DEFAULT_ENGINES
    dtype: str = "float32"
    threads: int | None = None
    seed: int | None = None
    greedy: int = 20
    decode: int = 2
    install: str = ""
    probe: bool = False
    probe_length: int | None = None

    def __post_init__(self) -> None:
        where = f"case {self.name!r}"
        for key, value in (("name", self.name), ("model", self.model)):
            if not value.strip():
                raise CaseError(
                    where, expected=f"a {key}", found="an empty one", advice=f"say which {key}"
                )
        if self.prompts or not self.probe:
            _distinct(where, "prompts", [prompt.name for prompt in self.prompts])
        _distinct(where, "engines", self.engines)
        if self.dtype not in DTYPES:
            raise CaseError(
                where,
                expected=f"dtype {_alternatives(DTYPES)}",
                found=repr(self.dtype),
                advice=nearest(self.dtype, DTYPES) or "write one of these",
            )
        for key, number, least in (
            ("threads", self.threads, 1),
            ("seed", self.seed, 0),
            ("greedy", self.greedy, 0),
            ("decode", self.decode, 0),
            ("probe_length", self.probe_length, 2),
        ):
            _at_least(where, key, number, least)
        if self.threads is not None and self.threads > MOST_THREADS:
            raise CaseError(
                where,
                expected=f"threads of {MOST_THREADS} or fewer",
                found=str(self.threads) if self.threads < 1 << 64 else "a number beyond 64 bits",
                advice="write about as many as there are cores, or leave it out",
            )


def resolve_model(case: Case) -> str:
    """Where the case's model is: a path that exists, or a hub id as it stands.

    Raises:
        CaseError: The package, its file or the path is absent; the message says what to install.
    """
    return locate(case.model, install=case.install)


def nearest(word: str, known: tuple[str, ...]) -> str:
    """Advice for a misspelt word: ``did you mean 'engines'?``, empty where nothing is near."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else ""


def _distinct(where: str, key: str, names: Iterable[str]) -> None:
    names = list(names)
    if not names:
        raise CaseError(
            where,
            expected=f"at least one of {key}",
            found="none",
            advice='write [[prompts]] and text = "..." under it'
            if key == "prompts"
            else 'write engines = ["hf:eager"]',
        )
    for name in names:
        if not name.strip():
            raise CaseError(
                where,
                expected=f"a name for each of {key}",
                found="an empty one",
                advice="give it one",
            )
        if names.count(name) > 1:
            raise CaseError(
                where,
                expected=f"{key} of different names",
                found=f"{name!r} {names.count(name)} times",
                advice="rename or remove one",
            )


def _at_least(where: str, key: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise CaseError(
            where,
            expected=f"{key} of {least} or more",
            found=str(value),
            advice=f"write {key} = {least} or more, or leave it out",
        )


def _alternatives(words: tuple[str, ...]) -> str:
    return ", ".join(words[:-1]) + " or " + words[-1]


def safe_stem(name: str) -> str:
    """A case's name as the stem of a file: no separators, no leading dot, never empty."""
    return re.sub(r"[^\w.-]+", "_", name).lstrip(".") or "case"
