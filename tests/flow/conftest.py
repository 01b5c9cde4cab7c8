"""Worlds: the engine with a schedule of its own, on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chordage.orchestrator.store.tx import Store
from support.world import World


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    store = Store(database_url)
    yield World(store)
    store.close()
