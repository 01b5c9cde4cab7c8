"""A room, a server on it, and another process of the fleet, as it were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from chordage.config.settings import Settings, load
from chordage.orchestrator.runtime import Runtime
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
