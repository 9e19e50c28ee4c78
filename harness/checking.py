"""The Python entry: check model objects in memory against a checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .case import Case, Prompt, safe_stem
from .engines.protocol import Engine
from .engines.registry import make_engine, parse_name
from .errors import UsageError
from .locate import locate
from .pipeline import compare
from .prompts import tokens_of
from .result import RunResult
from .subject import Subject, load_subject
from .unfinished import OnStop


def check(
    engine: Any,
    *,
    checkpoint: str | Path,
    token_ids: Sequence[Sequence[int]] | None = None,
    prompt: str | Mapping[str, str] | None = None,
    padding: str | None = None,
    pad_token: int | None = None,
    dtype: str | None = None,
    decode: int = 0,
    greedy: int = 0,
    probe: bool = False,
    name: str = "check",
    report_dir: str | Path | None = None,
    on_stop: OnStop | None = None,
) -> RunResult:
    """Compare engines with the independent reference over a checkpoint's files.

    Args:
        engine: A transformers model in memory, patched or fine-tuned as it may be; an engine, for
            example ``HFEngine(model, name="mine")``; the name of one that is to be loaded from
            the checkpoint (``hf:sdpa``); or a list of these, of different names.
        checkpoint: What the engines claim to compute: an HF directory, a GGUF file, a hub id or
            ``package:PKG/FILE``.
        token_ids: One row of ids a sequence; rows of equal length, or with ``padding``.
        prompt: A text for the checkpoint's tokenizer in place of token ids, or several by name.
        padding: ``left`` or ``right``, the side on which shorter rows are filled up.
        pad_token: What they are filled up with: the config's pad_token_id, or 0, if not given.
        dtype: Of engines that are given by name: float32 if not given.
        decode: Number of decoding steps after each prompt that are compared too.
        greedy: Number of greedy tokens to compare; only with one row.
        probe: Whether to run probes as well, or alone; see :mod:`harness.probe`.
        name: Of the case in the result.
        report_dir: Folder that gets ``NAME.html`` and ``NAME.json``, also where an exception or an
            interrupt ends the comparison: then of what was compared by then.
        on_stop: Called with the result of what was compared by then where the comparison ends like
            this, before the exception goes on. Not called where nothing was compared.

    Returns:
        The result; ``.verdict``, ``.first_divergence.tap`` and ``.comparisons`` say most.

    Raises:
        ParityError: The checkpoint, an engine, the prompt or the token ids cannot be used; the
            report cannot be written.
    """
    write = None if report_dir is None else _writer(Path(report_dir), name)
    told = [each for each in (write, on_stop) if each is not None]

    def stop(known: RunResult) -> None:
        for tell in told:
            tell(known)

    alone = probe and token_ids is None and prompt is None
    prompts = () if alone else _prompts(token_ids, prompt, padding, pad_token)
    source = locate(str(checkpoint)) if str(checkpoint).startswith("package:") else checkpoint
    subject = load_subject(source)
    listed = isinstance(engine, Sequence) and not isinstance(engine, str)
    engines = [_engine(x, subject, dtype) for x in (engine if listed else [engine])]
    case = Case(
        name=name,
        model=str(checkpoint),
        prompts=prompts,
        engines=tuple(e.name for e in engines),
        dtype=engines[0].dtype if engines else "float32",
        greedy=greedy,
        decode=decode,
        probe=probe,
    )
    tokens = [tokens_of(subject, p) for p in prompts]
    result = compare(subject, engines, tokens, case, on_stop=stop if told else None)
    if write is not None:
        write(result)
    return result


def _writer(folder: Path, name: str) -> Callable[[RunResult], None]:
    """What writes the report of a comparison of this name."""

    def write(result: RunResult) -> None:
        from .report.files import write_report

        write_report(result, folder, stem=safe_stem(name))

    return write


def _prompts(
    token_ids: Sequence[Sequence[int]] | None,
    prompt: str | Mapping[str, str] | None,
    padding: str | None,
    pad_token: int | None,
) -> tuple[Prompt, ...]:
    if (token_ids is None) == (prompt is None):
        raise UsageError(
            "check",
            expected="exactly one of token_ids and prompt",
            found="neither" if prompt is None else "both",
            advice='give token_ids=[[1, 2, 3]], or prompt="a text"',
        )
    if token_ids is not None:
        rows = tuple(tuple(int(token) for token in row) for row in token_ids)
        return (Prompt("tokens", token_ids=rows, padding=padding, pad_token=pad_token),)
    texts = {"prompt": prompt} if isinstance(prompt, str) else dict(prompt or {})
    return tuple(
        Prompt(name, text=text, padding=padding, pad_token=pad_token)
        for name, text in texts.items()
    )


def _engine(given: Any, subject: Subject, dtype: str | None) -> Engine:
    """An engine as it is, one by name, or one around a model in memory."""
    if isinstance(given, str):
        name = parse_name(given, dtype=dtype or "float32")
        return make_engine(name, path=subject.checkpoint.path, model=subject.model, threads=None)
    if hasattr(given, "open"):
        engine: Engine = given
        return engine
    if not hasattr(given, "named_parameters"):
        raise UsageError(
            "check",
            expected="a transformers model, an engine or the name of one",
            found=type(given).__name__,
            advice='give the model itself, HFEngine(model), or a name such as "hf:sdpa"',
        )
    from .engines.hf import HFEngine

    return HFEngine(given)
