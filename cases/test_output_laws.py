"""Laws of outputs; harness/laws/output.py has what each of them says."""

import pytest

from harness.pytest_plugin.laws import LawCase


@pytest.mark.parity_laws("output")
def test_law(parity_law: LawCase) -> None:
    parity_law.check()
