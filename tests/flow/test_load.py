"""How much work there is, by group, as `chordage status` tells it."""

from __future__ import annotations

from sqlalchemy import text

from chordage.orchestrator import views
from chordage.orchestrator.core.groups import DEFAULT_BUDGETS, Group
from support.questions import asks_once
from support.world import World


def loads(world: World) -> dict[Group, views.GroupLoad]:
    return {load.group: load for load in views.load_of_groups(world.store, DEFAULT_BUDGETS)}


def test_what_runs_waits_and_queues_is_counted_by_group(world: World) -> None:
    world.tools.asks = asks_once(0)
    world.submit(thread="asks", group=Group.TASK)
    world.run_dry()
    world.submit(thread="busy")
    world.deliver(world.pending.pop(0))
    world.submit(thread="busy")
    due = world.clock()
    world.submit(thread="next", group=Group.CHORE)
    found = loads(world)

    task, chat, chore = (found[group] for group in (Group.TASK, Group.CHAT, Group.CHORE))
    assert (task.running, task.waiting, task.ready, task.behind) == (0, 1, 0, 0)
    assert (chat.running, chat.waiting, chat.ready, chat.behind) == (1, 0, 0, 1)
    assert (chore.running, chore.ready, chore.since) == (0, 1, due)
    assert found[Group.WILL].since is None
    assert chat.budget == DEFAULT_BUDGETS[Group.CHAT]
    world.run_dry()


def test_budget_of_the_database_goes_before_the_setting(world: World) -> None:
    with world.store.write() as tx:
        tx.execute(text("UPDATE groups SET budget = 3 WHERE name = 'task'"))

    assert loads(world)[Group.TASK].budget == 3
    assert loads(world)[Group.CHAT].budget == DEFAULT_BUDGETS[Group.CHAT]
