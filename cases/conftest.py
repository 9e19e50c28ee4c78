"""The option of the suite of real history."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much of history is run."""
    parser.getgroup("parity").addoption(
        "--parity-history",
        choices=("ci", "nightly", "off"),
        help="how much of the history of released bugs is shown again: ci (default), two cases that"
        " need one other release of transformers; nightly, all of them (15 environments, made"
        " on first use); off, none",
    )
    parser.addini("parity_history", "how much of history is run: ci, nightly or off", default="ci")
