"""The model that a run is about: a checkpoint with the reference over its parameters."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint, check_finite, check_tensors, load_checkpoint
from .errors import CheckpointError, EngineError, ParityError, UsageError
from .references_seam import errors as refusals
from .references_seam import families
from .references_seam import model as models
from .result import ModelInfo


@dataclass(frozen=True, slots=True)
class Subject:
    """A checkpoint and the reference over it.

    Attributes:
        checkpoint: Config and memory-mapped parameters.
        model: The reference's model.
    """

    checkpoint: Checkpoint
    model: models.Model

    def info(self) -> ModelInfo:
        """What the run was on; hashes the checkpoint."""
        sizes = [self.checkpoint.tensors[name].size for name in self.model.shapes]
        return ModelInfo(
            origin=self.checkpoint.origin,
            fingerprint=self.checkpoint.fingerprint,
            family=str(self.checkpoint.config["model_type"]),
            parameters=sum(sizes),
            config=dict(self.checkpoint.config),
        )


def load_subject(source: str | Path, defaults: Mapping[str, Any] | None = None) -> Subject:
    """Load a checkpoint and require that the reference reads all of it.

    Args:
        source: A directory, a GGUF file or a hub id.
        defaults: What transformers takes for absent config keys; asked of transformers if None.

    Raises:
        CheckpointError: Files that are absent or damaged; tensors that are missing, unexpected,
            misshapen or not finite; a config that the reference cannot follow.
    """
    checkpoint = load_checkpoint(source)
    if defaults is None:
        from .engines.hf_defaults import default_config

        defaults = default_config(str(checkpoint.config.get("model_type")))
    with refusals_as_errors():
        checkpoint = _with_canonical_names(checkpoint)
        model = models.Model(checkpoint.config, checkpoint.tensors, defaults)
    check_tensors(checkpoint, model.shapes, derived=model.derived)
    check_finite(checkpoint, model.shapes)
    return Subject(checkpoint, model)


def _with_canonical_names(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with parameters under the names that the reference gives them."""
    family = str(checkpoint.config.get("model_type"))
    names = families.canonical_names(family, checkpoint.tensors)
    if all(name == stored for stored, name in names.items()):
        return checkpoint
    return replace(checkpoint, tensors={names[k]: v for k, v in checkpoint.tensors.items()})


@contextmanager
def refusals_as_errors() -> Iterator[None]:
    """Turn what the reference refuses into an error of the harness, with the same words."""
    kinds: dict[type[refusals.RefusedError], type[ParityError]] = {
        refusals.ConfigError: CheckpointError,
        refusals.InputError: UsageError,
        refusals.CacheError: EngineError,
    }
    try:
        yield
    except refusals.RefusedError as error:
        raise kinds[type(error)](
            error.where, expected=error.expected, found=error.found, advice=error.advice
        ) from error
