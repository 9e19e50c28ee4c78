"""What is not as before besides numbers, in words: config, modules, weights, tokens, warnings."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .records import Facts, Parameter
from .result import FactChange

#: Keys of a config that say who wrote it and not what the model is.
_UNTOLD = frozenset({"transformers_version", "_name_or_path", "_commit_hash", "name_or_path"})

_LAYER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_PLACE = re.compile(r"(?:/[\w.+-]+)+/([\w.-]+\.py):\d+")
_LONGEST = 160
_NULL = "null"


def changes(before: Facts, after: Facts) -> tuple[FactChange, ...]:
    """Everything that differs, what decides by itself first."""
    found = [
        *_mapping("versions", before.versions, after.versions),
        *_machine(before, after),
        *_config(before, after),
        *_named(before, after),
        *_weights(before, after),
        *_ties(before, after),
        *_loading(before, after),
        *_modules(before, after),
        *_generation(before, after),
        *_tokenizer(before, after),
        *_caches(before, after),
        *_warnings(before, after),
    ]
    return tuple(sorted(found, key=lambda each: not each.decides))


def _mapping(
    kind: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    defaults: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
) -> Iterator[FactChange]:
    """What two mappings differ in; null says as much as absence.

    Args:
        kind: Of the changes.
        before: Before.
        after: After.
        defaults: What the library has of its own on each side: a key that one side lacks is of no
            interest where the other one has just that.
    """
    x, y = dict(_flat(before)), dict(_flat(after))
    usual = [dict(_flat(each)) for each in defaults]
    found: dict[str, tuple[str, str]] = {}
    for key in dict.fromkeys([*x, *y]):
        a, b = x.get(key, _NULL), y.get(key, _NULL)
        untold = key.rsplit(".", 1)[-1] in _UNTOLD
        alone = (b == _NULL and usual[0].get(key) == a) or (a == _NULL and usual[1].get(key) == b)
        if a != b and not untold and not alone:
            found[key] = (a, b)
    for key, (a, b) in sorted(found.items(), key=lambda item: _NULL in item[1]):
        yield FactChange(kind, *_moved(key, a, b, found))


def _moved(key: str, a: str, b: str, found: Mapping[str, tuple[str, str]]) -> tuple[str, str, str]:
    """A key that went elsewhere with its value says where to."""
    name = key.rsplit(".", 1)[-1]
    for other, (was, now) in found.items():
        if other == key or other.rsplit(".", 1)[-1] != name:
            continue
        if b == was == _NULL and a == now:
            return key, a, f"moved to {other}"
        if a == now == _NULL and b == was:
            return key, f"was {other}", b
    return key, "" if a == _NULL else _cut(a), "" if b == _NULL else _cut(b)


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and values as text; absent and null are told apart, as a config does."""
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _text(value)


def _text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: _NULL}[value]
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # 10000.0 and 10000 are the same number
    return str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _machine(before: Facts, after: Facts) -> Iterator[FactChange]:
    if before.machine is None or after.machine is None:
        return
    for name in ("platform", "processor", "capability", "threads", "blas"):
        a, b = str(getattr(before.machine, name)), str(getattr(after.machine, name))
        if a != b:
            yield FactChange("machine", name, _cut(a), _cut(b))


def _config(before: Facts, after: Facts) -> Iterator[FactChange]:
    """Keys as parsed; where the file does not have a key, its default has changed."""
    written = {key.split(".")[0] for key, _ in _flat(after.config_as_saved or {})}
    usual = (before.config_defaults or {}, after.config_defaults or {})
    for each in _mapping("config", before.config or {}, after.config or {}, usual):
        kind = "config" if each.what.split(".")[0] in written else "default"
        yield FactChange(kind, each.what, each.before, each.after)


def _generation(before: Facts, after: Facts) -> Iterator[FactChange]:
    """What ``generate`` does unless told otherwise: for this model, and for any."""
    usual = (before.generation_defaults or {}, after.generation_defaults or {})
    own = [
        {key: value for key, value in (facts.generation_config or {}).items() if value is not None}
        for facts in (before, after)
    ]
    yield from _mapping("generation", own[0], own[1], usual)
    a, b = (dict(_flat(each)) for each in usual)
    for key in a:
        # A release that leaves a default open until it generates writes null for it.
        if key in b and key not in _UNTOLD and _NULL not in (a[key], b[key]) and a[key] != b[key]:
            yield FactChange("generation", f"default of {key}", _cut(a[key]), _cut(b[key]))


def _named(before: Facts, after: Facts) -> Iterator[FactChange]:
    for name in ("model_class", "config_class", "attention"):
        a, b = getattr(before, name) or "", getattr(after, name) or ""
        if a != b and a and b:
            yield FactChange(name.replace("_", " "), "chosen", a, b)


def _weights(before: Facts, after: Facts) -> Iterator[FactChange]:
    """Parameters as loaded: the same bytes, perhaps under other names, or others."""
    x = {each.name: each for each in before.parameters}
    y = {each.name: each for each in after.parameters}
    if not x or not y:
        return
    other = [name for name in x if name in y and x[name].digest != y[name].digest]
    for shown, names in _by_pattern(other):
        first = names[0]
        yield FactChange(
            "weights",
            f"{shown} other values",
            _described(x[first]),
            _described(y[first]),
            decides=True,
        )
    gone, new = _only(x, y), _only(y, x)
    kept = Counter(x[name].digest for name in gone) == Counter(y[name].digest for name in new)
    how = "same values under other names" if kept else "not on the other side"
    for shown, _ in _by_pattern(gone):
        yield FactChange("weights", shown, how, "")
    for shown, _ in _by_pattern(new):
        yield FactChange("weights", shown, "", how)


def _only(names: Mapping[str, object], others: Mapping[str, object]) -> list[str]:
    return [name for name in names if name not in others]


def _described(parameter: Parameter) -> str:
    return f"{parameter.dtype} {list(parameter.shape)}, sha256 {parameter.digest}"


def _ties(before: Facts, after: Facts) -> Iterator[FactChange]:
    a, b = ({" = ".join(pair) for pair in facts.tied} for facts in (before, after))
    for pair in sorted(a ^ b):
        tied = ("tied", "") if pair in a else ("", "tied")
        yield FactChange("weights", pair, *tied, decides=True)


def _loading(before: Facts, after: Facts) -> Iterator[FactChange]:
    if before.loading is None or after.loading is None:
        return
    for kind in ("missing", "unexpected", "mismatched"):
        was, now = set(getattr(before.loading, kind)), set(getattr(after.loading, kind))
        for shown, _ in _by_pattern(sorted(was - now)):
            yield FactChange("loading", shown, kind, "")
        for shown, _ in _by_pattern(sorted(now - was)):
            # A tensor that the file lacks is filled with random numbers.
            yield FactChange("loading", shown, "", kind, decides=kind != "unexpected")


def _by_pattern(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Names that differ in the number of a layer alone, as one with a star."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_LAYER.sub("*", name), []).append(name)
    return [
        (f"{pattern} ({len(each)})" if len(each) > 1 else each[0], each)
        for pattern, each in groups.items()
    ]


def _modules(before: Facts, after: Facts) -> Iterator[FactChange]:
    x = {each.path: each.class_name for each in before.modules}
    y = {each.path: each.class_name for each in after.modules}
    if not x or not y:
        return
    for names, side in ((_only(x, y), x), (_only(y, x), y)):
        for shown, paths in _by_pattern(names):
            classes = side[paths[0]]
            yield FactChange("modules", shown, *((classes, "") if side is x else ("", classes)))
    other = [path for path in x if path in y and x[path] != y[path]]
    for shown, paths in _by_pattern(other):
        yield FactChange("modules", shown or "the model", x[paths[0]], y[paths[0]])


def _tokenizer(before: Facts, after: Facts) -> Iterator[FactChange]:
    a, b = before.tokenizer, after.tokenizer
    if a is None or b is None:
        if (a is None) != (b is None):
            was, now = _tokenizer_failure(before), _tokenizer_failure(after)
            yield FactChange("tokenizer", "loads", was, now, decides=True)
        return
    if a.class_name != b.class_name:
        yield FactChange("tokenizer", "class", a.class_name, b.class_name)
    for name in dict.fromkeys([*a.ids, *b.ids]):
        x, y = a.ids.get(name, ()), b.ids.get(name, ())
        if x != y:
            what = f"token ids of {name!r}"
            yield FactChange("tokenizer", what, _ids(x, y), _ids(y, x), decides=True)
    yield from _mapping("tokenizer", a.special, b.special)


def _tokenizer_failure(facts: Facts) -> str:
    """Why the tokenizer of one side did not load; ``yes`` if it did."""
    if facts.tokenizer is not None:
        return "yes"
    failed = next((each for each in facts.failures if each.stage == "tokenizer"), None)
    return _cut(f"{failed.type}: {' '.join(failed.message.split())}") if failed else "no"


def _ids(ids: Sequence[int], others: Sequence[int]) -> str:
    """The ids from the first that differs on."""
    same = next((i for i, (x, y) in enumerate(zip(ids, others, strict=False)) if x != y), None)
    start = min(len(ids), len(others)) if same is None else same
    shown = ", ".join(map(str, ids[start : start + 6]))
    return f"{len(ids)} tokens, from {start} on: {shown or 'none'}"


def _caches(before: Facts, after: Facts) -> Iterator[FactChange]:
    was = {each.name: each.cache_class for each in before.passes}
    for each in after.passes:
        a, b = was.get(each.name), each.cache_class
        if each.name in was and a != b:
            yield FactChange("cache", f"class in pass {each.name}", a or "none", b or "none")


def _warnings(before: Facts, after: Facts) -> Iterator[FactChange]:
    a = dict.fromkeys(_plain(each.text) for each in before.warnings)
    b = dict.fromkeys(_plain(each.text) for each in after.warnings)
    for text in a:
        if text not in b:
            yield FactChange("warnings", _cut(text), "shown", "")
    for text in b:
        if text not in a:
            yield FactChange("warnings", _cut(text), "", "shown")


def _plain(text: str) -> str:
    """A warning without the place in a file that it came from."""
    return " ".join(_PLACE.sub(r"\1", text).split())
