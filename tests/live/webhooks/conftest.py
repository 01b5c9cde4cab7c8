"""A room with webhooks, and the real server on it: one for all refusals, and one for each test that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from chordage.config.settings import Settings, load
from chordage.orchestrator.runtime import Runtime
from chordage.workers import web
from chordage.workers.bootstrap import runtime_from
from support import client_room, signed_deliveries
from support.signed_deliveries import WebhookClient
from support.web_server import served


def settings_in(folder, url: str, redis: str) -> Settings:
    room = client_room.write(folder / "room")
    signed_deliveries.write(room)
    prefix = f"{folder.name}:"
    return load(room=room, database_url=url, redis_url=redis, prefix=prefix, max_text_bytes=1000)


@pytest.fixture(scope="module")
def shared(tmp_path_factory, databases, redis_databases: Iterator[str]) -> Iterator[WebhookClient]:
    url = databases.migrated("sqlite")
    settings = settings_in(tmp_path_factory.mktemp("hooks"), url, next(redis_databases))
    runtime = runtime_from(settings)
    with pytest.MonkeyPatch.context() as patch:
        signed_deliveries.environment(patch)
        with served(web.wired(settings)) as client:
            yield WebhookClient(client=client, rt=runtime, settings=settings)
    runtime.store.close()
    databases.drop(url)


@pytest.fixture
def hooked(shared: WebhookClient) -> WebhookClient:
    """What others have stored does not count."""
    return shared.from_now_on()


@pytest.fixture
def settings(tmp_path, monkeypatch, database_url: str, redis_url: str) -> Settings:
    signed_deliveries.environment(monkeypatch)
    return settings_in(tmp_path, database_url, redis_url)


@pytest.fixture
def rt(settings: Settings) -> Iterator[Runtime]:
    runtime = runtime_from(settings)
    yield runtime
    runtime.store.close()


@pytest.fixture
def client(settings: Settings) -> Iterator[httpx.Client]:
    with served(web.wired(settings)) as one:
        yield one
