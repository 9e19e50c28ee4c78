"""Engines for laws, by name: ours, and anybody's by the name of a function."""

import importlib
from pathlib import Path

from ..engines.protocol import Engine
from ..engines.registry import KINDS, EngineName, make_engine, parse_name
from ..errors import EngineError, UsageError
from ..subject import load_subject
from .candidate import Make

#: Engines that laws are tried on where none is named.
DEFAULTS = ("hf:eager", "hf:sdpa", "reference")


def make_of(name: str, *, dtype: str = "float32") -> Make:
    """What loads an engine from an HF directory.

    Args:
        name: ``hf:eager``, ``reference``, or ``package.module:function`` of your own; the function
            takes the folder and returns an engine.
        dtype: Of engines that are ours.

    Raises:
        UsageError: No such engine or function.
    """
    kind, _, function = name.partition(":")
    if kind in KINDS or not function or not kind.replace(".", "").isidentifier():
        parsed = parse_name(name, dtype=dtype)
        if parsed.kind == "hf":  # which takes some configs that the reference refuses
            return _transformers(parsed)
        return lambda folder: make_engine(
            parsed, path=folder, model=load_subject(folder).model, threads=None
        )
    return _imported(name, kind, function)


def _transformers(name: EngineName) -> Make:
    def make(folder: Path) -> Engine:
        from ..engines.hf import HFEngine

        return HFEngine.load(folder, attention=name.attention, dtype=name.dtype, name=name.text)

    return make


def _imported(name: str, module: str, function: str) -> Make:
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            "engine",
            expected="hf:<attention implementation>, reference, or package.module:function of "
            "something that can be imported",
            found=f"{name!r} ({type(error).__name__}: {error})",
            advice="for example hf:eager; a function of your own must be on sys.path, in pytest "
            "with --import-mode or pythonpath",
        ) from error

    def make(folder: Path) -> Engine:
        engine: Engine = found(folder)
        for part in ("name", "dtype", "open"):
            if not hasattr(engine, part):
                raise EngineError(
                    f"engine {name}",
                    expected="an engine: an object with name, dtype, unavailable, parameters, "
                    "info and open",
                    found=f"{type(engine).__name__} without {part}",
                    advice="see harness/engines/protocol.py, or wrap a model: HFEngine(model)",
                )
        return engine

    return make
