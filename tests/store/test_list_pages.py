"""Pages of lists that filter a large table: nothing is skipped or repeated."""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import count

from sqlalchemy import insert

from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.gateways.ids import Ids
from chordage.orchestrator.store import pages, schema, threads
from chordage.orchestrator.store.pages import PageQuery, first_id_at, turn_page
from support.backlog import _thread, _turn
from support.rows import NOW

DONE = {"status": "done", "disposition": "answered", "done_at": NOW, "ready": 0}


def turns_of(store, number, *, prefix="api:", every=None, **fields):
    """Done turns with ids in their order; each `every`th differs by `fields`."""
    numbers = count()
    rows = [
        {**_turn(prefix, n, number, 1), **DONE, **(fields if every is None or n % every == 0 else {})}
        for n in (next(numbers) for _ in range(number))
    ]
    with store.write() as tx:
        tx.execute(insert(schema.threads), [_thread(f"{prefix}{n}") for n in range(number)])
        tx.execute(insert(schema.turns), rows)
    return [row["id"] for row in rows]


def all_pages(store, **query):
    before, found, sizes = None, [], []
    while True:
        with store.read() as tx:
            page = turn_page(tx, PageQuery(limit=3, before=before, **query))
        found += [row["turn_id"] for row in page.rows]
        sizes.append(len(page.rows))
        before = page.next
        if before is None:
            return found, sizes


def test_a_filter_that_few_meet_finds_all_of_them_in_short_pages(store, monkeypatch):
    monkeypatch.setattr(pages, "LOOKED_AT", 10)
    ids = turns_of(store, 45, every=20, disposition="failed")

    found, sizes = all_pages(store, equal={"disposition": "failed"})

    assert found == [ids[40], ids[20], ids[0]]
    assert len(sizes) == 5, "each page looks at ten rows"
    assert 0 in sizes


def test_a_filter_that_none_meets_comes_to_its_end(store, monkeypatch):
    monkeypatch.setattr(pages, "LOOKED_AT", 10)
    turns_of(store, 20)

    assert all_pages(store, equal={"agent": "nobody"}) == ([], [0, 0, 0])


def test_a_filter_that_all_meet_fills_its_pages(store, monkeypatch):
    monkeypatch.setattr(pages, "LOOKED_AT", 10)
    ids = turns_of(store, 8)

    found, sizes = all_pages(store, equal={"agent": "ada"})

    assert (found, sizes) == (ids[::-1], [3, 3, 2])


def test_a_space_whose_name_begins_like_another_is_another(store):
    mine = turns_of(store, 2, prefix="api@a:")
    turns_of(store, 2, prefix="api@ab:"), turns_of(store, 2, prefix="API@A:")

    assert all_pages(store, space="api@a")[0] == mine[::-1]


def test_sub_agents_belong_to_the_space_of_their_root(store):
    turns_of(store, 1, prefix="child:", root_thread="api:t", root_run="r", path="a/b", max_depth=3)

    assert len(all_pages(store, space="api")[0]) == 1
    assert all_pages(store, space="other")[0] == []


def test_open_turns_are_found_behind_any_number_of_those_that_are_done(store, monkeypatch):
    monkeypatch.setattr(pages, "LOOKED_AT", 2)
    turns_of(store, 1, prefix="a:", status="queued", disposition=None, done_at=None)
    turns_of(store, 20, prefix="z:")

    with store.read() as tx:
        page = turn_page(tx, PageQuery(limit=5), status=TurnStatus.QUEUED)

    assert ([row["thread_id"] for row in page.rows], page.next) == (["a:0"], None)


def test_an_id_is_not_smaller_than_the_first_of_its_time():
    new_id, now = Ids(), time.time()
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(now, UTC)
    id_ = new_id()

    assert first_id_at(at - timedelta(seconds=1)) < id_ < first_id_at(at + timedelta(seconds=60))


def test_threads_of_one_space_come_page_by_page(store, monkeypatch):
    monkeypatch.setattr(threads, "LOOKED_AT", 4)
    with store.write() as tx:
        rows = [_thread(f"{'api' if n % 5 == 0 else 'tg'}:{n:02}") for n in range(20)]
        tx.execute(insert(schema.threads), [{**row, "updated_at": NOW} for row in rows])  # the id is the tie-breaker
    before, found = None, []
    while True:
        with store.read() as tx:
            page, before = threads.latest(tx, limit=2, space="api", before=before)
        found += [row["thread_id"] for row in page]
        if before is None:
            break

    assert found == ["api:15", "api:10", "api:05", "api:00"]
