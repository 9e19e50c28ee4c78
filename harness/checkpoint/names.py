"""Long lists of tensor names, told shortly and without losing a count."""

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def collapse_names(names: Iterable[str], *, limit: int = 8) -> str:
    """Join names; those that differ only in a layer number become one entry.

    Args:
        names: Tensor names, such as `model.layers.0.mlp.up_proj.bias`.
        limit: How many entries are shown before the rest is only counted.

    Returns:
        For example `model.layers.{0-29}.mlp.up_proj.bias (30), lm_head.bias`.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_NUMBER.sub("*", name), []).append(name)
    entries = [_describe_group(pattern, members) for pattern, members in groups.items()]
    shown = entries[:limit]
    hidden = sum(len(members) for members in list(groups.values())[limit:])
    if hidden:
        shown.append(f"and {hidden} more")
    return ", ".join(shown)


def _describe_group(pattern: str, members: list[str]) -> str:
    if len(members) == 1:
        return members[0]
    numbers = [_NUMBER.findall(name) for name in members]
    if all(len(found) == 1 for found in numbers):
        ranges = _describe_ranges(sorted(int(found[0]) for found in numbers))
        return f"{pattern.replace('*', '{' + ranges + '}')} ({len(members)})"
    return f"{pattern} ({len(members)})"


def _describe_ranges(numbers: list[int]) -> str:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
