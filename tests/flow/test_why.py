"""Why a row waits: each cause, made by the engine itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.agent import OnUnknown, ToolMode, WhenBusy, WhileWaiting
from chordage.orchestrator.core.approvals import OnExpiry, Question, Why
from chordage.orchestrator.core.errors import BrokenAgent, NotFound, TryLater, Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.stepping import Control, StepTerms
from chordage.orchestrator.core.why.reasons import OwnerKind, RowKey, RowKind, WaitCause
from chordage.orchestrator.store import groups, schema
from support.channels import ListChannel, bind, look
from support.fakes import rounds_of, spoken
from support.family import Lines, ask, by_agent, settle_in
from support.one_turn import change_agent
from support.pulse_room import PulseRoom, aged
from support.questions import approval, asks_once
from support.reasons import check_every_open_row_has_a_reason, reason, show_workers, sources, why
from support.world import Died, World

PURE = ("pure", {"n": 0})
TASK = "---\nid: abcd2345\n---\nPaint the fence.\n"


@pytest.fixture(autouse=True)
def a_worker_of_all_queues(world: World) -> None:
    show_workers(world)


def start(world: World, **more: object) -> str:
    """A turn whose run is at work; its wake-ups stay where they are."""
    turn = world.submit(**more)
    world.deliver(world.pending.pop())
    return turn


def until(world: World, done) -> None:
    while not done():
        world.deliver(world.pending.pop(0))


# a turn in its queue


def test_turn_behind_another_that_is_at_work_names_it_and_its_reason(world: World) -> None:
    first = start(world, thread="t1")
    second = world.submit(thread="t1")

    found = reason(world, second)

    assert (found.cause, found.owner.kind, found.owner.id) == (WaitCause.BEHIND_TURN, OwnerKind.TURN, first)
    assert found.remedy.command == f"chordage cancel {first}"
    assert found.since == world.row("turns", id=second)["queued_at"]
    assert found.because is not None
    assert (found.because.kind, found.because.id) == (RowKind.TURN, first)
    assert found.because.cause is WaitCause.MESSAGE_SENT


def test_turn_behind_another_that_is_queued_names_the_first_of_the_line(world: World) -> None:
    world.budgets[Group.CHAT] = 0
    first, second = (world.submit(thread="t1") for _ in range(2))

    found = reason(world, second)

    assert (found.cause, found.owner.id) == (WaitCause.BEHIND_TURN, first)
    assert found.because is not None
    assert found.because.cause is WaitCause.GROUP_PAUSED


def test_turn_that_is_kept_while_the_run_waits_for_a_decision_says_how_to_decide(world: World) -> None:
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()
    second = world.submit("and then", while_waiting=WhileWaiting.HOLD)

    found, run = reason(world, second), world.row("runs")["id"]

    assert (found.cause, found.owner.id) == (WaitCause.BEHIND_WAITING_RUN, run)
    assert found.remedy.command == f"chordage inbox --run {run}"
    assert found.because is not None
    assert found.because.cause is WaitCause.DECISION


def test_turn_that_joins_the_run_at_work_says_so(world: World) -> None:
    start(world)
    second = world.submit("mind this", when_busy=WhenBusy.STEER)

    found = reason(world, second)

    assert (found.cause, found.owner.id) == (WaitCause.JOINS_RUN, world.row("runs")["id"])


def test_turn_of_a_full_group_names_the_runs_that_hold_the_budget(world: World) -> None:
    world.budgets[Group.CHAT] = 2
    for thread in ("a", "b"):
        start(world, thread=thread)
    waiting = [world.submit(thread=f"w{number}") for number in range(3)]

    found = reason(world, waiting[2])

    holders = [row["id"] for row in sorted(world.rows("runs"), key=lambda row: row["place"])]
    assert (found.cause, found.owner.id) == (WaitCause.GROUP_FULL, "chat")
    assert f"2 of 2 places are taken by run {', '.join(holders)}; about 2 ahead of it." in found.text
    assert found.remedy.command == "chordage groups set chat 3"
    assert found.because is not None
    assert found.because.id == holders[0]


def test_position_in_a_full_group_counts_the_turns_of_other_tenants_that_come_between(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    start(world, thread="a", tenant="m")
    for number in range(5):
        world.submit(thread=f"z{number}", tenant="z")
    mine = [world.submit(thread=f"m{number}", tenant="m") for number in range(2)]

    assert "it is next" in reason(world, mine[0]).text
    assert "about 2 ahead of it" in reason(world, mine[1]).text


def test_paused_group_is_the_reason_of_its_turns(world: World) -> None:
    with world.store.write() as tx:
        groups.set_budget(tx, Group.CHAT, 0)
    turn = world.submit()
    world.run_dry()

    found = reason(world, turn)

    assert (found.cause, found.owner.id) == (WaitCause.GROUP_PAUSED, "chat")
    assert found.remedy.command == "chordage groups set chat NUMBER"


def test_turn_with_a_time_says_when_it_may_start(world: World) -> None:
    at = world.clock() + timedelta(hours=1)
    turn = world.submit(not_before=at)

    found = reason(world, turn)

    assert (found.cause, found.owner.kind, found.until) == (WaitCause.NOT_BEFORE, OwnerKind.CLOCK, at)
    assert "2026-01-01 01:00:00 UTC" in found.text


def test_turn_past_its_deadline_is_about_to_expire(world: World) -> None:
    turn = world.submit(deadline=world.clock() + timedelta(seconds=5))
    world.clock.pass_by(6)

    assert reason(world, turn).cause is WaitCause.DEADLINE_PASSED


def test_turn_of_another_tenant_waits_while_tenants_take_turns(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    turns = {tenant: world.submit(thread=tenant, tenant=tenant) for tenant in ("a", "b")}

    assert reason(world, turns["a"]).cause is WaitCause.MESSAGE_SENT
    found = reason(world, turns["b"])
    assert (found.cause, found.owner.kind, found.owner.id) == (WaitCause.OTHER_TENANT, OwnerKind.TENANT, "a")


def test_ready_turn_says_that_its_wake_up_is_under_way_and_since_when(world: World) -> None:
    turn = world.submit()
    came = world.clock()
    world.clock.pass_by(3)

    found = reason(world, turn)

    assert (found.cause, found.owner.kind, found.owner.id) == (WaitCause.MESSAGE_SENT, OwnerKind.QUEUE, "chat")
    assert found.since == came


@pytest.mark.parametrize("group", list(Group))
def test_turn_whose_queue_no_worker_serves_says_how_to_start_one(world: World, group) -> None:
    show_workers(world, "system", "chat.tools")
    turn = world.submit(group=group)

    found = reason(world, turn)

    assert (found.cause, found.owner.id) == (WaitCause.NO_WORKER, group.queue)
    assert found.remedy.command == f"chordage worker --queues {group.queue}"


def test_worker_that_shows_no_presence_any_more_serves_nothing(world: World) -> None:
    turn = world.submit()
    world.clock.pass_by(61)

    assert reason(world, turn).cause is WaitCause.NO_WORKER


def test_process_whose_queues_are_not_known_may_serve_any(world: World) -> None:
    with world.store.write() as tx:
        tx.execute(update(schema.processes).values(queues=None))

    assert reason(world, world.submit()).cause is WaitCause.MESSAGE_SENT


def test_queued_turn_of_a_broken_agent_says_what_to_repair(world: World) -> None:
    turn = world.submit()
    world.agents.broken = {"ada"}
    world.deliver(world.pending.pop())

    found = reason(world, turn)

    assert (found.cause, found.owner.id, found.remedy.command) == (WaitCause.BROKEN_AGENT, "ada", "chordage check")
    assert found.until == world.row("turns")["due_at"]


def test_turn_that_no_wake_up_has_made_ready_waits_for_the_next_sweep(world: World) -> None:
    turn = world.submit()
    with world.store.write() as tx:
        tx.execute(update(schema.turns).values(ready=0))

    assert reason(world, turn).cause is WaitCause.NEXT_SWEEP


def test_sub_agent_whose_result_is_not_needed_is_about_to_be_cancelled(world: World) -> None:
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]]})
    turn = world.submit()
    until(world, lambda: "bob" in by_agent(world))
    child = by_agent(world)["bob"]["id"]
    stages.cancel_turn(world.runtime, turn)

    assert reason(world, child).cause is WaitCause.UNWANTED


# a run at work


def test_model_call_names_its_worker_and_its_lease(world: World) -> None:
    found = []

    def look_at_it(_prompt) -> None:
        stages.beat(world.runtime, first=0, every=0)
        found.append(reason(world, world.row("turns")["id"]))

    world.models.before_reply = look_at_it
    world.models.script = lambda prompt: spoken("ok")
    world.submit()
    world.run_dry()

    (one,) = found
    assert (one.cause, one.owner.kind, one.owner.id) == (WaitCause.MODEL_CALL, OwnerKind.PROCESS, "world")
    assert one.until == world.clock() + timedelta(seconds=world.runtime.leases.seconds)


def test_model_call_is_known_from_redis_before_its_first_heartbeat(world: World) -> None:
    found = []
    world.models.before_reply = lambda _: found.append(reason(world, world.row("runs")["id"]))
    world.models.script = lambda prompt: spoken("ok")
    world.submit()
    world.run_dry()

    assert [(one.cause, one.owner.id) for one in found] == [(WaitCause.MODEL_CALL, "world")]


def test_model_that_is_backed_off_from_says_until_when(world: World) -> None:
    found = []

    def back_off(_prompt) -> None:
        (work,) = world.runtime.in_flight.all()
        work.paused(30.0)
        found.append(reason(world, world.row("turns")["id"]))
        world.clock.pass_by(31)
        found.append(reason(world, world.row("turns")["id"]))

    world.models.before_reply = back_off
    world.models.script = lambda prompt: spoken("ok")
    world.submit()
    world.run_dry()

    assert [one.cause for one in found] == [WaitCause.MODEL_BACKOFF, WaitCause.MODEL_CALL]
    assert found[0].until == world.clock() - timedelta(seconds=1)


def test_worker_that_is_gone_leaves_its_run_to_rescue(world: World) -> None:
    def die(_prompt):
        stages.beat(world.runtime, first=0, every=0)
        raise world.kill()

    world.models.before_reply = die
    turn = world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.revive()
    stages.end_presence(world.runtime, ["world"])
    show_workers(world, name="second")

    found = reason(world, turn)

    assert (found.cause, found.owner.id) == (WaitCause.LOST_WORKER, "world")
    assert found.until == world.clock() + timedelta(seconds=world.runtime.leases.sweep)


def test_worker_that_is_gone_with_all_others_leaves_nobody_to_rescue_its_run(world: World) -> None:
    def die(_prompt):
        stages.beat(world.runtime, first=0, every=0)
        raise world.kill()

    world.models.before_reply = die
    turn = world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.revive()
    stages.end_presence(world.runtime, ["world"])

    found = reason(world, turn)

    assert (found.cause, found.remedy.command) == (WaitCause.NO_WORKER, "chordage worker --queues chat")


def test_run_whose_lease_ran_out_is_sent_again_by_the_next_sweep(world: World) -> None:
    turn = start(world)
    world.clock.pass_by(31)
    show_workers(world)

    assert reason(world, turn).cause is WaitCause.NEXT_SWEEP


def test_run_of_a_broken_agent_waits_for_its_repair(world: World) -> None:
    turn = start(world)
    world.agents.broken = {"ada"}
    while world.pending:
        try:
            world.deliver(world.pending.pop(0))
        except BrokenAgent:
            break

    found = reason(world, turn)

    assert (found.cause, found.owner.id, found.remedy.command) == (WaitCause.BROKEN_AGENT, "ada", "chordage check")


# a round of tools


def test_round_says_how_many_of_its_tools_are_done_and_who_runs_the_others(world: World) -> None:
    found = []

    def look_at_it(order) -> None:
        stages.beat(world.runtime, first=0, every=0)
        found.append((reason(world, world.row("turns")["id"]), reason(world, order.call_id)))

    world.models.script = rounds_of(3, tool="reconcilable")
    world.tools.before = look_at_it
    world.submit()
    world.run_dry()

    of_turn, of_call = found[1]
    assert (of_turn.cause, of_turn.owner.id) == (WaitCause.TOOL_ROUND, "world")
    assert of_turn.text == "1 of 3 calls of its round is done; reconcilable runs on world."
    assert of_turn.because is not None
    assert (of_turn.because.kind, of_turn.because.cause) == (RowKind.CALL, WaitCause.CALL_CLAIMED)
    assert (of_call.cause, of_call.owner.id) == (WaitCause.CALL_CLAIMED, "world")
    assert of_call.until == world.clock() + timedelta(seconds=world.runtime.leases.seconds)


def test_call_that_no_worker_has_taken_is_in_its_queue(world: World) -> None:
    world.models.script = rounds_of(2)
    world.submit()
    until(world, lambda: world.rows("calls"))

    call = world.rows("calls")[0]
    found = reason(world, call["id"])

    assert (found.cause, found.owner.id, found.until) == (WaitCause.CALL_QUEUED, "chat.tools", call["lease_until"])


def test_call_whose_queue_no_worker_serves_says_so_and_so_does_its_turn(world: World) -> None:
    show_workers(world, "system", "chat")
    world.models.script = rounds_of(2)
    turn = world.submit()
    until(world, lambda: world.rows("calls"))

    found = reason(world, turn)

    assert found.cause is WaitCause.TOOL_ROUND
    assert found.because is not None
    assert (found.because.cause, found.because.owner.id) == (WaitCause.NO_WORKER, "chat.tools")


@pytest.mark.parametrize(("tool", "then"), [("pure", "sends the call again"), ("unsafe", "asks what became")])
def test_call_of_a_worker_that_is_gone_says_what_rescue_will_do(world: World, tool, then) -> None:
    def die(order):
        stages.beat(world.runtime, first=0, every=0)
        raise world.kill()

    world.models.script = rounds_of(1, tool=tool)
    world.tools.before = die
    world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.revive()
    stages.end_presence(world.runtime, ["world"])
    show_workers(world, name="second")

    call = world.row("calls")
    found = reason(world, call["id"])

    assert (found.cause, found.owner.id) == (WaitCause.LOST_WORKER, "world")
    assert then in found.text
    waits = {"pure": world.clock() + timedelta(seconds=world.runtime.leases.sweep), "unsafe": call["lease_until"]}
    assert found.until == waits[tool]


def test_call_whose_message_was_lost_is_sent_again(world: World) -> None:
    world.models.script = rounds_of(1)
    world.submit()
    until(world, lambda: world.rows("calls"))
    world.clock.pass_by(31)
    show_workers(world)

    assert reason(world, world.row("calls")["id"]).cause is WaitCause.NEXT_SWEEP


# questions


def suspend(world: World, **question: object) -> str:
    """A turn that waits for an answer of a person."""
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0, question=Question(why=Why.TOOL, prompt="May I?", **question))
    turn = world.submit()
    world.run_dry()
    return turn


def test_question_to_a_person_says_how_to_answer_and_what_happens_without(world: World) -> None:
    turn = suspend(world, expires_in=60.0, on_expiry=OnExpiry.CANCEL_RUN)
    asked = world.row("suspensions")

    for row_id in (turn, world.row("runs")["id"], world.row("calls")["id"], asked["id"]):
        found = reason(world, row_id)
        assert (found.cause, found.owner.kind, found.until) == (
            WaitCause.DECISION, OwnerKind.PERSON, asked["expires_at"],
        )  # fmt: skip
        assert found.remedy.command == f"chordage approve {asked['id']}"
        assert found.remedy.http == "POST /decisions"
        assert "then its run is cancelled" in found.text


def test_question_that_is_overdue_says_since_when(world: World) -> None:
    turn = suspend(world, expires_in=60.0, on_expiry=OnExpiry.ESCALATE)
    world.sweep(seconds=61)

    found = reason(world, turn)

    assert (found.cause, found.until) == (WaitCause.DECISION, None)
    assert "It is overdue since 2026-01-01 00:01:00 UTC." in found.text


def test_unknown_outcome_needs_a_person(world: World) -> None:
    def die(order):
        world.tools.before = lambda order: None
        raise world.kill()

    change_agent(world, on_unknown=OnUnknown.ASK)
    world.models.script = rounds_of(1, tool="unsafe")
    world.tools.before = die
    turn = world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.forget_the_dead()
    world.sweep(seconds=31)
    world.run_dry()

    found = reason(world, turn)

    assert (found.cause, found.owner.kind) == (WaitCause.OUTCOME_UNKNOWN, OwnerKind.PERSON)
    assert found.remedy.command.startswith(f"chordage approve {world.row('suspensions')['id']} --payload ")


def test_run_that_waits_for_a_sub_agent_has_the_reason_of_that_with_it(world: World) -> None:
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[ask("cleo")]], "cleo": [[PURE]]})
    world.tools.asks = asks_once(0)
    turn = world.submit()
    world.run_dry()
    turns = by_agent(world)

    found = reason(world, turn)

    assert (found.cause, found.owner.id) == (WaitCause.SUB_AGENT, turns["bob"]["id"])
    assert found.because is not None
    assert (found.because.cause, found.because.owner.id) == (WaitCause.SUB_AGENT, turns["cleo"]["id"])
    assert found.because.because is not None
    assert found.because.because.cause is WaitCause.DECISION
    check_every_open_row_has_a_reason(world)


def test_call_that_is_parked_names_the_call_before_it(world: World) -> None:
    change_agent(world, tool_mode=ToolMode.SEQUENTIAL)
    world.models.script = rounds_of(2)
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()
    first, second = sorted(world.rows("calls"), key=lambda row: row["place"])

    found = reason(world, second["id"])

    assert (found.cause, found.owner.id) == (WaitCause.BEHIND_CALL, first["id"])
    assert found.because is not None
    assert found.because.cause is WaitCause.DECISION


def test_decided_call_waits_until_its_run_applies_the_decision(world: World) -> None:
    """The other question of a round that continues as a whole is open."""
    change_agent(world, tool_mode=ToolMode.PARALLEL_BATCH)
    world.models.script = rounds_of(2)
    world.tools.asks = asks_once(0, 1)
    turn = world.submit()
    world.run_dry()
    first, _second = world.inbox()
    world.decide(approval(first))
    world.run_dry()

    assert reason(world, first["id"]).cause is WaitCause.DECIDED
    assert reason(world, turn).cause is WaitCause.DECISION


# a stepped run


def test_held_run_waits_for_its_consumer_until_the_hold_ends(world: World) -> None:
    world.models.script = lambda prompt: spoken("ok")
    turn = world.submit(control=Control.STEP, step=StepTerms(hold_seconds=60.0))
    world.run_dry()

    found = reason(world, turn)
    until_then = world.row("stepped")["held_until"]

    assert (found.cause, found.owner.kind, found.until) == (WaitCause.HELD, OwnerKind.CONSUMER, until_then)
    assert found.until is not None
    assert found.text.endswith("then it is parked.")
    world.step(turn, "park")
    assert (reason(world, turn).cause, reason(world, turn).until) == (WaitCause.HELD, None)


def test_held_run_that_was_moved_on_waits_for_a_worker(world: World) -> None:
    world.models.script = lambda prompt: spoken("ok")
    turn = world.submit(control=Control.STEP, step=StepTerms())
    world.run_dry()
    world.step(turn, "next")

    assert reason(world, turn).cause is WaitCause.MESSAGE_SENT


# what is outside turns


def test_task_whose_turn_is_open_has_the_reason_of_the_turn_with_it(world: World, tmp_path) -> None:
    room = PulseRoom(world, tmp_path)
    aged(room.file("tasks/fence.md", TASK))
    room.tick()

    found = reason(world, "pulse:task:abcd2345")

    (turn,) = world.rows("turns")
    assert (found.cause, found.owner.id) == (WaitCause.TURN_OPEN, turn["id"])
    assert found.because is not None
    assert found.because.cause is WaitCause.MESSAGE_SENT


def test_chore_says_when_it_is_due_next_that_it_is_due_and_that_it_is_paused(world: World, tmp_path) -> None:
    world.models.script = lambda prompt: spoken("ok")
    room = PulseRoom(world, tmp_path)
    aged(room.file("chores/water.md", "---\nevery: 1h\n---\nlook\n"))
    room.tick_and_finish()
    room.tick(1)

    later = reason(world, "pulse:chore:water")
    assert (later.cause, later.until) == (WaitCause.DUE_LATER, room.row("chore", "water")["next_due"])
    world.clock.pass_by(8000)
    assert reason(world, "pulse:chore:water").cause is WaitCause.DUE_NOW
    assert [one.id for one in views.waiting(sources(world)) if one.kind is RowKind.PULSE] == ["chore:water"]
    room.file("chores/water.md", "---\nevery: 1h\npaused: true\n---\nlook\n")
    room.tick(1)
    paused = reason(world, "pulse:chore:water")
    assert (paused.cause, paused.owner.id) == (WaitCause.PAUSED, "chores/water.md")
    assert "chores/water.md" in paused.text


def test_task_that_was_answered_waits_for_an_edit(world: World, tmp_path) -> None:
    world.models.script = lambda prompt: spoken("ok")
    room = PulseRoom(world, tmp_path)
    aged(room.file("tasks/fence.md", TASK))
    room.tick_and_finish()
    room.tick(1)

    found = reason(world, "pulse:task:abcd2345")

    assert (found.cause, found.remedy.command) == (WaitCause.UNCHANGED, "chordage pulse run task:abcd2345")


def test_channel_that_fails_says_when_it_is_asked_again(world: World) -> None:
    bind(world, ListChannel(fails=[Unavailable("the server is away")]))
    look(world)

    found = reason(world, "channel:list")
    (row,) = world.rows("polls")
    assert (found.cause, found.until) == (WaitCause.POLL_BACKOFF, row["next_look"])
    assert "the server is away" in found.text
    world.clock.pass_by(600)
    assert reason(world, "channel:list").cause is WaitCause.NOT_POLLED


def test_channel_that_is_polled_has_a_reason_and_is_not_listed(world: World) -> None:
    bind(world, ListChannel(messages=[]))
    look(world)

    assert reason(world, "channel:list").cause is WaitCause.POLLED
    assert views.waiting(sources(world)) == []


# deliveries


def a_reply(world: World, thread: str = "t") -> str:
    world.models.script = lambda prompt: spoken("ok")
    world.submit(thread=thread, reply_target={"channel": "me", "chat": 42})
    world.run_dry()
    return str(max(row["id"] for row in world.rows("outbox")))


def change(world: World, number: str, **values: object) -> None:
    with world.store.write() as tx:
        tx.execute(update(schema.outbox).where(schema.outbox.c.id == int(number)).values(**values))


def on_the_bus(world: World) -> None:
    row = {"name": "bus", "bus": "b", "generation": 1, "position": 10_000, "failures": 0}
    with world.store.write() as tx:
        tx.execute(schema.projection.insert(), row)


def test_reply_waits_until_what_it_reports_is_on_the_bus(world: World) -> None:
    found = reason(world, a_reply(world))

    assert (found.cause, found.owner.kind, found.remedy.command) == (
        WaitCause.BUS_BEHIND, OwnerKind.BUS, "chordage bus",
    )  # fmt: skip


def test_reply_that_failed_is_sent_again_later_and_the_next_of_its_thread_behind_it(world: World) -> None:
    first, second = a_reply(world), a_reply(world)
    on_the_bus(world)

    def refuse(*_given):
        raise TryLater("the receiver said 503")

    world.runtime = replace(world.runtime, channels=_Channels(refuse))
    stages.deliver(world.runtime)
    world.pending.clear()

    found, behind = reason(world, first), reason(world, second)

    assert (found.cause, found.until) == (WaitCause.DELIVERY_RETRY, world.row("outbox", id=int(first))["next_at"])
    assert "the receiver said 503" in found.text
    assert (behind.cause, behind.owner.id) == (WaitCause.BEHIND_DELIVERY, first)
    assert behind.because == found


def test_dead_letter_says_how_to_send_it_again(world: World) -> None:
    number = a_reply(world)
    change(world, number, status="dead", dead_at=world.clock(), attempts=12, error="the receiver said 500")

    found = reason(world, number)

    assert (found.cause, found.owner.kind) == (WaitCause.DEAD_LETTER, OwnerKind.PERSON)
    assert found.remedy.command == f"chordage deliveries retry {number}"


def test_reply_under_way_names_the_worker_and_a_due_one_the_queue(world: World) -> None:
    number = a_reply(world)
    on_the_bus(world)
    assert reason(world, number).cause is WaitCause.MESSAGE_SENT
    until_then = world.clock() + timedelta(seconds=22)
    change(world, number, claim_token="k", claim_worker="world", next_at=until_then)

    found = reason(world, number)

    assert (found.cause, found.owner.id, found.until) == (WaitCause.SENDING, "world", until_then)
    show_workers(world, "chat")
    change(world, number, claim_token=None, claim_worker=None, next_at=world.clock())
    assert reason(world, number).cause is WaitCause.NO_WORKER


class _Channels:
    def __init__(self, deliver) -> None:
        self.deliver = deliver

    def get(self, _name: str):
        return self


# ids, lists and callers


def test_thread_has_the_reason_of_the_turn_that_is_at_work_there(world: World) -> None:
    turn = start(world, thread="t1")
    world.submit(thread="t1")

    view = why(world, "t1")

    assert (view.kind, view.id) == (RowKind.THREAD, "t1")
    assert view.reason is not None
    assert (view.reason.kind, view.reason.id) == (RowKind.TURN, turn)


def test_what_is_done_has_no_reason(world: World) -> None:
    world.models.script = rounds_of(1)
    turn = world.submit(thread="t1")
    world.run_dry()
    run, call = world.row("runs")["id"], world.row("calls")["id"]

    assert [why(world, one).reason for one in (turn, run, call, "t1")] == [None] * 4
    assert why(world, turn).text == f"Turn {turn} does not wait: answered."
    assert why(world, call).text == f"Call {call} does not wait: succeeded."
    assert why(world, "t1").text == "Thread t1 does not wait: nothing is open or queued on it."


@pytest.mark.parametrize(
    ("some_id", "lists"),
    [
        ("nothing", "why"),
        ("17", "why"),
        ("pulse:task:none", "pulse"),
        ("pulse:", "pulse"),
        ("channel:none", "channels"),
    ],
)
def test_what_is_not_there_is_not_found(world: World, some_id, lists) -> None:
    with pytest.raises(NotFound, match=f"`chordage {lists}`"):
        why(world, some_id)


def test_list_has_what_waits_oldest_first_up_to_its_limit(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    turns = []
    for number in range(4):
        turns.append(world.submit(thread=f"t{number}"))
        world.clock.pass_by(1)
    world.deliver(world.pending.pop(0))

    reasons = views.waiting(sources(world))

    assert {one.id for one in reasons} == set(turns)
    assert [one.since for one in reasons] == sorted(one.since for one in reasons)
    assert [one.id for one in views.waiting(sources(world), limit=2)] == [one.id for one in reasons[:2]]


def test_caller_finds_what_is_on_its_own_threads_and_nothing_of_others(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    other = start(world, thread="api@b:x", tenant="b")
    mine = world.submit(thread="api@a:y", tenant="a")

    found = reason(world, mine, space="api@a")

    run = world.row("runs")["id"]
    assert (found.cause, found.because) == (WaitCause.GROUP_FULL, None)
    assert run not in found.text
    assert [one.id for one in views.waiting(sources(world, space="api@a"))] == [mine]
    for some_id in (other, run, "api@b:x", "pulse:will", "channel:list"):
        with pytest.raises(NotFound):
            why(world, some_id, space="api@a")


def test_list_of_many_rows_takes_as_many_statements_as_one(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    turns = [RowKey(RowKind.TURN, world.submit(thread=f"t{number}")) for number in range(20)]
    world.deliver(world.pending.pop(0))

    def statements(keys) -> int:
        before = world.statements
        assert len(views.whys(sources(world), keys)) == len(keys)
        return world.statements - before

    assert statements(turns[5:]) == statements(turns[5:6]) <= 16
