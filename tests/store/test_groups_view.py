"""Groups as people and programs see them, and budgets that are laid down in the database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.arrivals import QueueBound
from chordage.orchestrator.core.groups import DEFAULT_BUDGETS, Group
from chordage.orchestrator.store import groups
from chordage.orchestrator.store.database import Store
from support.backlog import crowd
from support.world import World


@pytest.fixture
def world(store: Store) -> Iterator[World]:
    made = World(store)
    yield made
    made.close()


def group_view(world: World, **more: object) -> views.GroupView:
    given = {"now": world.clock(), "budgets": DEFAULT_BUDGETS, "bounds": {}, **more}
    return views.groups(world.store, **given)[0]


def test_56_every_group_is_listed_with_its_budget_what_runs_and_what_is_free(world: World) -> None:
    world.submit(thread="a", tenant="t1")
    stages.dispatch(world.runtime, Group.CHAT)
    world.submit(thread="b", tenant="t2")
    world.submit(thread="c", tenant="t2")
    shown = views.groups(world.store, now=world.clock(), budgets=DEFAULT_BUDGETS, bounds={})

    assert [one.group for one in shown] == list(Group)
    assert [(one.budget, one.running, one.free, one.queued) for one in shown] == [
        (64, 1, 63, 2), (8, 0, 8, 0), (2, 0, 2, 0), (1, 0, 1, 0),
    ]  # fmt: skip
    assert [(one.tenant, one.running, one.queued) for one in shown[0].tenants] == [("t2", 0, 2), ("t1", 1, 0)]


def test_the_oldest_wait_is_that_of_a_turn_that_is_due(world: World) -> None:
    world.submit(thread="sleeps", not_before=world.clock() + timedelta(hours=1))
    assert group_view(world).waits_since is None
    world.clock.pass_by(5)
    came = world.clock()
    world.submit(thread="b")
    world.clock.pass_by(5)

    assert group_view(world).waits_since == came


def test_budget_in_the_database_is_shown_as_such_and_removed(world: World) -> None:
    with world.store.write() as tx:
        groups.set_budget(tx, Group.CHAT, 0)
    now = group_view(world, bounds={Group.CHAT: QueueBound(max_queued=3)})
    world.submit()
    assert stages.dispatch(world.runtime, Group.CHAT) == []
    with world.store.write() as tx:
        groups.set_budget(tx, Group.CHAT, None)

    assert (now.budget, now.budget_from, now.free, now.bound) == (0, "database", 0, QueueBound(max_queued=3))
    assert (group_view(world).budget, group_view(world).budget_from) == (64, "settings")
    assert stages.dispatch(world.runtime, Group.CHAT)


def test_only_so_many_tenants_are_counted_and_the_busiest_are_shown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MAX_COUNTED", 50)
    crowd(world.store, 60, threads=60, tenants=12)

    shown = group_view(world)

    assert (shown.queued, shown.queued_or_more, len(shown.tenants)) == (50, True, 5)
