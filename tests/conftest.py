"""What every test gets: the `support` package on the path, its fixtures, the network guard, the rule about skips."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))

pytest_plugins = ("support.skips", "support.network", "support.postgres", "support.valkey", "support.databases")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Live tests kill processes and measure recoveries: under xdist they stay together on one worker."""
    for item in items:
        if item.path.is_relative_to(HERE / "live"):
            item.add_marker(pytest.mark.xdist_group("live"))
