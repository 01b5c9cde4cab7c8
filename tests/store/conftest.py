"""A store on a fresh database, once per backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chordage.orchestrator.store.database import Store


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store(database_url, pool_size=8)
    yield store
    store.close()
