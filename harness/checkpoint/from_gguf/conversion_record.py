"""The note that a conversion leaves beside its weights: what from, by which version, what lacks."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ...errors import CheckpointError
from ..json_files import read_json_object

FILE_NAME = "gguf_conversion.json"
CONVERTER_VERSION = 2
"""Raised whenever the converter writes something else for the same file."""

_FORMAT = "logits-parity/gguf-conversion"
_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class ConversionRecord:
    """Where a converted directory came from.

    Attributes:
        source_name: Name of the GGUF file, without its directory.
        source_sha256: sha256 (hex) of the GGUF file.
        architecture: Its `general.architecture`.
        tensor_types: Storage types in the file, such as `Q4_1`, with the number of tensors.
        tokenizer_problem: Why no tokenizer was written; None where one was.
        converter_version: `CONVERTER_VERSION` when it was written.
    """

    source_name: str
    source_sha256: str
    architecture: str
    tensor_types: dict[str, int]
    tokenizer_problem: str | None
    converter_version: int = CONVERTER_VERSION


def write_record(directory: Path, record: ConversionRecord) -> None:
    """Write the record into a converted directory."""
    document = {"format": _FORMAT, "version": _FORMAT_VERSION, **asdict(record)}
    text = json.dumps(document, indent=2, ensure_ascii=False)
    (directory / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def read_record(directory: Path) -> ConversionRecord | None:
    """Read the record of a directory; None where it was not made by this converter.

    Raises:
        CheckpointError: If the record is damaged or of an unknown version.
    """
    path = directory / FILE_NAME
    if not path.is_file():
        return None
    document = read_json_object(path)
    kind = (document.pop("format", None), document.pop("version", None))
    try:
        if kind != (_FORMAT, _FORMAT_VERSION):
            raise TypeError(f"format and version {kind}")
        return ConversionRecord(**document)
    except TypeError as error:
        raise CheckpointError(
            str(path),
            expected=f"format {_FORMAT} version {_FORMAT_VERSION}",
            found=str(error),
            advice=f"delete {directory}; the GGUF file is then converted anew",
        ) from error
