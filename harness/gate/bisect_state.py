"""What a search for the release has judged so far: a file, so that it can go on another time."""

import os
from pathlib import Path

import msgspec

from ..errors import UsageError
from .bisecting import Judgement

FORMAT = "logits-parity/bisect"
VERSION = 1
_ADVICE = "go on with the version of parity that wrote it, or remove it to begin anew"


class Judged(msgspec.Struct, frozen=True):
    """A release and what it came to."""

    release: str
    judgement: Judgement


class BisectState(msgspec.Struct, frozen=True):
    """A search that may go on.

    Attributes:
        package: Of which package the releases are.
        good: The end that is good.
        bad: The end that is bad.
        question: What else a judgement depends on, in the caller's words: the model, its files'
            hash, the dtype. Judgements of another question say nothing.
        releases: Between which it looks, oldest first, as they were listed when it began.
        judged: What was judged, in that order.
    """

    package: str
    good: str
    bad: str
    question: dict[str, str]
    releases: tuple[str, ...]
    judged: tuple[Judged, ...] = ()
    format: str = FORMAT
    version: int = VERSION

    @property
    def judgements(self) -> dict[str, Judgement]:
        """What each release came to that was judged."""
        return {judged.release: judged.judgement for judged in self.judged}

    def with_judged(self, release: str, judgement: Judgement) -> "BisectState":
        """The same with one more."""
        return msgspec.structs.replace(
            self, judged=(*self.judged, Judged(release=release, judgement=judgement))
        )


def save_state(state: BisectState, path: Path) -> None:
    """Write it in one step: whoever is interrupted finds the old one or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(state)) + b"\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load_state(path: Path, *, expected: BisectState) -> BisectState | None:
    """What was judged before.

    Args:
        path: Its file.
        expected: What is searched for now; its releases and judgements do not matter.

    Returns:
        None if there is no such file.

    Raises:
        UsageError: It is damaged, of another version, or of another search.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            str(path),
            expected="a file that can be read",
            found=(error.strerror or str(error)).lower(),
            advice="mend its permissions, or name another file",
        ) from error
    try:
        head = msgspec.json.decode(data, type=dict[str, object])
        found = (head.get("format"), head.get("version"))
        if found != (FORMAT, VERSION):
            raise UsageError(
                str(path),
                expected=f"{FORMAT} version {VERSION}",
                found=f"{found[0]} version {found[1]}",
                advice=_ADVICE,
            )
        state = msgspec.json.decode(data, type=BisectState)
    except msgspec.MsgspecError as error:
        raise UsageError(
            str(path),
            expected="what a search has judged so far",
            found=f"a file that is damaged: {error}",
            advice="remove it to begin anew",
        ) from error
    _same(state, expected, path)
    return state


def _same(state: BisectState, expected: BisectState, path: Path) -> None:
    """Refuse what was judged of something else."""
    before, now = _facts(state), _facts(expected)
    other = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    if other:
        raise UsageError(
            str(path),
            expected="the same search: " + ", ".join(f"{n} {now.get(n, 'none')}" for n in other),
            found=", ".join(f"{name} {before.get(name, 'none')}" for name in other),
            advice="ask the same again, or remove the file to begin anew",
        )


def _facts(state: BisectState) -> dict[str, str]:
    return {"package": state.package, "good": state.good, "bad": state.bad, **state.question}
