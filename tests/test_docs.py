"""Docs that are made from the code are those of this code."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = ("-m", "typer", "harness.cli", "utils", "docs", "--name", "parity")


def test_docs_of_the_command_line_are_current(tmp_path: Path) -> None:
    fresh = tmp_path / "cli.md"
    subprocess.run(
        [sys.executable, *COMMAND, "--output", fresh], cwd=ROOT, check=True, capture_output=True
    )
    written = (ROOT / "docs" / "cli.md").read_text()
    assert written == fresh.read_text(), f"run: python {' '.join(COMMAND)} --output docs/cli.md"
    assert "## `parity seeds`" in written
