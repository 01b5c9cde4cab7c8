"""What one dispatch reads does not grow with the turns, threads and tenants that wait. Work is counted, not timed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from sqlalchemy import event

from chordage.orchestrator import stages
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store.database import Store
from support.backlog import crowd, pages, plans
from support.databases import Databases
from support.world import World

FEW = (100, 100, 1)
MANY = (10_000, 2_000, 1)
MANY_TENANTS = (10_000, 2_000, 1_000)
CASES = (FEW, MANY, MANY_TENANTS)


@pytest.fixture(scope="module")
def filled(databases: Databases) -> Iterator[list[str]]:
    """A database for each case, to be copied."""
    urls = [databases.migrated("sqlite") for _ in CASES]
    for url, (queued, threads, tenants) in zip(urls, CASES, strict=True):
        with closing(Store(url, pool_size=1)) as store:
            crowd(store, queued, threads=threads, tenants=tenants)
    yield urls
    for url in urls:
        databases.drop(url)


def dispatched(url: str, *, budget: int) -> tuple[int, int]:
    """Statements of a dispatch, and instructions of SQLite's machine, in tens."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    def watch(raw: sqlite3.Connection, _record: object) -> None:
        raw.set_progress_handler(step, 10)

    store = Store(url, pool_size=1)
    for engine in (store.engine, store.plain):
        event.listen(engine, "connect", watch)
    world = World(store)
    world.budgets[Group.CHAT] = budget
    for _ in range(2 if budget > 1 else 1):
        before = world.statements, steps
        assert stages.dispatch(world.runtime, Group.CHAT)
    world.close()
    return world.statements - before[0], steps - before[1]


@pytest.mark.parametrize("budget", [1, 20])
def test_a_dispatch_costs_the_same_whatever_waits(
    filled: list[str], databases: Databases, make_database_url: Callable[..., str], budget: int
) -> None:
    few, many, of_many = (dispatched(make_database_url(databases.copied, url), budget=budget) for url in filled)

    assert (few[0], many[0], of_many[0]) == (9, 9, 9)  # with the history of the thread, for the first request
    assert many[1] <= few[1] + 10
    # Some twenty tenants are looked at where twenty turns of one were, and never more.
    assert of_many[1] <= (few[1] + 30 if budget == 1 else 2 * few[1])


@pytest.mark.postgres
def test_a_dispatch_touches_as_many_pages_whatever_waits(migrated_database_url: Callable[[str], str]) -> None:
    most = {1: 100, 20: 800}  # by the budget
    touched: dict[int, list[int]] = {budget: [] for budget in most}
    for queued, threads, tenants in CASES:
        store = Store(migrated_database_url("postgres"), pool_size=1)
        crowd(store, queued, threads=threads, tenants=tenants)
        for budget, pages_of in touched.items():
            pages_of.append(sum(pages(plan) for plan in plans(store, budget=budget).values()))
        store.close()

    print(f"pages by budget: {touched}")
    assert [budget for budget, pages_of in touched.items() if max(pages_of) > most[budget]] == []
