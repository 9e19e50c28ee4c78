"""A baseline: what one environment computed, small enough for git, as one side of a comparison.

JSON, one intermediate a line, so that a diff of two baselines shows what moved. Of each
intermediate there is a hash, a summary and a sketch; of the logits the most likely tokens of each
position as well. The weights are not in it, nor any path of the machine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ..errors import UsageError
from .compact import pack_modules, pack_parameters, unpack_modules, unpack_parameters
from .digest import Digest, pack, unpack
from .logits import PositionLogits
from .plan import Plan, incomplete
from .records import Facts
from .side import Side, Tap, without_taps

FORMAT = "logits-parity/baseline"
VERSION = 1

#: Length of the row that begins a chunk: name of the pass, number of the chunk.
_SECTION = 2

_ADVICE = "write it again: parity baseline MODEL -o FILE"


@dataclass(frozen=True, slots=True)
class Refresh:
    """Why a baseline took the place of an earlier one.

    Attributes:
        reason: In the words of whoever did it.
        verdict: What the gate said of the two.
        summary: The same in words.
        before: Versions that the earlier one was of.
    """

    reason: str
    verdict: str
    summary: str
    before: dict[str, str]


@dataclass(frozen=True, slots=True)
class Head:
    """Everything of a baseline but the numbers.

    Attributes:
        model: The model as it was named; a path only if it was given as one.
        fingerprint: Of its config and weights.
        plan: What was run.
        facts: What the libraries said of it, without intermediates.
        history: Earlier refreshes, the latest last.
    """

    model: str
    fingerprint: str
    plan: Plan
    facts: Facts
    history: tuple[Refresh, ...] = ()


class Baseline:
    """A baseline as one side of a comparison.

    Args:
        head: Everything but the numbers.
        taps: All intermediates, in order.
        digests: Of each key of those.
        logits: Of each key of a logits tap.
    """

    def __init__(
        self,
        head: Head,
        taps: Sequence[Tap],
        digests: Mapping[str, Digest],
        logits: Mapping[str, tuple[PositionLogits, ...]],
    ) -> None:
        self.head = head
        self.facts = head.facts
        self.taps = tuple(taps)
        self._digests = digests
        self._logits = logits

    @classmethod
    def of(cls, side: Side, head: Head) -> "Baseline":
        """Keep what a baseline keeps of a side that has every array."""
        return cls(
            replace(head, facts=_portable(without_taps(side.facts))),
            side.taps,
            {tap.key: side.digest(tap.key) for tap in side.taps},
            {tap.key: side.logits(tap) for tap in side.taps if tap.role == "logits"},
        )

    def under(self, head: Head) -> "Baseline":
        """The same numbers under another head."""
        return Baseline(head, self.taps, self._digests, self._logits)

    def digest(self, key: str) -> Digest:
        """Hash, summary and sketch of an intermediate."""
        return self._digests[key]

    def array(self, key: str) -> None:
        """None: a baseline keeps no arrays."""

    def logits(self, tap: Tap) -> tuple[PositionLogits, ...]:
        """What is known of the logits of each position of a chunk."""
        return self._logits[tap.key]


def _portable(facts: Facts) -> Facts:
    """Without the folder that the config was read from."""
    if facts.config is None:
        return facts
    config = {key: value for key, value in facts.config.items() if key != "_name_or_path"}
    return replace(facts, config=config)


def to_json(baseline: Baseline) -> bytes:
    """The file: one JSON object, a line for each intermediate and for each position of logits."""
    head = msgspec.to_builtins(baseline.head)
    lines = [f'"format": "{FORMAT}"', f'"version": {VERSION}']
    lines += [f'"{key}": {_one_line(value)}' for key, value in head.items() if key != "facts"]
    lines.append(_block("facts", _facts_lines(head["facts"]), brackets="{}"))
    lines.append(_block("taps", _tap_lines(baseline)))
    lines.append(_block("logits", map(_one_line, _logits_rows(baseline))))
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def from_json(data: bytes, *, where: str) -> Baseline:
    """Read a baseline.

    Raises:
        UsageError: It is none, is damaged, or is of a version that this release does not read.
    """
    try:
        raw = msgspec.json.decode(data)
        found = (raw.get("format"), raw.get("version")) if isinstance(raw, dict) else None
        if found != (FORMAT, VERSION):
            raise UsageError(
                where,
                expected=f"format {FORMAT} version {VERSION}",
                found=f"format {found[0]} version {found[1]}" if found else "no JSON object",
                advice=_ADVICE,
            )
        facts = raw["facts"]
        facts["modules"] = unpack_modules(facts["modules"])
        facts["parameters"] = unpack_parameters(facts["parameters"])
        head = msgspec.convert({key: raw[key] for key in Head.__dataclass_fields__}, Head)
        taps, digests = _read_taps(raw["taps"], head.facts)
        logits = _read_logits(raw["logits"])
        lacking = incomplete(head.plan, taps, logits)
        if lacking:
            raise ValueError(lacking)
        return Baseline(head, taps, digests, logits)
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            where,
            expected="a baseline that `parity baseline` wrote",
            found=f"{type(error).__name__}: {error}"[:300],
            advice=_ADVICE,
        ) from None


def _one_line(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _block(name: str, lines: Any, *, brackets: str = "[]") -> str:
    body = ",\n".join(f"  {line}" for line in lines)
    return f'"{name}": {brackets[0]}\n{body}\n{brackets[1]}'


def _facts_lines(facts: Mapping[str, Any]) -> list[str]:
    packed = {
        **facts,
        "modules": pack_modules(facts["modules"]),
        "parameters": pack_parameters(facts["parameters"]),
    }
    return [f'"{key}": {_one_line(value)}' for key, value in packed.items()]


def _tap_lines(baseline: Baseline) -> Iterator[str]:
    """For each chunk of each pass its name and number, then a line for each intermediate."""
    section, seen = None, set[str]()
    for tap in baseline.taps:
        if (tap.passed, tap.chunk) != section:
            section = (tap.passed, tap.chunk)
            yield _one_line(list(section))
        shared = tap.key if tap.key != _key(tap.passed, tap.chunk, tap.name) else None
        row: list[object] = [tap.name, _short(tap.noise, 3), tap.scale, shared]
        if tap.key not in seen:
            seen.add(tap.key)
            row += [*_kept(tap, baseline.digest(tap.key))]
        yield _one_line(row)


def _kept(tap: Tap, kept: Digest) -> tuple[object, ...]:
    return (
        list(tap.shape),
        tap.dtype,
        kept.hash,
        _short(kept.norm),
        _short(kept.largest),
        kept.not_finite,
        pack(kept.sketch),
    )


def _key(passed: str, chunk: int, name: str) -> str:
    return f"{passed}/{chunk}/{name}"


def _read_taps(rows: Sequence[Any], facts: Facts) -> tuple[list[Tap], dict[str, Digest]]:
    classes = {module.path: module.class_name for module in facts.modules}
    digests: dict[str, Digest] = {}
    stored: dict[str, tuple[tuple[int, ...], str]] = {}
    taps, passed, chunk = [], "", 0
    for row in rows:
        if len(row) == _SECTION:
            passed, chunk = row
            continue
        name, noise, scale, shared, *more = row
        key = shared or _key(passed, chunk, name)
        if more:
            shape, dtype, hash_, norm, largest, not_finite, packed = more
            stored[key] = (tuple(shape), dtype)
            digests[key] = Digest(hash_, norm, largest, not_finite, unpack(packed))
        shape, dtype = stored[key]
        module, role = parts_of(name)
        taps.append(
            Tap(
                passed=passed,
                chunk=chunk,
                name=name,
                module=module,
                cls=classes.get(module, ""),
                role=role,
                shape=shape,
                dtype=dtype,
                noise=noise,
                scale=scale,
                key=key,
            )
        )
    return taps, digests


def parts_of(tap: str) -> tuple[str, str]:
    """Path of the module and role, from a tap's name."""
    path = tap.split("#")[0]
    if path == "logits":
        return "", "logits"
    module, colon, role = path.partition(":")
    if colon:
        return module, role
    return (module.removesuffix(".in"), "in") if module.endswith(".in") else (module, "out")


def _logits_rows(baseline: Baseline) -> list[list[object]]:
    return [
        [
            tap.key,
            each.row,
            each.position,
            list(each.token_ids),
            [_short(value, 8) for value in each.logits],
            _short(each.log_sum, 8),
            pack(each.sketch),
        ]
        for tap in baseline.taps
        if tap.role == "logits"
        for each in baseline.logits(tap)
    ]


def _read_logits(rows: Sequence[Any]) -> dict[str, tuple[PositionLogits, ...]]:
    found: dict[str, tuple[PositionLogits, ...]] = {}
    for key, row, position, ids, logits, log_sum, packed in rows:
        each = PositionLogits(row, position, tuple(ids), tuple(logits), log_sum, unpack(packed))
        found[key] = (*found.get(key, ()), each)
    return found


def _short(value: float | None, digits: int = 5) -> float | None:
    """So many digits: what is judged by it is judged within factors, or by hash."""
    return None if value is None else float(f"{value:.{digits}g}")
