"""The walk through a GGUF header: every refusal, each by a file that has only that fault."""

import struct
from pathlib import Path

import gguf
import pytest

from harness.checkpoint.from_gguf import layout
from harness.checkpoint.from_gguf.layout import check_layout
from harness.errors import CheckpointError

F32, Q8_0 = 0, 8


def text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def fact(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, elements: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + elements


def tensor(name: bytes, *sizes: int, kind: int = F32, offset: int = 0) -> bytes:
    return (
        text(name)
        + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        + struct.pack("<IQ", kind, offset)
    )


def make(
    facts: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    *,
    data: int = 0,
    alignment: int = 32,
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts)) + b"".join(facts + tensors)
    return head + bytes(-len(head) % alignment) + bytes(data)


ALIGNMENT = b"general.alignment"
TWO = (tensor(b"a", 8), tensor(b"b", 8, offset=32))

SOUND = {
    "nothing": make(),
    "two tensors": make((), TWO, data=64),
    "a quantised one": make((), (tensor(b"q", 32, 2, kind=Q8_0),), data=68),
    "a scalar and none": make((), (tensor(b"s"), tensor(b"n", 0, 5, offset=32)), data=32),
    "another alignment": make(
        (fact(ALIGNMENT, 4, struct.pack("<I", 8)),),
        (tensor(b"a", 1), tensor(b"b", 1, offset=8)),
        data=12,
        alignment=8,
    ),
    "values of all kinds": make(
        (
            *(fact(b"k%d" % kind, kind, bytes(size)) for kind, size in enumerate([1, 1, 2, 2, 4])),
            fact(b"t", 8, text(b"text")),
            fact(b"f", 7, b"\1"),
            fact(b"l", 9, array(8, 2, text(b"x") + text(b""))),
            fact(b"e", 9, array(5, 0)),
            fact(b"d", 12, bytes(8)),
        )
    ),
}

DAMAGED = {
    "it starts with b'GGML', not b'GGUF'": b"GGML" + make()[4:],
    "version 1; known are 2 and 3": b"GGUF\1\0\0\0" + make()[8:],
    "the version: at least 4 bytes at offset 4, 2 are left": make()[:6],
    "1 keys and 0 tensors: at least 13 bytes at offset 24, 8 are left": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + bytes(8)
    ),
    "metadata key 0 is no UTF-8": make((fact(b"\xff", 4, bytes(4)),)),
    "t is no UTF-8": make((fact(b"t", 8, text(b"\xc3")),)),
    "the metadata key k is given twice": make((fact(b"k", 4, bytes(4)),) * 2),
    "k is of the unknown type 13": make((fact(b"k", 13, bytes(64)),)),
    "k is neither true nor false": make((fact(b"k", 7, b"\2"),)),
    "k is an array of type 9": make((fact(b"k", 9, array(9, 1, array(4, 0))),)),
    "1152921504606846976 elements of k: at least 1152921504606846976 bytes": (
        make((fact(b"k", 9, array(0, 1 << 60)),))
    ),
    "5 texts of k: at least 40 bytes": make((fact(b"k", 9, array(8, 5)),), alignment=1),
    "more than 3 elements of metadata, up to l": (
        make((fact(b"k", 9, array(0, 2, bytes(2))), fact(b"l", 9, array(0, 2, bytes(2)))))
    ),
    "general.alignment is not one power of two from 8 on": (
        make((fact(ALIGNMENT, 4, struct.pack("<I", 48)),))
    ),
    "general.alignment is not one power": make((fact(ALIGNMENT, 10, bytes(8)),)),
    "general.alignment is not": make((fact(ALIGNMENT, 4, bytes(4)),)),
    "the tensor a is given twice": make((), (tensor(b"a", 8), tensor(b"a", 8, offset=32)), data=64),
    "a has 5 dimensions; at most 4": make((), (tensor(b"a", 1, 1, 1, 1, 1),), data=4),
    "a is of the unknown storage type 99": make((), (tensor(b"a", 8, kind=99),), data=32),
    "a has rows of 33, no multiple of 32": make((), (tensor(b"a", 33, kind=Q8_0),), data=64),
    "a at offset 4, no multiple of 32": make((), (tensor(b"a", 8, offset=4),), data=64),
    "a has the shape [4294967296, 4294967296]": (
        make((), (tensor(b"a", 1 << 32, 1 << 32),), data=32)
    ),
    "a has the shape [1152921504606846976, 0]": make((), (tensor(b"a", 0, 1 << 60),), data=32),
    "a and b overlap": make((), (tensor(b"a", 9), tensor(b"b", 8, offset=32)), data=64),
    "b ends at byte 160": make((), TWO, data=63),
}


def write(folder: Path, content: bytes) -> Path:
    path = folder / "x.gguf"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("content", SOUND.values(), ids=list(SOUND))
def test_a_sound_header_is_let_through(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, content)
    check_layout(path)
    gguf.GGUFReader(path)


@pytest.mark.parametrize("reason", DAMAGED)
def test_a_damaged_header_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    if reason.startswith("more than 3 elements"):
        monkeypatch.setattr(layout, "_MAX_ELEMENTS", 3)
    content = DAMAGED[reason]
    with pytest.raises(CheckpointError) as caught:
        check_layout(write(tmp_path, content))
    said = f"{len(content)} bytes that end early or make no sense ({reason}"
    assert caught.value.found.startswith(said), caught.value.found


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a readable file, found No such file"):
        check_layout(tmp_path / "absent.gguf")
