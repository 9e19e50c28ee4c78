"""Models that laws are tried on: random ones, small and printable, and checkpoints."""

import functools
import json
import random
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ..checkpoint import load_checkpoint
from ..errors import UsageError
from ..locate import locate
from .candidate import Candidate, Make
from .sizes import Sizes

#: Random configs of each family that are tried in a short search; the first is the plainest.
POOL = 6

#: So many models stay on disk and in memory.
_KEPT = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model to try a law on: random weights in a config, or a checkpoint.

    Attributes:
        family: ``model_type`` of a random model, empty for a checkpoint.
        config: Arguments of its config.
        seed: Of its weights.
        folder: HF directory of a checkpoint.
    """

    family: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    folder: str = ""

    @property
    def key(self) -> str:
        """The same for the same model."""
        return json.dumps([self.family, self.config, self.seed, self.folder], sort_keys=True)


class _First(random.Random):
    """Always the first choice: the plainest config that can be drawn."""

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def random(self) -> float:
        return 0.999

    def randrange(self, *args: Any) -> int:
        return 0


def pooled(family: str, index: int) -> Model:
    """One of a family's models of a short search, by its number from 0."""
    from ..engines import random_models

    draw = _First() if index == 0 else random.Random(f"law {family} {index}")
    return Model(family=family, config=random_models.draw_config(family, draw), seed=index)


def pool(family: str) -> list[Model]:
    """All models of a short search of a family."""
    return [pooled(family, index) for index in range(POOL)]


def families() -> tuple[str, ...]:
    """Families that random models can be made of."""
    from ..engines import random_models

    return random_models.families()


def chosen_families(names: Sequence[str]) -> tuple[str, ...]:
    """Families by name, all of them if none is named.

    Raises:
        UsageError: One is not known.
    """
    known = families()
    for name in names:
        if name not in known:
            raise UsageError(
                "--family",
                expected="one of " + ", ".join(known),
                found=repr(name),
                advice="give a model of another family with --model",
            )
    return tuple(names) or known


def folder_of(model: str) -> str:
    """HF directory of a checkpoint that is named in any way: empty for empty.

    Args:
        model: A directory, a GGUF file, a hub id or ``package:PKG/FILE``.

    Raises:
        CheckpointError: It cannot be found or read.
    """
    if not model:
        return ""
    source = locate(model) if model.startswith("package:") else model
    return str(load_checkpoint(source).path.absolute())


def fits(engine: str, model: Model) -> bool:
    """Whether an engine of ours runs models of a family: not all have fused attention."""
    if not engine.startswith("hf:") or engine == "hf:eager":
        return True
    from ..engines import random_models

    return engine.removeprefix("hf:") in random_models.attentions_of(sizes_of(model).family)


def drawn(family: str) -> st.SearchStrategy[Model]:
    """Any model of a family; shrinks to the first of each choice."""
    from ..engines import random_models

    draws = st.randoms(use_true_random=False)
    configs = draws.map(lambda draw: random_models.draw_config(family, draw))
    return st.builds(
        lambda config, seed: Model(family=family, config=config, seed=seed),
        configs,
        st.integers(0, 1 << 20),
    )


class Shelf:
    """Candidates by their model, so that a model is written and loaded once.

    Args:
        make: Loads the engine.
    """

    def __init__(self, make: Make) -> None:
        self._make = make
        self._root = tempfile.TemporaryDirectory(prefix="parity-laws-")
        self._candidates: OrderedDict[str, Candidate] = OrderedDict()
        self._written = 0

    def candidate(self, model: Model) -> Candidate:
        """The engine over a model."""
        if model.key in self._candidates:
            self._candidates.move_to_end(model.key)
            return self._candidates[model.key]
        folder = Path(model.folder)
        if model.family:
            from ..engines import random_models

            folder = Path(self._root.name) / str(self._written)
            self._written += 1
            random_models.save_model(folder, model.family, model.config, model.seed)
        made = self._candidates[model.key] = Candidate(folder, self._make)
        if len(self._candidates) > _KEPT:
            _, oldest = self._candidates.popitem(last=False)
            oldest.close()
        return made

    def close(self) -> None:
        """Remove all that was written."""
        for candidate in self._candidates.values():
            candidate.close()
        self._candidates.clear()
        self._root.cleanup()


def sizes_of(model: Model) -> Sizes:
    """Sizes of a model that may not be written yet."""
    return _sizes_by(model.key)


@functools.lru_cache(maxsize=4096)
def _sizes_by(key: str) -> Sizes:
    from ..engines.hf_defaults import whole_config

    family, config, _, folder = json.loads(key)
    if folder:
        config = json.loads((Path(folder) / "config.json").read_text())
    return Sizes(whole_config({**config, **({"model_type": family} if family else {})}))
