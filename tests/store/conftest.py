"""A store on a fresh database, once per backend; on PostgreSQL with the pipeline and without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chordage.orchestrator.store.database import Store
from support.databases import BACKENDS_BOTH_WAYS


@pytest.fixture(params=BACKENDS_BOTH_WAYS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store(database_url, pool_size=8)
    yield store
    store.close()
