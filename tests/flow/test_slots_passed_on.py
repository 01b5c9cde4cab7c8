"""A place of a group's budget that becomes free is handed on: no turn is ready beside it with no wake-up under way."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from itertools import repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from chordage.orchestrator.core.agent import AgentSpec, Placement
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.errors import Unavailable, UserError
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import CallModel, Dispatch, StepOn
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.store import groups, pipeline, schema
from support.draws import examples
from support.driving import USER, asks, consume
from support.fakes import Script, rounds_of, spoken
from support.held_commit import HeldCommit
from support.interleaving import before_a_write
from support.invariants import check_all, check_places_are_handed_on
from support.placements import effects, place_calls, placements
from support.questions import asks_once
from support.schedules import LONG, fresh_world
from support.world import World


def check(world: World) -> None:
    budgets = {group.value: of for group, of in world.budgets.items()}
    check_places_are_handed_on(world.store, budgets, world.wake_ups())


def run_dry_in_order(world: World) -> None:
    """Every wake-up is delivered, in order; after each no slot is free beside a ready turn without a wake-up."""
    while world.pending:
        world.deliver(world.pending.pop(0))
        check(world)
    assert world.unfinished() == []
    check_all(world.store)


def end_a_run(world: World) -> None:
    """Another worker ends a run."""
    call = next(intent for intent in world.pending if isinstance(intent, CallModel))
    world.pending.remove(call)
    world.deliver(call)


@pytest.mark.parametrize("budget", [2, 4])
def test_run_that_ends_while_a_dispatcher_sees_one_free_slot_passes_its_own_on(world: World, budget: int) -> None:
    object.__setattr__(world.runtime, "hands_on", False)
    world.budgets[Group.CHAT] = budget
    world.models.script = lambda prompt: spoken("ok")
    for _ in range(3 * budget):
        world.submit(thread=None)
    for _ in range(3 * budget):  # every wake-up that came with a turn has come and gone
        world.deliver(world.pending.pop(0))
    end_a_run(world)
    wake_up = next(intent for intent in world.pending if isinstance(intent, Dispatch))
    world.pending.remove(wake_up)

    meanwhile = [lambda: end_a_run(world)]  # the dispatcher has seen one place, and has started nothing yet
    world.locks.before_take = lambda: meanwhile.pop()() if meanwhile else None
    world.deliver(wake_up)

    check(world)
    run_dry_in_order(world)


def test_run_that_ends_before_the_mark_is_set_leaves_its_slot_to_the_wake_up_that_sets_it(world: World) -> None:
    """A wake-up finds no free slot. Before it can say so, the runs that had the slots end and send no wake-up."""
    world.budgets[Group.CHAT] = 2
    world.models.script = lambda prompt: spoken("ok")
    for _ in range(5):
        world.submit(thread=None)
    for _ in range(2):
        world.deliver(world.pending.pop(0))
    first_in_vain = world.pending.pop(0)
    world.pending = [intent for intent in world.pending if isinstance(intent, CallModel)]

    before_a_write(world, [lambda: None, lambda: end_a_run(world), lambda: end_a_run(world)])
    world.deliver(first_in_vain)

    check(world)
    assert Counter(row["status"] for row in world.rows("runs")) == {"done": 2, "running": 1}


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_dispatcher_without_a_slot_waits_for_an_uncommitted_end(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    world.models.script = lambda prompt: spoken("ok")
    for _ in range(2):
        world.submit(thread=None)
    world.deliver(world.pending.pop(0))
    in_vain = world.pending.pop(0)
    held = HeldCommit(world)

    def end() -> None:
        held.of_this_thread()
        end_a_run(world)

    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(end)
        assert held.reached.wait(120)  # it has read that no turn waits for its slot
        world.deliver(in_vain)
        ending.result()

    assert sorted(row["status"] for row in world.rows("runs")) == ["done", "running"]
    run_dry_in_order(world)


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_locked_row_of_a_run_keeps_no_wake_up_waiting_for_ever(world: World, monkeypatch) -> None:
    """A process may stand still with its transaction open."""
    world.budgets[Group.CHAT] = 1
    for _ in range(2):
        world.submit(thread=None)
    world.deliver(world.pending.pop(0))

    at_once = groups._WAIT.with_for_update(read=True, nowait=True)  # the error is that of a timeout
    monkeypatch.setattr(groups, "_WAIT", at_once)
    with world.store.write() as held:
        held.execute(select(schema.runs.c.id).with_for_update())
        following = world.deliver(world.pending.pop(0))

    assert following == []
    assert world.row("groups", name="chat")["hand_on"] == 1


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_turn_that_relied_on_a_mark_that_was_just_being_cleared_is_seen(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    world.models.script = lambda prompt: spoken("ok")
    for _ in range(2):
        world.submit(thread=None)
    for _ in range(5):
        world.deliver(world.pending.pop(0))
    assert world.pending == [Dispatch(group=Group.CHAT)]
    assert world.row("groups", name="chat")["hand_on"] == 1

    def meanwhile(connection) -> None:
        """The mark is cleared, and that is not committed. One turn takes the place, and another relies on the mark."""
        world.before_commit = lambda _: None
        pipeline.flush(connection)
        world.submit(thread=None)
        world.deliver(world.pending.pop())
        world.submit(thread=None)
        assert world.deliver(world.pending.pop()) == []

    world.before_commit = meanwhile
    world.deliver(world.pending.pop(0))

    assert world.row("groups", name="chat")["hand_on"] == 1
    run_dry_in_order(world)


@pytest.mark.parametrize("late", [0, 0.5, 2])
def test_a_turn_that_was_asleep_is_sent_for_by_the_sweep_that_wakes_it(world: World, late: float) -> None:
    world.models.script = lambda prompt: spoken("ok")
    world.submit(thread=None, not_before=world.clock.now + timedelta(seconds=10))
    world.run_dry()

    world.sweep(seconds=10 + late)

    check(world)
    run_dry_in_order(world)


@pytest.mark.parametrize("lost_with", ["places free", "no place free"])
def test_after_one_sweep_runs_that_end_send_for_turns_whose_wake_ups_were_lost(world: World, lost_with: str) -> None:
    world.budgets[Group.CHAT] = 2
    world.models.script = lambda prompt: spoken("ok")
    for _ in range(7):
        world.submit(thread=None)
    if lost_with == "no place free":
        for _ in range(2):
            world.deliver(world.pending.pop(0))
    world.pending = [intent for intent in world.pending if isinstance(intent, CallModel)]

    world.sweep(seconds=6)
    world.run_dry()

    assert world.unfinished() == []


def test_one_wake_up_fills_all_places_that_a_larger_budget_has(world: World) -> None:
    """`chordage groups set` sends it: the runs at work may last, and none of them ends."""
    world.budgets[Group.CHAT] = 1
    world.models.script = lambda prompt: spoken("ok")
    for _ in range(6):
        world.submit(thread=None)
    for _ in range(6):
        world.deliver(world.pending.pop(0))
    started = [intent for intent in world.pending if isinstance(intent, CallModel)]
    with world.store.write() as tx:
        groups.set_budget(tx, Group.CHAT, 4)

    world.pending = [Dispatch(group=Group.CHAT)]
    while any(isinstance(intent, Dispatch) for intent in world.pending):
        wake_up = next(intent for intent in world.pending if isinstance(intent, Dispatch))
        world.pending.remove(wake_up)
        world.deliver(wake_up)
    started += world.pending

    assert len(started) == 4
    world.pending = started
    world.budgets[Group.CHAT] = 4
    run_dry_in_order(world)


def only_the_first_time(get):
    """Who looks at the agent of a turn finds it, and who then begins its run does not."""
    asked = Counter()

    def once(name):
        asked[name] += 1
        if name == "ada" and asked[name] > 1:
            raise Unavailable("away")
        return get(name)

    return once


@pytest.mark.parametrize("gone", [True, False])
def test_started_turn_that_cannot_continue_costs_those_behind_it_no_wake_up(world: World, gone: bool) -> None:
    """Its agent is gone, or a service does not answer just then. The wake-ups of the others have been in vain."""
    world.agents.agents["bob"] = AgentSpec(name="bob", model="fake")
    world.models.script = lambda prompt: spoken("ok")
    world.budgets[Group.CHAT] = 0
    for agent in ["ada", "bob"] * 4:
        world.submit(thread=None, agent=agent, tenant="one")
    for _ in range(8):
        world.deliver(world.pending.pop(0))
    world.budgets[Group.CHAT] = 8
    if gone:
        del world.agents.agents["ada"]
    else:
        world.agents.get = only_the_first_time(world.agents.get)

    world.pending = [Dispatch(group=Group.CHAT)]
    while world.pending:
        with suppress(UserError):
            world.deliver(world.pending.pop(0))
        check(world)
    assert Counter(row["status"] for row in world.rows("turns")) == {"done": 4, "active": 4}


def wait_behind(world: World) -> None:
    """Another turn comes, finds no place, and is left behind."""
    world.agents.agents["bob"] = AgentSpec(name="bob", model="fake")
    world.submit(thread=None, control=Control.AUTO, agent="bob")
    wake_up = next(intent for intent in world.pending if isinstance(intent, Dispatch))
    world.pending.remove(wake_up)
    assert world.deliver(wake_up) == []


def test_parked_run_moved_by_a_decision_passes_its_slot_on(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    world.tools.asks = asks_once(0)
    it = consume(world, asks("a"), spoken("done"))
    it.next()
    it.do("tool_response")
    it.do("park")
    (asked,) = world.inbox()
    world.decide(DecisionRequest(target=asked["id"], action=Action.RESUME, payload=True))
    wait_behind(world)

    while world.pending:
        world.deliver(world.pending.pop(0))
        check(world)

    assert [row["disposition"] for row in world.rows("turns")] == [None, "answered"]


@pytest.mark.parametrize("why", ["parked", "refused", "broken"])
def test_run_that_does_not_continue_by_itself_passes_its_slot_on(world: World, why: str) -> None:
    """It was held for a moment, and does not take its place again."""
    world.budgets[Group.CHAT] = 1
    it = consume(world, asks("a", "b"), spoken("done"))
    world.step(it.turn, "run")
    wait_behind(world)
    while not any(isinstance(intent, StepOn) for intent in world.pending):
        world.deliver(world.pending.pop(0))
    match why:
        case "parked":
            world.step(it.turn, "park")
        case "refused":
            only_a = [it.link, {"role": "tool", "ask_id": "a", "content": "A"}, USER]
            world.step(it.turn, "messages", messages=only_a)
        case "broken":
            world.agents.broken = {"ada"}

    while world.pending:
        world.deliver(world.pending.pop(0))
        check(world)

    assert [row["disposition"] for row in world.rows("turns")] == [None, "answered"]


moments = st.lists(st.one_of(st.none(), st.integers(0, 40)), max_size=80)


def play(world: World, script: Script, budget: int, turns: int, moments: list[int | None]) -> None:
    """Wake-ups are delivered in order, and none is lost. Before one takes the lock of a thread or opens a transaction
    that writes, other workers may carry out others.
    """
    world.budgets[Group.CHAT] = budget
    world.models.script = script
    due = iter(moments)
    depth = 0

    def others() -> None:
        nonlocal depth
        at = next(due, None)
        if at is None or not world.pending or depth == 3:
            return
        depth += 1
        world.deliver(world.pending.pop(at % len(world.pending)))
        depth -= 1

    world.locks.before_take = others
    before_a_write(world, repeat(others))
    for number in range(turns):
        world.submit(thread=None, tenant="ab"[number % 2])
    run_dry_in_order(world)


@settings(LONG, max_examples=examples(100))
@given(
    script=st.builds(rounds_of, st.just(1), rounds=st.integers(0, 1), tool=effects), placement=placements,
    budget=st.sampled_from([1, 2, 4]), turns=st.integers(3, 12), moments=moments,
)  # fmt: skip
def test_no_place_is_left_free_however_starts_and_ends_meet(
    migrated_database_url, script: Script, placement: Placement, budget: int, turns: int, moments: list[int | None]
) -> None:
    with fresh_world(migrated_database_url("sqlite")) as world:
        place_calls(world, placement)
        play(world, script, budget, turns, moments)
