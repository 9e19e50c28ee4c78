"""What a score runs."""

from dataclasses import dataclass

from ..errors import UsageError

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a score runs.

    Attributes:
        models: Random models of each family that faults are planted into.
        healthy: Healthy random runs, over all families.
        seed: Of the random models.
        families: Families, all if empty.
        dtypes: Dtypes of the candidates, float32 and bfloat16 if empty.
        real: Locator of a real model to plant into as well.
        topic: Group or topic of the faults that are planted, all if empty.

    Raises:
        UsageError: A number below 0 or an unknown dtype.
    """

    models: int = 1
    healthy: int = 40
    seed: int = 0
    families: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    real: str | None = None
    topic: str = ""

    def __post_init__(self) -> None:
        for name, value in (("--models", self.models), ("--healthy", self.healthy)):
            if value < 0:
                raise UsageError(
                    name, expected="0 or more", found=str(value), advice="give a number of runs"
                )
        for dtype in self.dtypes:
            if dtype not in DTYPES:
                raise UsageError(
                    "--dtype",
                    expected=" or ".join(DTYPES),
                    found=repr(dtype),
                    advice="choose one of them",
                )

    def chosen_families(self, known: tuple[str, ...]) -> tuple[str, ...]:
        """The families to run.

        Raises:
            UsageError: One is not known.
        """
        for family in self.families:
            if family not in known:
                raise UsageError(
                    "--family",
                    expected="one of " + ", ".join(known),
                    found=repr(family),
                    advice="choose a family that the reference implements",
                )
        return self.families or known

    def wants(self, topic: str) -> bool:
        """Whether faults of a topic are planted."""
        return not self.topic or f"{topic}.".startswith(f"{self.topic}.")

    @property
    def chosen_dtypes(self) -> tuple[str, ...]:
        """The dtypes to run."""
        return self.dtypes or DTYPES
