"""Rigs for the tests of what goes wrong: workers, broker and database of a test's own."""

from __future__ import annotations

from support.rig import make_rig  # noqa: F401  fixture
