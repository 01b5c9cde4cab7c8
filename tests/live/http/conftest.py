"""A room, a server on it, and another process of the fleet, as it were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from chordage.config.settings import Settings, load
from chordage.orchestrator import stages
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.keys import KeyTerms
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.stages.keys import NewKey
from chordage.workers import web
from chordage.workers.bootstrap import runtime_from
from support import client_room
from support.web_server import served


@pytest.fixture
def settings(tmp_path: Path, migrated_database_url: Callable[[str], str], redis_url: str) -> Settings:
    room = client_room.write(tmp_path / "room")
    return load(room=room, database_url=migrated_database_url("sqlite"), redis_url=redis_url, max_text_bytes=4000)


@pytest.fixture
def client(settings: Settings) -> Iterator[httpx.Client]:
    with served(web.wired(settings)) as one:
        yield one


@pytest.fixture
def rt(settings: Settings) -> Iterator[Runtime]:
    """Another process of the fleet, as it were."""
    runtime = runtime_from(settings)
    yield runtime
    runtime.store.close()


@pytest.fixture
def make_key(rt: Runtime) -> Callable[..., NewKey]:
    def make(*scopes: KeyScope, **terms: Any) -> NewKey:
        wanted = KeyTerms(name="n", scopes=frozenset(scopes) or frozenset(KeyScope), **terms)
        return stages.create_key(rt.store, wanted, CLI, rt.now())

    return make


@pytest.fixture
def key(make_key: Callable[..., NewKey]) -> Callable[..., dict[str, str]]:
    """Make a key; the headers that carry it."""
    return lambda *scopes, **terms: {"X-Api-Key": make_key(*scopes, **terms).text}
