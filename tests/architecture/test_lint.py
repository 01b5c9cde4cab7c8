"""Lint and format are tests like all others: one command checks everything."""

from __future__ import annotations

from support.repository import check_with


def test_ruff_finds_nothing():
    check_with("ruff", "check", ".")


def test_code_is_formatted():
    check_with("ruff", "format", "--check", ".")
