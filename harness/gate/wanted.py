"""What an environment must have: releases, as a person writes them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ..errors import UsageError

INSTALLED = "installed"
"""The word for the environment that runs this, as it is."""
DEFAULT_PACKAGE = "transformers"
"""What a version alone is a version of."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Releases that an environment must have; everything else in it is as installed here.

    Attributes:
        requirements: ``name==version`` each, names as the index writes them, transformers first and
            the others by name; none for the installed environment.
    """

    requirements: tuple[str, ...]

    @property
    def installed(self) -> bool:
        """Whether it is the environment that runs this."""
        return not self.requirements

    @property
    def releases(self) -> dict[str, str]:
        """Version of each package that is asked for."""
        pairs = (requirement.partition("==") for requirement in self.requirements)
        return {name: version for name, _, version in pairs}

    def __str__(self) -> str:
        """As :func:`parse_wanted` reads it."""
        return ",".join(self.requirements) or INSTALLED


def parse_wanted(text: str) -> Wanted:
    """Read what a person asks for.

    Args:
        text: ``5.0.0`` (of transformers), ``torch==2.12.0``, several with commas
            (``transformers==5.0.0,tokenizers==0.22.1``), or ``installed``.

    Raises:
        UsageError: It is none of these, or asks for one package twice.
    """
    if text.strip() == INSTALLED:
        return Wanted(())
    found: dict[str, str] = {}
    for part in text.split(","):
        name, version = _release(part.strip(), text)
        if name in found:
            raise _refused(text, f"{name} twice", "ask for one release of each package")
        found[name] = version
    names = sorted(found, key=lambda name: (name != DEFAULT_PACKAGE, name))
    return Wanted(tuple(f"{name}=={found[name]}" for name in names))


def _release(part: str, text: str) -> tuple[str, str]:
    """Name and version of one part."""
    try:
        return DEFAULT_PACKAGE, str(Version(part))
    except InvalidVersion:
        pass
    try:
        requirement = Requirement(part)
    except InvalidRequirement:
        raise _refused(text, repr(part) if part else "nothing between commas") from None
    if requirement.url or requirement.marker or requirement.extras:
        raise _refused(text, repr(part), "leave out addresses, markers and extras")
    specifiers = list(requirement.specifier)
    if len(specifiers) != 1 or specifiers[0].operator != "==":
        raise _refused(text, repr(part), "name one release with ==; ranges mean another tomorrow")
    try:
        return canonicalize_name(requirement.name), str(Version(specifiers[0].version))
    except InvalidVersion:
        raise _refused(text, repr(part), "write the version out, without *") from None


def _refused(text: str, found: str, advice: str = "write for example 5.0.0") -> UsageError:
    return UsageError(
        f"versions {text!r}",
        expected="a release of transformers (5.0.0), releases by name"
        f" (transformers==5.0.0,tokenizers==0.22.1) or {INSTALLED!r}",
        found=found,
        advice=advice,
    )


def holding(requires: Iterable[str]) -> Iterator[Requirement]:
    """Requirements that hold here: neither for extras, nor for other systems, nor unreadable."""
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # old packages wrote what is not allowed any more
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def unsatisfied(requires: Iterable[str], versions: Mapping[str, str]) -> list[str]:
    """Which requirements of a package do not hold.

    Args:
        requires: As its metadata lists them; those for extras, or for other systems, are left out.
        versions: Version of each package that is there, by the name that the index uses.
    """
    missing = []
    for requirement in holding(requires):
        version = versions.get(canonicalize_name(requirement.name))
        if version is None:
            missing.append(f"{requirement}, which is not there")
        elif not requirement.specifier.contains(version, prereleases=True):
            missing.append(f"{requirement}, not {version}")
    return missing


def closure(roots: Iterable[str], requires: Mapping[str, Iterable[str]]) -> set[str]:
    """Packages that are needed by some, and these.

    Args:
        roots: Names to begin with; those that are not there are left out.
        requires: What each package that is there requires, as its metadata lists it.
    """
    found: set[str] = set()
    waiting = [canonicalize_name(name) for name in roots]
    while waiting:
        name = waiting.pop()
        if name in found or name not in requires:
            continue
        found.add(name)
        waiting += [canonicalize_name(r.name) for r in holding(requires[name])]
    return found


def near(version: str, releases: Iterable[str], count: int = 4) -> list[str]:
    """Releases next to one that is not among them, oldest first."""
    wanted = Version(version)
    ordered = sorted(v for v in map(_version, releases) if v is not None)
    older = [v for v in ordered if v < wanted][-(count // 2) :]
    newer = [v for v in ordered if v > wanted]
    return [str(v) for v in (*older, *newer[: count - len(older)])]


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def readable(wanted: Wanted) -> str:
    """Part of a folder's name that says what is in it."""
    words = "-".join(requirement.replace("==", "-") for requirement in wanted.requirements)
    return re.sub(r"[^A-Za-z0-9._-]", "_", words)[:80]
