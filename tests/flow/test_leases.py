"""Leases: who renews them, who judges them and when, and what becomes of a holder that was taken for dead and lives."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from sqlalchemy import select

from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import AgentSpec, OnUnknown
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.gateways.in_flight import InFlightWork
from chordage.orchestrator.gateways.ports import ToolOutcome
from chordage.orchestrator.gateways.steadiness import Steadiness
from chordage.orchestrator.plugins.base import Plugin
from chordage.orchestrator.plugins.plugin_set import PluginSet
from chordage.orchestrator.store import calls, schema
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views.processes import takeovers
from support.fakes import rounds_of, spoken
from support.invariants import check_all
from support.one_turn import change_agent
from support.world import Died, Header, World

SECONDS = 40  # longer than a lease


def taken_for_dead(world: World, then=lambda: None):
    """While the first call runs its lease runs out, rescue judges it, and then `then` happens; the call continues."""
    once = iter([True])

    def linger(order):
        if next(once, False):
            world.sweep(seconds=SECONDS)
            then()

    world.tools.before = linger


@pytest.mark.parametrize("code", [None, "raised"])
def test_a_late_result_answers_the_question_what_became_of_its_call(world: World, code) -> None:
    world.models.script = rounds_of(1, tool="unsafe")
    asked = []
    taken_for_dead(world, lambda: asked.extend(world.inbox()))
    world.tools.run = late(world, ToolOutcome(content="what it said", full="all that it said", code=code))
    turn = world.submit()
    world.run_dry()

    assert [row["why"] for row in asked] == ["outcome_unknown"]
    assert world.inbox() == []
    call = world.row("calls")
    assert (call["status"], call["code"]) == ("failed" if code else "succeeded", code)
    assert (call["content"], call["full_result"]) == ("what it said", "all that it said")
    assert world.row("decisions")["source"] == "tool"
    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert world.tools.ran.total() == 1
    check_all(world.store)


def late(world, outcome):
    usual = world.tools.run

    def run(agent, order, **more):
        usual(agent, order, **more)
        return outcome

    return run


@pytest.mark.parametrize("answer", ["retry", "failed"])
def test_a_result_that_comes_behind_the_answer_of_a_person_is_refused(world: World, answer) -> None:
    world.models.script = rounds_of(1, tool="unsafe")
    taken_for_dead(world, lambda: decide(world, answer))
    world.tools.says = lambda order: f"attempt {order.attempt}, {world.tools.ran.total()}"
    turn = world.submit()
    world.run_dry()
    world.recover()

    assert world.row("decisions")["source"] == "test"
    assert world.row("turns", id=turn)["disposition"] == "answered"
    content = world.row("calls")["content"]
    assert content == "The call failed." if answer == "failed" else content.endswith(", 2")
    check_all(world.store)


def decide(world, answer):
    (asked,) = world.inbox()
    world.decide(DecisionRequest(target=asked["id"], action=Action.RESUME, payload={"answer": answer}))


def test_person_cannot_supply_the_answer_of_a_tool(world: World) -> None:
    from chordage.orchestrator.core.errors import InvalidDecision

    world.models.script = rounds_of(1, tool="unsafe")
    world.tools.before = lambda order: (_ for _ in ()).throw(world.kill())
    world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.pending.clear()
    world.sweep(seconds=SECONDS)
    (asked,) = world.inbox()

    payload = {"answer": "arrived", "code": None, "content": "x", "full": None}
    with pytest.raises(InvalidDecision):
        world.decide(DecisionRequest(target=asked["id"], action=Action.RESUME, payload=payload))


def test_call_with_a_question_is_not_cancelled_and_one_held_by_another_worker_is(world: World) -> None:
    world.models.script = rounds_of(1, tool="unsafe")
    heard = []

    def beat():
        hand = next(hand for hand in world.runtime.in_flight.all() if hand.call_id)
        given_away = stages.beat(world.runtime, first=0, every=0)
        heard.append((hand._why is not None, given_away))

    def suspend_then_retry():
        beat()
        decide(world, "retry")
        world.run_dry()
        with_another_token = world.row("calls")
        assert with_another_token["status"] == "succeeded"
        beat()

    taken_for_dead(world, suspend_then_retry)
    world.submit()
    world.run_dry()

    assert [stops for stops, _ in heard] == [False, True]


def test_call_claimed_by_another_while_in_flight_is_lost(world: World) -> None:
    world.models.script = rounds_of(1, tool="reconcilable")
    heard = []

    def claimed_by_another():
        hand = next(hand for hand in world.runtime.in_flight.all() if hand.call_id)
        with world.store.write() as tx:
            tx.execute(schema.calls.update().values(claim_token="another", worker="elsewhere:1"))
        heard.extend([hand, stages.beat(world.runtime, first=0, every=0)])

    taken_for_dead(world, claimed_by_another)
    world.submit()
    world.run_dry()

    hand, given_away = heard
    assert given_away == [hand]
    assert world.row("calls")["status"] == "running", "its result is refused"


def test_of_two_holders_of_one_call_the_former_is_cancelled_and_the_latter_not(world: World) -> None:
    """Two threads, or two processes of one pool, whose parent looks after both."""
    world.models.script = rounds_of(1, tool="reconcilable")
    former, latter = (InFlightWork(run_id="", epoch=1, token=token, worker="h:1") for token in ("former", "latter"))
    heard = []

    def claimed_by_the_latter(order):
        former.call_id = latter.call_id = order.call_id
        with world.store.write() as tx:
            tx.execute(schema.calls.update().values(claim_token="latter", worker="h:1"))
        orders = ([former, latter], [latter, former])
        heard.extend(stages.beat(world.runtime, first=99, every=99, of_children=hands) for hands in orders)

    world.tools.before = claimed_by_the_latter
    world.submit()
    world.run_dry()

    assert all(latter not in given_away for given_away in heard)
    assert all(former in given_away for given_away in heard)
    assert latter._why is None
    assert former._why is not None


def test_leases_are_judged_only_after_live_workers_had_a_beat_to_renew(world: World) -> None:
    """The database, or the whole machine, was away for longer than a lease: its first sweep comes before the beats."""
    seconds = [0.0]
    steadiness = Steadiness(gap=10, enough=10, of=[lambda: seconds[0]])
    world.runtime = replace(world.runtime, steadiness=steadiness)
    world.models.script = rounds_of(1, tool="unsafe")
    questions = []

    def passes(time: float):
        seconds[0] += time
        world.clock.pass_by(time)

    def an_outage_in_the_middle(order):
        for _ in range(20):
            stages.beat(world.runtime, first=0, every=1)
            passes(1)
        passes(SECONDS)
        world.sweep()
        questions.append(len(world.inbox()))
        stages.beat(world.runtime, first=0, every=0)
        passes(1)
        world.sweep()
        questions.append(len(world.inbox()))

    world.tools.before = an_outage_in_the_middle
    turn = world.submit()
    world.run_dry()

    assert questions == [0, 0]
    assert world.row("calls")["status"] == "succeeded"
    assert world.row("turns", id=turn)["disposition"] == "answered"


def test_dead_worker_is_judged_a_beat_after_the_outage(world: World) -> None:
    seconds = [0.0]
    world.runtime = replace(world.runtime, steadiness=Steadiness(gap=10, enough=10, of=[lambda: seconds[0]]))
    world.models.script = rounds_of(1, tool="unsafe")
    world.tools.before = lambda order: (_ for _ in ()).throw(world.kill())
    world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.pending.clear()

    judged = []
    for _ in range(5):
        world.revive()
        stages.beat(world.runtime, first=0, every=1)
        world.sweep(seconds=SECONDS if not judged else 5)
        seconds[0] += 5
        judged.append(len(world.inbox()))

    assert judged == [0, 0, 1, 1, 1]


def test_a_beat_goes_through_a_connection_of_its_own(world: World) -> None:
    """All others of the process are taken, each by a thread that waits."""
    world.models.script = lambda prompt: spoken("yes")
    heart = Store(world.store.url, pool_size=1)
    world.runtime = replace(world.runtime, heart=heart)
    renewed = []

    def beat_while_all_are_taken(prompt):
        pool = world.store.plain.pool
        crowd = [world.store.plain.connect() for _ in range(pool.size() + pool._max_overflow)]
        try:
            before = lease_of_the_run(heart)
            world.clock.pass_by(5)
            stages.beat(world.runtime, first=0, every=0)
            renewed.append(lease_of_the_run(heart) > before)
        finally:
            for one in crowd:
                one.close()

    world.models.before_reply = beat_while_all_are_taken
    world.submit()
    world.run_dry()
    heart.close()

    assert renewed == [True]


def lease_of_the_run(store):
    with store.read() as tx:
        return tx.execute(select(schema.runs.c.lease_until)).scalar_one()


@pytest.mark.parametrize("table", ["runs", "calls"])
@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_locked_row_is_skipped_and_found_at_the_next_look(world: World, table):
    world.models.script = rounds_of(2, tool="idempotent")
    for thread in ("one", "two"):
        world.submit(thread=thread)
    while not world.rows("calls"):
        world.deliver(world.pending.pop(0))
    while len(world.rows("calls")) < 4:
        world.deliver(world.pending.pop(0))
    chosen = schema.metadata.tables[table]
    ids = [row["id"] for row in world.rows(table)]
    hands = [in_flight_of(world, table, row_id) for row_id in ids]
    before = leases(world, chosen)

    world.clock.pass_by(5)
    with world.store.write() as tx:
        tx.execute(select(chosen.c.id).where(chosen.c.id == ids[0]).with_for_update())
        stages.beat(world.runtime, first=0, every=100, of_children=hands)
        while_it_is_held = leases(world, chosen)
    stages.beat(world.runtime, first=0, every=100, of_children=hands)

    assert while_it_is_held[ids[0]] == before[ids[0]]
    assert all(while_it_is_held[one] > before[one] for one in ids[1:])
    assert leases(world, chosen)[ids[0]] > before[ids[0]], "asked for again at once, and not a beat later"


def in_flight_of(world, table, row_id):
    if table == "runs":
        return InFlightWork(run_id=row_id, epoch=1, worker="h:1")
    call = world.row("calls", id=row_id)
    return InFlightWork(run_id=call["run_id"], epoch=1, call_id=row_id, worker="h:1")


def leases(world, chosen):
    with world.store.read() as tx:
        return {row.id: row.lease_until for row in tx.execute(select(chosen.c.id, chosen.c.lease_until))}


def install(world, *plugins):
    made = PluginSet(plugins)
    object.__setattr__(world.runtime, "plugin_sets", lambda agent: made)


def listening():
    """A plugin because of which the run is looked at before each of its calls."""
    return type("Listening", (Plugin,), {"id": "listening", "after_tool_execute": lambda self, context: None})()


def lease_of(store):
    with store.read() as tx:
        return tx.execute(select(schema.calls.c.lease_until)).scalar_one()


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
@pytest.mark.parametrize("tool", ["unsafe", "pure"])
def test_a_lease_that_is_renewed_while_a_call_is_judged_is_seen(world: World, monkeypatch, tool) -> None:
    """Between the look at the lease and the end of the work whose lease was not renewed."""
    change_agent(world, on_unknown=OnUnknown.FAIL)
    world.models.script = rounds_of(1, tool=tool)
    look, beats, own = calls.load, [], Store(world.store.url, pool_size=1)

    def look_and_beat(tx, call_id, **how):
        found = look(tx, call_id, **how)
        before = lease_of(own)
        stages.beat(world.runtime, first=0, every=0, through=own)
        beats.append(lease_of(own) > before)
        return found

    def judged_meanwhile(order):
        if tool == "pure":
            with world.store.write() as tx:
                tx.execute(schema.calls.update().values(expiries=2, status="running", worker="world"))
        monkeypatch.setattr(calls, "load", look_and_beat)
        world.sweep(seconds=SECONDS)
        monkeypatch.setattr(calls, "load", look)

    world.tools.before = judged_meanwhile
    world.submit()
    world.run_dry()

    own.close()
    (renewed,) = beats
    call = world.row("calls")
    assert renewed == (call["status"] == "succeeded"), "renewed, and its result was refused"
    check_all(world.store)


def status_of(store):
    with store.read() as tx:
        return tx.execute(select(schema.calls.c.status)).scalar()


def answer_lost(world: World, opened: str):
    """The database does what it is asked for once, and its answer gets lost on the way."""
    ask, due, own = getattr(world.store, opened), [True], Store(world.store.url, pool_size=1)

    @contextmanager
    def lossy():
        with ask() as tx:
            yield tx
        if due and status_of(own) == "running":
            due.clear()
            own.close()
            raise Unavailable("the connection was cut")

    setattr(world.store, opened, lossy)


@pytest.mark.parametrize("lost", ["claim", "look"])
def test_an_unsafe_call_that_was_claimed_and_did_not_begin_is_no_question(world: World, lost) -> None:
    """The database goes away between the claim of the call and the tool."""
    world.models.script = rounds_of(1, tool="unsafe")
    if lost == "look":
        install(world, listening())
    answer_lost(world, "single" if lost == "claim" else "read")
    turn = world.submit()
    while world.pending:
        with suppress(Unavailable):
            world.deliver(world.pending.pop(0))
    assert world.tools.ran.total() == 0

    for _ in range(3):
        world.sweep(seconds=SECONDS)
        world.run_dry()

    assert world.rows("suspensions") == []
    assert world.tools.ran.total() == 1
    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)


def opened_by(world: World, effect: str) -> Header:
    """The wake-up for the one call of a round."""
    world.models.script = rounds_of(1, tool=effect)
    world.submit()
    while not isinstance(world.pending[0], Header):
        world.deliver(world.pending.pop(0))
    return world.pending.pop(0)


@pytest.mark.parametrize("effect", ["unsafe", "reconcilable", "idempotent"])
def test_a_call_costs_one_statement_before_its_tool_and_one_after_it(world: World, effect) -> None:
    """That of an unsafe or reconcilable one claims the call, so that it is on record when the tool begins."""
    wake_up, began, own = opened_by(world, effect), [], Store(world.store.url, pool_size=1)
    world.tools.before = lambda order: began.append((world.statements, status_of(own)))
    world.tools.reconcile = lambda agent, order: pytest.fail("it was not started before")
    sent = world.statements

    world.deliver(wake_up)

    own.close()
    assert world.statements - sent == 2
    assert began == [(sent + 1, "new" if effect == "idempotent" else "running")]
    world.run_dry()
    check_all(world.store)


def test_a_call_of_a_broken_agent_is_not_claimed(world: World) -> None:
    wake_up = opened_by(world, "unsafe")
    world.agents.broken = {"ada"}

    world.deliver(wake_up)

    assert world.row("calls")["status"] == "new"


@pytest.mark.parametrize("wrong", ["bob", "nobody"])
def test_a_wake_up_that_names_another_agent_is_carried_out_all_the_same(world: World, wrong) -> None:
    """Every client of the broker can write one."""
    world.agents.agents["bob"] = AgentSpec(name="bob", model="fake")
    wake_up = opened_by(world, "unsafe")

    world.deliver(replace(wake_up, claimed_for=wrong))
    world.run_dry()

    assert world.tools.ran.total() == 1
    check_all(world.store)


def test_work_taken_over_from_a_lost_worker_is_on_record(world: World) -> None:
    world.models.script = rounds_of(1, tool="reconcilable")
    taken_for_dead(world)
    turn = world.submit()
    world.run_dry()

    run_id = world.row("turns", id=turn)["run_id"]
    (lost,) = takeovers(world.store, [run_id])[run_id]
    call = world.row("calls")
    assert (lost.call_id, lost.step) == (call["id"], call["step"])
    assert call["started_at"] <= lost.lost_at <= lost.noticed_at
    assert takeovers(world.store, ["another"]) == {}
