"""What a person may ask for, and what pip and uv refuse, as text: nothing is installed here."""

import pytest

from harness.errors import BuildError, CannotInstall, NoSuchRelease, Offline, UsageError
from harness.gate.building import Plan
from harness.gate.refusals import refusal
from harness.gate.sharing import Package
from harness.gate.tools import Tool
from harness.gate.wanted import Wanted, closure, near, parse_wanted, readable, unsatisfied


@pytest.mark.parametrize(
    ("text", "requirements"),
    [
        ("5.0.0", ("transformers==5.0.0",)),
        (" 5.0.0rc1 ", ("transformers==5.0.0rc1",)),
        ("transformers == 5.0.0", ("transformers==5.0.0",)),
        ("torch==2.12.0", ("torch==2.12.0",)),
        ("torch==2.13.0+cpu", ("torch==2.13.0+cpu",)),
        ("tokenizers==0.22.1,5.0.0", ("transformers==5.0.0", "tokenizers==0.22.1")),
        (
            "torch==2,Huggingface_Hub==1.0",
            ("huggingface-hub==1.0", "torch==2"),
        ),
        ("installed", ()),
    ],
)
def test_wanted_reads_what_people_write(text: str, requirements: tuple[str, ...]) -> None:
    wanted = parse_wanted(text)
    assert wanted == Wanted(requirements)
    assert parse_wanted(str(wanted)) == wanted
    assert wanted.installed is (requirements == ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "found nothing between commas"),
        ("5.0.0,", "found nothing between commas"),
        ("latest", "found 'latest': name one release with =="),
        ("transformers>=5", "found 'transformers>=5': name one release with =="),
        ("transformers==5.*", "write the version out"),
        ("transformers==5.0.0,5.1.0", "found transformers twice: ask for one release of each"),
        ("installed,torch==2.12.0", "found 'installed': name one release"),
        ("transformers @ git+file:///x", "leave out addresses"),
        ("transformers[torch]==5.0.0", "leave out addresses, markers and extras"),
        ("--index-url=x", "found '--index-url=x': write for example 5.0.0"),
        ("../../x", "found '../../x'"),
    ],
)
def test_wanted_refuses_what_is_no_release(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=r"expected a release of transformers \(5\.0\.0\)") as told:
        parse_wanted(text)
    assert words in str(told.value)


def test_a_name_of_a_folder_is_readable_and_safe() -> None:
    assert readable(parse_wanted("5.0.0,torch==2.12.0+cpu")) == (
        "transformers-5.0.0-torch-2.12.0_cpu"
    )


REQUIRES = {
    "transformers": ("tokenizers<0.24,>=0.22", 'torch>=2; extra == "torch"', "numpy (>dev)"),
    "tokenizers": ("Huggingface.Hub", 'winthing; sys_platform == "win32"'),
    "huggingface-hub": ("tokenizers",),
    "torch": (),
}


def test_closure_follows_what_is_required_here() -> None:
    assert closure(["transformers", "absent"], REQUIRES) == {
        *("transformers", "tokenizers", "huggingface-hub"),
    }


def test_unsatisfied_tells_what_is_absent_and_what_is_too_old() -> None:
    requires = [*REQUIRES["transformers"], "absent>=1"]
    assert unsatisfied(requires, {"tokenizers": "0.23.0"}) == ["absent>=1, which is not there"]
    assert unsatisfied(requires[:2], {"tokenizers": "0.21.0"}) == [
        "tokenizers<0.24,>=0.22, not 0.21.0"
    ]
    assert unsatisfied(["torch==2.13.0"], {"torch": "2.13.0+cpu"}) == []


def test_near_are_those_on_both_sides() -> None:
    there = ["4.0", "5.0", "5.1", "5.3", "6.0", "x"]
    assert near("5.2", there) == ["5.0", "5.1", "5.3", "6.0"]
    assert near("9", there) == ["5.3", "6.0"]
    assert near("1", there) == ["4.0", "5.0", "5.1", "5.3"]


def package(version: str, *requires: str) -> Package:
    return Package(version, requires, "/somewhere")


INSTALLED = {
    "torch": package("2.13.0"),
    "torchvision": package("0.28.0", "torch==2.13.0", "numpy"),
    "torchaudio": package("2.11.0", "torch==2.12.0"),
    "accelerate": package("1.0", "torch>=2"),
}


def test_another_torch_brings_along_what_was_built_for_this_one() -> None:
    plan = Plan(parse_wanted("torch==2.12.0"), ("/somewhere",), INSTALLED)
    assert plan.requirements == ("torch==2.12.0", "torchvision")
    assert plan.torch is None
    same = Plan(parse_wanted("5.0.0"), ("/somewhere",), INSTALLED)
    assert same.requirements == ("transformers==5.0.0",)
    assert same.torch == "2.13.0"


PIP_NOT_FOUND = (
    "ERROR: Could not find a version that satisfies the requirement {} (from versions: {})\n"
    "ERROR: No matching distribution found for {}"
)
PIP_OTHER_PYTHON = (
    "ERROR: Ignored the following versions that require a different python version: "
    "5.0.0 Requires-Python >=3.99; 5.0.1 Requires-Python >=3.99\n"
    + PIP_NOT_FOUND.format("transformers==5.0.0", "4.57.0, 4.57.6", "transformers==5.0.0")
)
PIP_NOBODY = (
    "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by "
    "'NewConnectionError('<pip.HTTPConnection object at 0x7f>: Failed to establish a new "
    "connection: [Errno 111] Connection refused')': /simple/transformers/\n"
    + PIP_NOT_FOUND.format("transformers==5.0.0", "none", "transformers==5.0.0")
)
UV_OLD = """  \u00d7 No solution found when resolving dependencies:
  ╰─▶ Because there is no version of
      transformers==5.0.0 and you require transformers==5.0.0, we can conclude
      that your requirements are unsatisfiable."""
UV_NONE = "Because transformers was not found in the package registry and you require it"
UV_PYTHON = "error: No solution found\n  cause: Because transformers==5.0.0 requires Python >=3.99"
UV_CONFLICT = "error: No solution found\n cause: Because transformers==5.0.0 depends on tokenizers"
UV_NOBODY = "error: Request failed\n  cause: Failed to fetch: `x`\n  cause: dns error"


@pytest.mark.parametrize(
    ("tool", "text", "kind", "words"),
    [
        (
            "pip",
            PIP_NOT_FOUND.format("transformers==5.0.0", "4.57.6, 5.0.1", "transformers==5.0.0"),
            NoSuchRelease,
            "found none of version 5.0.0; near it are 4.57.6, 5.0.1",
        ),
        (
            "pip",
            PIP_NOT_FOUND.format("transformers==5.0.0", "none", "transformers==5.0.0"),
            NoSuchRelease,
            "and no other of transformers",
        ),
        (
            "pip",
            PIP_NOT_FOUND.format("tokenizers>=9 (from transformers)", "0.1", "tokenizers>=9"),
            CannotInstall,
            "pip says\n",
        ),
        ("pip", PIP_OTHER_PYTHON, CannotInstall, "found Ignored the following"),
        ("pip", "ERROR: ResolutionImpossible: for help", CannotInstall, "ResolutionImpossible"),
        ("pip", "x\nERROR: Failed building wheel for tokenizers", CannotInstall, "building wheel"),
        ("pip", PIP_NOBODY, Offline, "/simple/transformers/: Failed to establish a new connection"),
        ("pip", "OSError: [Errno 28] No space left on device", BuildError, "room on the disk"),
        ("pip", "PermissionError: [Errno 13] Permission denied: '/x'", BuildError, "written"),
        ("pip", "Traceback\nValueError: odd", BuildError, "it failed\nTraceback\nValueError: odd"),
        ("pip", "", BuildError, "without a word"),
        ("uv", UV_OLD, NoSuchRelease, "near it are 4.57.6, 5.1.0"),
        ("uv", UV_NONE, NoSuchRelease, "none of version 5.0.0"),
        ("uv", UV_PYTHON, CannotInstall, "run parity in a Python that they support"),
        ("uv", UV_CONFLICT, CannotInstall, "uv says\n"),
        ("uv", UV_NOBODY, Offline, "Failed to fetch"),
    ],
)
def test_a_refusal_is_told_apart(tool: Tool, text: str, kind: type[BuildError], words: str) -> None:
    known = ["4.57.6", "5.1.0"] if tool == "uv" else []
    error = refusal(tool, parse_wanted("5.0.0"), text, releases=known)
    assert type(error) is kind
    assert words in str(error)
    assert error.exit_code == 2
