"""Does a change of a repository touch the libraries that numbers come from?

The CI action runs this file as a script before anything is installed, so it needs the standard
library alone. Whatever it cannot tell counts as touched: a gate too many costs minutes, one too few
lets another model through.

    python harness/ci_changed.py BASE [--package NAME ...] [--file GLOB ...]

It prints what it found, and ``touched=true`` or ``touched=false`` into ``$GITHUB_OUTPUT``.
"""

import argparse
import fnmatch
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence

PACKAGES = ("transformers", "torch", "tokenizers", "safetensors")

#: Files that say which releases are installed: by name, wherever they are.
FILES = (
    "*requirements*.txt",
    "*requirements*.in",
    "requirements/*.txt",
    "*/requirements/*.txt",
    "requirements/*.in",
    "*/requirements/*.in",
    "*constraints*.txt",
    "pyproject.toml",
    "setup.cfg",
    "setup.py",
    "uv.lock",
    "poetry.lock",
    "pdm.lock",
    "pylock*.toml",
    "Pipfile",
    "Pipfile.lock",
    "environment*.yml",
    "environment*.yaml",
)

#: Names under which conda has them.
_OTHER_NAMES = {"torch": ("pytorch", "pytorch-cpu", "pytorch-gpu", "pytorch-cuda")}

#: Lines that decide which build of a release is installed: of torch there are several.
_INDEX = re.compile(r"^(-i|--index-url|--extra-index-url|-f|--find-links)\b")

_NEVER = "0" * 40


class CannotTell(Exception):
    """There is nothing to compare with."""


def touched(
    base: str, packages: Sequence[str] = PACKAGES, files: Sequence[str] = FILES
) -> list[str]:
    """Which packages a change touches, and where.

    Args:
        base: The commit to compare with.
        packages: Names of packages.
        files: Patterns of names or paths of files.

    Returns:
        Lines of text, one for each package and file.

    Raises:
        CannotTell: The commit is not there, or is none.
    """
    base = _commit(base)
    found = []
    for path in _changed(base):
        name = path.rsplit("/", 1)[-1]
        if any(fnmatch.fnmatchcase(name, p) or fnmatch.fnmatchcase(path, p) for p in files):
            before, after = _content(base, path), _content("HEAD", path)
            for package in packages:
                if said_of(package, name, before) != said_of(package, name, after):
                    found.append(f"{package} in {path!a}")
    return found


def said_of(package: str, name: str, text: str | None) -> set[str]:
    """What a file says of a package: a set of texts, empty for nothing.

    Args:
        package: Its name.
        name: The file's, without folders.
        text: Its content, None where it is absent.
    """
    if text is None:
        return set()
    pattern = _pattern(package)
    try:
        if name.endswith(".json") or name == "Pipfile.lock":
            return set(_in_document(json.loads(text), pattern))
        if name.endswith((".toml", ".lock")) or name == "Pipfile":
            return set(_in_document(tomllib.loads(text), pattern))
    except ValueError:  # no TOML or JSON: its text has to do
        pass
    if name.endswith(".lock"):  # versions stand on other lines than names
        return {text}
    return set(_in_lines(text, pattern, index=package == "torch"))


def _pattern(package: str) -> re.Pattern[str]:
    names = (package, *_OTHER_NAMES.get(package, ()))
    spelt = "|".join(re.escape(name).replace(r"\-", "[-_.]") for name in names)
    return re.compile(rf"(?<![\w.-])(?:{spelt})(?!\w|[-.][a-z])", re.IGNORECASE)


def _in_lines(text: str, pattern: re.Pattern[str], *, index: bool) -> Iterator[str]:
    """Lines that name a package, with those that they go on in; comments left out."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        words = re.sub(r"(^|\s)#.*", "", line).strip()
        if pattern.search(words) or (index and _INDEX.match(words)):
            yield " ".join(words.split())


def _in_document(node: object, pattern: re.Pattern[str], key: str = "") -> Iterator[str]:
    """Entries of a TOML or JSON document that are about a package."""
    if isinstance(node, dict):
        for name, value in node.items():
            if pattern.fullmatch(name):
                yield _text(name, value)
            else:
                yield from _in_document(value, pattern, name)
    elif isinstance(node, list):
        for value in node:
            if key in ("package", "packages") and isinstance(value, dict):
                # An entry of a lock file; what others need is not what is installed.
                if pattern.fullmatch(str(value.get("name"))):
                    yield _text(key, value)
            else:
                yield from _in_document(value, pattern, key)
    elif isinstance(node, str) and pattern.match(node):
        yield _text(key, node)


def _text(key: str, value: object) -> str:
    return f"{key}: {json.dumps(value, sort_keys=True, default=str)}"


def _commit(base: str) -> str:
    """The commit that a change began at, by its hash.

    Where history is cut short there is none in common: then the whole of the difference counts.
    """
    if not base or base == _NEVER:
        raise CannotTell("there is no commit to compare with")
    found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", base + "^{commit}")
    if found is None:
        raise CannotTell(f"the commit {base!a} is not here; let actions/checkout fetch it")
    common = _git("merge-base", found.strip(), "HEAD")
    return (common or found).strip()


def _changed(base: str) -> list[str]:
    listed = _git("diff", "--name-only", "--no-renames", "-z", base, "HEAD")
    if listed is None:
        raise CannotTell("git cannot compare with it")
    return [path for path in listed.split("\0") if path]


def _content(commit: str, path: str) -> str | None:
    return _git("show", f"{commit}:{path}")


def _git(*arguments: str) -> str | None:
    """What git prints; None where it refuses."""
    ran = subprocess.run(["git", *arguments], capture_output=True, check=False)
    return None if ran.returncode else ran.stdout.decode("utf-8", "replace")


def main() -> None:
    """Print what was found, and tell GitHub."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("base", help="the commit to compare HEAD with")
    parser.add_argument("--package", action="append", help="in place of: " + ", ".join(PACKAGES))
    parser.add_argument("--file", action="append", default=[], help="a pattern, besides ours")
    given = parser.parse_args()
    try:
        found = touched(given.base, given.package or PACKAGES, (*FILES, *given.file))
        lines = ["touched: " + each for each in found] or ["nothing of it is touched"]
        answer = bool(found)
    except CannotTell as error:
        lines, answer = [f"cannot tell, so the gate runs: {error}"], True
    sys.stdout.write("\n".join(lines) + "\n")
    if os.environ.get("GITHUB_OUTPUT"):
        with open(os.environ["GITHUB_OUTPUT"], "a") as output:
            output.write(f"touched={str(answer).lower()}\n")


if __name__ == "__main__":
    main()
