"""The document of all laws: what each says, how close engines come to it, what it catches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..environment import versions
from .catalogue import laws
from .law import GROUPS, Law
from .ledger import BREAKS, Break
from .makers import DEFAULTS, make_of
from .measure import Tried, caught, try_all
from .models import families
from .search import PROFILES

if TYPE_CHECKING:
    from ..engines.mutants.mutant import Mutant

#: Examples of each mutant that are tried for each law.
_EXAMPLES = 6


@dataclass(frozen=True, slots=True)
class Measured:
    """What is measured for the document.

    Attributes:
        tried: Laws on healthy engines.
        caught: Ids of the laws that break, by mutant.
        versions: Of the packages.
    """

    tried: Sequence[Tried]
    caught: Mapping[str, Sequence[str]]
    versions: Mapping[str, str]


def write_document(path: Path, note: Callable[[str, int, int], None]) -> None:
    """Measure all laws and write the document.

    Args:
        path: Markdown file.
        note: Called with what is being done, how much is done and how much there is.
    """
    from ..engines.mutants.catalogue import mutants

    every, made = laws(), mutants()
    tried: list[Tried] = []
    for one in try_all(every, DEFAULTS, make=make_of, families=families(), profile=PROFILES["ci"]):
        tried.append(one)
        note(f"{one.law} {one.family} {one.engine}", len(tried), 0)
    profile = replace(PROFILES["ci"], examples=_EXAMPLES)
    found = {}
    for done, mutant in enumerate(made):
        note(f"mutant {mutant.name}", done, len(made))
        groups = {law.group for law in every if mutant.name in law.mutants}
        near = [law for law in every if law.group in groups]
        found[mutant.name] = caught(near, mutant.name, mutant.make, mutant.family, profile)
    path.write_text(document(every, made, BREAKS, Measured(tried, found, versions())))


def document(
    every: Sequence[Law], made: "Sequence[Mutant]", broken: Sequence[Break], measured: Measured
) -> str:
    """The document, as Markdown."""
    named = ", ".join(f"{name} {version}" for name, version in measured.versions.items())
    parts = [
        "# The laws, measured",
        "",
        "Written by `parity laws table --markdown docs/laws-table.md`; how to use laws:"
        f" [laws.md](laws.md). Measured with {named}, on the CPU in float32.",
        "",
        "*Closest* is the largest difference that a healthy engine came to, in parts of what the"
        " law allows: 1 would break it. Exact laws have 0.",
    ]
    for group, title in GROUPS.items():
        parts += ["", f"## {title}"]
        for law in (law for law in every if law.group == group):
            parts += ["", *_law(law, measured)]
    parts += ["", *_mutants(made, every, measured), "", *_breaks(broken)]
    return "\n".join(parts) + "\n"


def _law(law: Law, measured: Measured) -> list[str]:
    needs = ", ".join([*(f"`{need}`" for need in law.needs), *(f"tap `{t}`" for t in law.taps)])
    lines = [f"### {law.id}", "", law.says, "", f"- Source: {law.source}"]
    lines += [f"- Allowed: {law.bound}"]
    lines += [f"- Needs: {needs}"] if needs else []
    return [*lines, f"- Closest: {_closest(law, measured.tried)}"]


def _closest(law: Law, tried: Sequence[Tried]) -> str:
    cells = []
    for engine in DEFAULTS:
        ran = [t.outcome for t in tried if (t.law, t.engine) == (law.id, engine) and t.outcome]
        if any(outcome.broken for outcome in ran):
            cells.append(f"{engine} **broken**")
        elif ran:
            examples = sum(outcome.tried for outcome in ran)
            worst = max(outcome.worst for outcome in ran)
            cells.append(f"{engine} {worst:.2g} ({examples} examples)")
        notes = {t.lacks for t in tried if (t.law, t.engine) == (law.id, engine) and not t.outcome}
        cells += [f"{engine} {note}" for note in sorted(notes) if note.startswith("known break")]
    return ", ".join(cells) or "no engine of ours can be asked"


def _mutants(made: "Sequence[Mutant]", every: Sequence[Law], measured: Measured) -> list[str]:
    lines = [
        "## What breaks them",
        "",
        "Engines with one mistake each. A law in bold is one that must catch the mutant, which a"
        f" test shows; the others are of the same group, and did so within {_EXAMPLES} examples.",
        "",
        "| mutant | what it does wrong | caught by |",
        "|---|---|---|",
    ]
    for mutant in made:
        must = [law.id for law in every if mutant.name in law.mutants]
        also = [law for law in measured.caught.get(mutant.name, ()) if law not in must]
        names = ", ".join([*(f"**{law}**" for law in must), *also])
        where = f"{mutant.family}, {mutant.attention}"
        lines.append(f"| {mutant.name} | {mutant.says} ({where}) | {names} |")
    return lines


def _breaks(broken: Sequence[Break]) -> list[str]:
    lines = [
        "## What released engines break",
        "",
        "Each has an example that must still break the law (`cases/test_ledger.py`), so that a"
        " release that mends it is noticed.",
    ]
    for entry in broken:
        link = f" [{entry.link.rpartition('/')[2]}]({entry.link})" if entry.link else ""
        lines += ["", f"- **{entry.name}** ({entry.law}; {', '.join(entry.engines)};"]
        lines[-1] += f" {entry.releases}): {entry.says}{link}"
    return lines
