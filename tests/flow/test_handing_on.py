"""The end of a run starts the next ready turn of its group in its own transaction, in the place that it leaves."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select

from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Advance, CallModel, Dispatch
from chordage.orchestrator.core.limits import TurnLimits
from chordage.orchestrator.core.message import Origin, Sender
from chordage.orchestrator.core.stepping import Standing
from chordage.orchestrator.store import groups, schema
from support.driving import consume
from support.fakes import rounds_of, spoken
from support.invariants import check_all, check_always, check_places_are_handed_on
from support.lock_waits import has_lock_waits
from support.questions import asks_once
from support.waiting import until
from support.world import Died, World

POSTGRES = [pytest.param("postgres", marks=pytest.mark.postgres)]


def backlog(world: World, *, budget: int, turns: int, **more: object) -> list[str]:
    """So many turns have found no place; nothing is under way but the first calls of those that run."""
    world.budgets[Group.CHAT] = budget
    world.models.script = lambda prompt: spoken("ok")
    ids = []
    for number in range(turns):
        world.clock.pass_by(0.001)
        tenant = more.get("tenants", "a")[number % len(more.get("tenants", "a"))]
        ids.append(world.submit(thread=None, tenant=tenant, agent=more.get("agent")))
    while any(isinstance(intent, Dispatch) for intent in world.pending):
        wake_up = next(intent for intent in world.pending if isinstance(intent, Dispatch))
        world.pending.remove(wake_up)
        world.deliver(wake_up)
    return ids


def test_next_turn_starts_with_the_commit_that_ends_a_run(world: World) -> None:
    first, second, _ = backlog(world, budget=1, turns=3)
    commits = world.commits

    following = world.deliver(world.pending.pop())

    assert [world.row("turns", id=turn)["status"] for turn in (first, second)] == ["done", "active"]
    assert world.commits == commits + 1
    (run,) = world.rows("runs", status="running")
    assert following == [Advance(run_id=str(run["id"]), group=Group.CHAT)]
    (words,) = world.rows("journal", kind="UserMessage", run_id=run["id"])
    assert words["body"]["turn"] == second
    assert world.locks.threads == {run["thread_id"]: f"{run['id']}:1"}


@pytest.mark.parametrize("tenants", ["a", "abc"])
def test_backlog_needs_no_message_for_each_turn(world: World, tenants: str) -> None:
    backlog(world, budget=2, turns=20, tenants=tenants)
    sent = Counter()

    while world.pending:
        sent.update(type(intent).__name__ for intent in world.deliver(world.pending.pop(0)))
        check_always(world.store, {"chat": 2})
        check_places_are_handed_on(world.store, {"chat": 2}, world.wake_ups())

    assert world.unfinished() == []
    assert sent["Dispatch"] <= 2, "when the last two ended, no turn was left"
    assert world.row("groups", name="chat")["hand_on"] == 0
    check_all(world.store)


def waits_for_a_place(world: World) -> str:
    turn = world.submit("next", thread=None)
    assert world.deliver(world.pending.pop()) == []
    return turn


def test_run_that_is_held_hands_its_place_on_in_its_own_transaction(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    held = consume(world, spoken("ok"))
    world.step(held.turn, "next")
    behind = waits_for_a_place(world)
    (call,) = world.deliver(world.pending.pop())
    assert isinstance(call, CallModel)

    (following,) = world.deliver(world.pending.pop())

    run = world.row("turns", id=behind)["run_id"]
    assert (following, held.look().standing) == (Advance(run_id=str(run), group=Group.CHAT), Standing.HELD)
    world.run_dry()
    assert world.row("turns", id=behind)["disposition"] == "answered"


def test_run_that_its_worker_ends_out_of_time_hands_its_place_on_in_its_own_transaction(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    world.models.script = rounds_of(1)
    late = world.submit(thread=None, limits=TurnLimits(timeout=20.0))
    world.deliver(world.pending.pop())
    behind = waits_for_a_place(world)
    world.models.before_reply = lambda _prompt: world.clock.pass_by(30)

    (following,) = world.deliver(world.pending.pop())
    world.models.before_reply = lambda _prompt: None

    run = world.row("turns", id=behind)["run_id"]
    assert following == Advance(run_id=str(run), group=Group.CHAT)
    assert (world.row("turns", id=late)["disposition"], world.row("runs", turn_id=late)["code"]) == (
        "failed",
        "timeout",
    )
    world.run_dry()
    assert world.row("turns", id=behind)["disposition"] == "answered"
    check_all(world.store)


def test_run_that_is_suspended_hands_its_place_on_in_its_own_transaction(world: World) -> None:
    backlog(world, budget=1, turns=2)
    world.models.script = rounds_of(1, tool="unsafe")
    world.tools.asks = asks_once(0)

    while world.row("turns", arrival=1, id=world.rows("turns")[1]["id"])["status"] == "queued":
        assert not any(isinstance(intent, Dispatch) for intent in world.pending)
        world.deliver(world.pending.pop(0))

    assert [row["status"] for row in world.rows("runs")] == ["waiting", "running"]


def test_process_that_serves_no_turns_sends_a_wake_up(world: World) -> None:
    backlog(world, budget=1, turns=2)
    object.__setattr__(world.runtime, "hands_on", False)

    assert world.deliver(world.pending.pop()) == [Dispatch(group=Group.CHAT)]


def test_end_from_outside_sends_a_wake_up(world: World) -> None:
    """It may end several runs, and locks what it has not locked yet."""
    first, _ = backlog(world, budget=1, turns=2)

    assert stages.cancel_turn(world.runtime, first, "no longer")[1] == [Dispatch(group=Group.CHAT)]


def test_next_turn_of_a_broken_agent_is_not_started(world: World) -> None:
    world.agents.agents["bob"] = AgentSpec(name="bob", model="fake")
    first, second, third = backlog(world, budget=1, turns=3)
    with world.store.write() as tx:
        of_bob = schema.turns.update().where(schema.turns.c.id == second)
        tx.execute(of_bob.values(agent="bob"))
    world.agents.broken = {"bob"}

    assert world.deliver(world.pending.pop()) == [Dispatch(group=Group.CHAT)]

    assert world.row("turns", id=first)["status"] == "done"
    left = world.row("turns", id=second)
    assert [left[name] for name in ("status", "ready", "run_id", "started_at")] == ["queued", 1, None, None]
    assert len(world.rows("runs")) == 1
    world.deliver(world.pending.pop())
    assert world.row("turns", id=third)["status"] == "active"
    assert world.row("turns", id=second)["ready"] == 2


def test_turns_of_other_groups_and_those_that_are_too_late_do_not_start(world: World) -> None:
    (first,) = backlog(world, budget=1, turns=1)
    world.submit(thread="task:x", origin=Origin.TASK, sender=Sender.SELF)
    world.submit(thread=None, deadline=world.clock.now + timedelta(seconds=1))
    groups.await_place(world.store, Group.CHAT)
    world.clock.pass_by(2)
    call = next(intent for intent in world.pending if isinstance(intent, CallModel))

    assert world.deliver(call) == [Dispatch(group=Group.CHAT)]
    assert [row["turn_id"] for row in world.rows("runs")] == [first]


@pytest.mark.parametrize("backend", POSTGRES, indirect=True)
def test_turn_that_others_are_just_starting_is_left_to_them_and_the_one_behind_it_starts(world: World) -> None:
    _, second, third = backlog(world, budget=1, turns=3)
    with world.store.write() as other:
        other.execute(select(schema.turns.c.id).where(schema.turns.c.id == second).with_for_update())
        world.deliver(world.pending.pop())

    assert [world.row("turns", id=turn)["status"] for turn in (second, third)] == ["queued", "active"]


@pytest.mark.parametrize("backend", POSTGRES, indirect=True)
def test_end_waits_for_nobody_who_moves_the_order_of_tenants(world: World) -> None:
    """It holds rows that come behind that of the group."""
    backlog(world, budget=1, turns=3, tenants="ab")
    with world.store.write() as other:
        groups.lock(other, Group.CHAT)
        assert world.deliver(world.pending.pop()) == [Dispatch(group=Group.CHAT)]
    world.run_dry()
    assert world.unfinished() == []


@pytest.mark.parametrize("backend", POSTGRES, indirect=True)
def test_thread_that_is_taken_after_all_does_not_spoil_the_end(world: World) -> None:
    """Another run is just opened there, and cannot be seen yet: the index makes the end wait for it."""
    first, second = backlog(world, budget=1, turns=2)
    (run,) = world.rows("runs")
    opened = {**run, "id": "other", "turn_id": "other", "thread_id": world.row("turns", id=second)["thread_id"]}
    with ThreadPoolExecutor(1) as pool, world.as_another_process():
        with world.store.engine.begin() as other:
            other.execute(schema.runs.insert(), {**opened, "place": None})
            ending = pool.submit(world.deliver, world.pending.pop())
            until(lambda: has_lock_waits(world.store), "the end waits at the index")
        assert ending.result(120) == [Dispatch(group=Group.CHAT)]

    assert [world.row("turns", id=turn)["status"] for turn in (first, second)] == ["done", "queued"]


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("at", range(1, 13))
def test_backlog_survives_death_at_any_commit(world: World, at: int, before: bool) -> None:
    turns = backlog(world, budget=1, turns=4)
    world.models.script = rounds_of(1, tool="unsafe")
    world.die_at, world.die_before = world.commits + at, before
    try:
        world.run_dry()
    except Died:
        world.pending.clear()
        world.forget_the_dead()
    world.die_at = None
    world.recover()

    assert {world.row("turns", id=turn)["disposition"] for turn in turns} == {"answered"}
    assert len(world.rows("runs")) == 4
    check_all(world.store)
