"""Types are checked strictly, everywhere."""

from __future__ import annotations

import pytest

from support.repository import check_with


@pytest.mark.slow
def test_mypy_finds_nothing():
    check_with("mypy")
