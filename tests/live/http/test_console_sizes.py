"""How large pages, updates and scripts are once a proxy or a browser has them compressed: the server sends them as
they are.
"""

from __future__ import annotations

import zlib

import pytest

from chordage.benchmarks.million_turns import fill
from chordage.config.settings import load
from chordage.orchestrator import views
from chordage.orchestrator.console.pages import HERE
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views import PageQuery
from support import console_room
from support.console_room import log_in, stream

pytestmark = pytest.mark.redis

PAGE_MAX, UPDATE_MAX, SCRIPTS_MAX = 60_000, 15_000, 25_000
SHEET_MAX = 15_000  # as it is sent, not compressed
PAGES = (
    "/", "/runs", "/runs?q=status:waiting", "/runs?q=status:failed", "/threads", "/inbox", "/agents", "/groups",
    "/pulse", "/channels", "/workers", "/usage", "/audit", "/sessions", "/bulk",
)  # fmt: skip


@pytest.fixture
def settings(tmp_path, migrated_database_url, redis_url):
    url = migrated_database_url("sqlite")
    store = Store(url)
    fill(store, 2_000, newest=300, waiting=100)
    store.close()
    return load(room=console_room.write(tmp_path / "room"), database_url=url, redis_url=redis_url)


@pytest.fixture
def console(client, rt):
    return log_in(client, rt.store)


def compressed(data):
    return len(zlib.compress(data, 6))


def test_full_pages_fit_their_budget(console, rt):
    (run,) = views.run_page(rt.store, PageQuery(limit=1), status=RunStatus.WAITING).data
    sizes = {}
    for path in (*PAGES, f"/runs/{run.run_id}"):
        response = console.get(f"/console{path}")
        assert response.status_code == 200, path
        assert "content-encoding" not in response.headers
        sizes[path] = compressed(response.content)

    assert max(sizes.values()) <= PAGE_MAX, sizes
    assert sizes["/runs"] > sizes["/agents"], "lists are full"


@pytest.mark.parametrize("path", ["/live", "/runs/live", "/inbox/live"])
def test_an_update_of_all_parts_fits_its_budget(console, path):
    with stream(console, f"/console{path}") as messages:
        next(messages)
        update = next(messages)

    assert "<hx-upsert" in update
    assert compressed(update.encode()) <= UPDATE_MAX


def test_scripts_fit_their_budget():
    scripts = sorted((HERE / "static").rglob("*.js"))

    assert len(scripts) > 3
    assert sum(compressed(script.read_bytes()) for script in scripts) <= SCRIPTS_MAX


def test_the_sheet_fits_its_budget():
    assert len((HERE / "static" / "console.css").read_bytes()) <= SHEET_MAX
