"""Laws of masks, padding and packing; harness/laws/mask.py has what each of them says."""

import pytest

from harness.pytest_plugin.laws import LawCase


@pytest.mark.parity_laws("mask")
def test_law(parity_law: LawCase) -> None:
    parity_law.check()
