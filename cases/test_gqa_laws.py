"""Laws of grouped-query attention; harness/laws/gqa.py has what each of them says."""

import pytest

from harness.pytest_plugin.laws import LawCase


@pytest.mark.parity_laws("gqa")
def test_law(parity_law: LawCase) -> None:
    parity_law.check()
