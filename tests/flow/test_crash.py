"""The process dies: at every commit of a turn, just before and just after, and every wake-up it had is lost."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import OnUnknown
from chordage.orchestrator.core.intents import CallModel, CallTool
from chordage.orchestrator.core.model import AssistantSays
from chordage.orchestrator.store import runs, schema
from support.fakes import rounds_of, spoken
from support.invariants import check_all
from support.world import Died, World, a_persons_answer

COMMITS = 3 + 2 * (1 + 3)


def die(world: World, at: int, *, before: bool, headers_survive: bool = False) -> None:
    """Run until that commit, lose everything that is not in the database."""
    world.die_at, world.die_before = world.commits + at, before
    try:
        world.run_dry()
    except Died:
        world.pending.clear()
        world.forget_the_dead()
    world.die_at = None


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("at", range(1, COMMITS + 1))
@pytest.mark.parametrize("effect", ["pure", "idempotent", "unsafe", "reconcilable"])
@pytest.mark.parametrize("carries", [False, True], ids=["sent", "carried"])
def test_a_turn_survives_death_at_any_commit(world: World, at: int, before: bool, effect: str, carries: bool) -> None:
    world.carries = carries
    world.models.script = rounds_of(3, rounds=2, tool=effect)
    turn = world.submit()

    die(world, at, before=before)
    world.recover()

    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)
    _no_finished_work_ran_again(world, effect)


def _no_finished_work_ran_again(world: World, effect: str) -> None:
    replies = len(world.rows("journal", kind="AssistantTurnCommitted"))
    asked = len(world.rows("suspensions"))
    assert replies == 3 + asked, "after an answer the model is asked once more"
    assert len(world.models.prompts) <= replies + 1, "more model calls than the one that was cut"
    lost = [call for call in world.rows("calls") if call["code"] == "failed_by_decision"]
    assert len(lost) == asked
    if effect == "unsafe":
        assert max(world.tools.ran.values()) == 1
        assert len(lost) <= 1
    else:
        assert lost == []
        assert world.tools.ran.total() <= 7
        assert all(call["status"] == "succeeded" for call in world.rows("calls"))


def test_a_reconcilable_call_that_did_happen_is_not_run_again(world: World) -> None:
    from chordage.orchestrator.gateways.ports import ToolOutcome

    world.models.script = rounds_of(1, tool="reconcilable")
    turn = world.submit()

    def happen_and_die(order):
        world.tools.known[order.idempotency_key] = ToolOutcome(content="it did happen")
        raise world.kill()

    world.tools.before = happen_and_die
    with pytest.raises(Died):
        world.run_dry()
    world.pending.clear()
    world.forget_the_dead()
    world.recover()

    assert world.tools.ran.total() == 1
    assert world.row("calls")["content"] == "it did happen"
    assert world.row("turns", id=turn)["disposition"] == "answered"


def test_interrupted_unsafe_call_is_closed_as_unknown_where_questions_are_off(world: World) -> None:
    world.agents.agents["ada"] = replace(world.agents.agents["ada"], on_unknown=OnUnknown.FAIL)
    world.models.script = rounds_of(2, tool="unsafe")
    world.submit()
    cut = iter([True])

    def die_once(order):
        if next(cut, False):
            raise world.kill()

    world.tools.before = die_once
    with pytest.raises(Died):
        world.run_dry()
    world.pending.clear()
    world.forget_the_dead()
    world.recover()

    assert [call["code"] for call in world.rows("calls")] == ["outcome_unknown", None]
    assert max(world.tools.ran.values()) == 1
    assert "not known whether it took effect" in world.models.prompts[-1].said[-2].content


@pytest.mark.usefixtures("calls_anywhere")
@pytest.mark.parametrize("rounds", [0, 1])
def test_run_that_keeps_killing_its_workers_ends_as_poison(world: World, rounds: int) -> None:
    """At its first step, or behind a round."""

    def die_at_the_last_step(prompt):
        if rounds == sum(isinstance(said, AssistantSays) for said in prompt.said):
            raise world.kill()

    world.models.script = rounds_of(1, rounds=rounds)
    world.models.before_reply = die_at_the_last_step
    turn = world.submit()

    deaths = _keep_dying(world)

    assert deaths == world.runtime.leases.poison_after
    assert (world.row("runs")["reason"], world.row("runs")["code"]) == ("error", "poison")
    assert world.row("turns", id=turn)["disposition"] == "failed"
    check_all(world.store)


@pytest.mark.parametrize("step", [1, 3])
def test_a_death_before_the_first_beat_counts_and_a_wake_up_that_was_lost_does_not(world: World, step: int) -> None:
    world.models.script = rounds_of(1)
    world.submit()
    while not any(isinstance(intent, CallModel) and intent.step == step for intent in world.pending):
        world.deliver(world.pending.pop(0))
    lost = world.pending.pop()
    assert isinstance(lost, CallModel)
    world.sweep(seconds=40)
    (woken,) = world.pending
    assert (world.row("runs")["resends"], world.row("runs")["expiries"]) == (1, 0)

    def die(prompt):
        raise world.kill()

    world.models.before_reply = die
    world.deliver(woken)
    with pytest.raises(Died):
        world.deliver(world.pending.pop())
    world.forget_the_dead()
    world.sweep(seconds=2000)
    assert world.row("runs")["expiries"] == 1


def test_a_first_death_after_a_beat_counts_although_redis_has_forgotten(world: World) -> None:
    def beat_and_die(prompt):
        stages.beat(world.runtime, first=0, every=0)
        raise world.kill()

    world.models.before_reply = beat_and_die
    world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.revive()
    world.locks.wipe()
    world.sweep(seconds=40)

    assert world.row("runs")["expiries"] == 1


@pytest.mark.parametrize("what", ["run", "call"])
def test_work_ended_as_poison_continues_if_its_holder_was_only_late(world: World, what: str, monkeypatch) -> None:
    """Between the look of the sweep and the end that it writes, the heartbeat comes through."""
    world.runtime = replace(world.runtime, leases=replace(world.runtime.leases, poison_after=1))
    world.models.script = rounds_of(1, rounds=int(what == "call"))
    lock, swept = runs.lock, []

    def beat_comes_first(tx, run_id):
        tx.execute(update(schema.metadata.tables[f"{what}s"]).values(lease_until=world.clock() + timedelta(seconds=30)))
        return lock(tx, run_id)

    def sweep_while_it_works(_) -> None:
        if not swept:
            stages.beat(world.runtime, first=0, every=0)
            world.locks.lapse()
            with monkeypatch.context() as late:
                late.setattr(runs, "lock", beat_comes_first)
                swept.append(world.sweep(seconds=40))

    world.models.before_reply = sweep_while_it_works if what == "run" else world.models.before_reply
    world.tools.before = sweep_while_it_works
    turn = world.submit()
    world.run_dry()

    assert len(swept) == 1
    assert world.row("turns", id=turn)["disposition"] == "answered"


@pytest.mark.usefixtures("calls_anywhere")
def test_a_call_that_keeps_killing_its_workers_ends_the_run_as_poison(world: World) -> None:
    def die_always(order):
        raise world.kill()

    world.tools.before = die_always
    world.models.script = rounds_of(2, tool="idempotent")
    turn = world.submit()

    deaths = _keep_dying(world)

    assert deaths <= 2 * (1 + world.runtime.leases.poison_after)
    assert world.row("runs")["code"] == "poison"
    assert world.row("turns", id=turn)["disposition"] == "failed"
    assert {call["status"] for call in world.rows("calls")} == {"cancelled"}


@pytest.mark.parametrize("tool", ["pure", "idempotent", "reconcilable"])
def test_call_whose_process_is_ended_each_time_is_poison_however_often_its_message_comes(world, tool):
    """The signal to end is raised in the call, which is released; the message of a lost process comes back."""

    def end(order):
        raise SystemExit

    world.tools.before = end
    world.models.script = rounds_of(1, tool=tool)
    turn = world.submit()
    for _ in range(10):
        while world.pending:
            intent = world.pending.pop(0)
            for again in range(5):
                with contextlib.suppress(SystemExit):
                    world.deliver(intent, doubt=again > 0)
                    break
        if not world.unfinished():
            break
        world.sweep(seconds=40)

    assert world.row("runs")["code"] == "poison"
    assert world.row("turns", id=turn)["disposition"] == "failed"
    assert max(world.tools.ran.values()) <= 1 + world.runtime.leases.poison_after


def _keep_dying(world: World, limit: int = 40) -> int:
    deaths = 0
    for _ in range(limit):
        while world.pending:
            try:
                world.deliver(world.pending.pop(0))
            except Died:
                deaths += 1
                world.forget_the_dead()
        if not world.unfinished():
            return deaths
        world.sweep(seconds=2000)
    raise AssertionError("it continues for ever")


def test_one_sweep_after_the_lease_the_run_moves_again(world: World) -> None:
    world.models.script = rounds_of(2)
    turn = world.submit()
    die(world, 3, before=False)

    rules = world.runtime.leases
    assert world.sweep(seconds=rules.seconds - 1) == []
    assert world.sweep(seconds=1 + rules.sweep)
    world.run_dry()
    while world.unfinished():
        world.sweep(seconds=rules.seconds + rules.sweep)
        world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "answered"


def test_work_in_flight_is_left_alone(world: World) -> None:
    """The model call was picked up late and its worker lives: no second one is woken."""
    world.submit()
    world.deliver(world.pending.pop(0))
    run = world.row("runs")
    world.locks.work[f"{run['id']}:1:1"] = "another"

    assert world.sweep(seconds=40) == []


def test_a_lost_header_is_sent_again_alone_and_the_round_is_committed(world: World) -> None:
    world.models.script = rounds_of(3)
    turn = world.submit()
    while not any(hasattr(intent, "batches") for intent in world.pending):
        world.deliver(world.pending.pop(0))
    world.pending.clear()

    woken = world.sweep(seconds=40)
    assert len([intent for intent in woken if isinstance(intent, CallTool)]) == 3
    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "answered"


def test_wake_ups_of_a_long_queue_are_repeated_less_and_less_often(world: World) -> None:
    world.models.script = rounds_of(1)
    world.submit()
    while not any(hasattr(intent, "batches") for intent in world.pending):
        world.deliver(world.pending.pop(0))

    sent = sum(len(world.sweep(seconds=5)) for _ in range(120))

    assert sent <= 600 / 60 + 2


@pytest.mark.usefixtures("calls_anywhere")
def test_redis_forgets_everything_and_nothing_is_lost_or_doubled(world: World) -> None:
    world.models.script = rounds_of(2)
    for number in range(4):
        world.submit(f"m{number}", thread=f"t{number % 2}")
    for step in range(200):
        if step % 3 == 0:
            world.locks.wipe()
        if step % 11 == 0:
            world.pending.clear()
        if not world.pending and not world.unfinished():
            break
        if world.pending:
            world.deliver(world.pending.pop(0))
        else:
            world.sweep(seconds=40)

    assert world.unfinished() == []
    check_all(world.store)


@pytest.mark.usefixtures("calls_anywhere")
def test_a_cancelled_turn_refuses_the_late_reply_of_its_model_call(world: World) -> None:
    from chordage.orchestrator import stages

    turn = world.submit()
    world.models.before_reply = lambda prompt: stages.cancel_turn(world.runtime, turn, "enough")
    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "cancelled"
    assert world.rows("journal", kind="AssistantTurnCommitted") == []
    check_all(world.store)


def test_cancelling_closes_the_open_calls_and_frees_the_thread(world: World) -> None:
    from chordage.orchestrator import stages

    world.models.script = rounds_of(2)
    turn, after = world.submit(), world.submit("next")
    while not any(hasattr(intent, "batches") for intent in world.pending):
        world.deliver(world.pending.pop(0))

    ended, intents = stages.cancel_turn(world.runtime, turn)
    world.pending += intents
    world.run_dry()

    assert ended
    assert [call["status"] for call in world.rows("calls", run_id=world.rows("runs")[0]["id"])] == ["cancelled"] * 2
    assert world.row("turns", id=after)["disposition"] == "answered"
    assert stages.cancel_turn(world.runtime, turn) == (False, [])
    check_all(world.store)


def test_a_queued_turn_is_cancelled_at_once_and_the_line_moves_on(world: World) -> None:
    from chordage.orchestrator import stages

    world.models.script = lambda prompt: spoken("ok")
    first, second = world.submit("a"), world.submit("b")
    ended, intents = stages.cancel_turn(world.runtime, first)
    world.pending += intents
    world.run_dry()

    assert ended
    assert world.row("turns", id=second)["disposition"] == "answered"
    assert [entry["body"]["text"] for entry in world.rows("journal", kind="UserMessage")] == ["b"]


def test_a_header_redelivered_with_another_result_changes_nothing(world: World) -> None:
    world.models.script = rounds_of(1)
    world.submit()
    while not any(hasattr(intent, "call_ids") for intent in world.pending):
        world.deliver(world.pending.pop(0))
    header = world.pending.pop(0)
    world.deliver(header)
    first = world.row("calls")["content"]

    world.deliver(header, doubt=True)
    world.run_dry()

    assert world.row("calls")["content"] == first
    assert world.tools.ran.total() == 1


def test_model_that_fails_for_good_ends_the_run_with_its_fault(world: World) -> None:
    from chordage.orchestrator.core.errors import ModelFailed
    from chordage.orchestrator.core.model import Fault

    def fail(prompt):
        raise ModelFailed("openai:x: 401", fault=Fault.AUTH, attempts=())

    world.models.script = fail
    turn = world.submit()
    world.run_dry()

    assert (world.row("runs")["code"], world.row("runs")["detail"]) == ("model_auth", "openai:x: 401")
    assert world.row("turns", id=turn)["disposition"] == "failed"
    check_all(world.store)


def test_missing_agent_is_awaited_and_then_given_up(world: World) -> None:
    from chordage.orchestrator.core.errors import UnknownAgent

    turn = world.submit()
    gone = world.agents.agents
    world.agents.agents = {}
    for _ in range(12):
        while world.pending:
            try:
                world.deliver(world.pending.pop(0))
            except UnknownAgent:
                world.forget_the_dead()
        if not world.unfinished():
            break
        world.sweep(seconds=2000)
    world.agents.agents = gone

    assert world.row("runs")["code"] == "agent"
    assert world.row("turns", id=turn)["disposition"] == "failed"


def test_a_reply_that_no_database_could_hold_is_kept_with_its_bad_characters_replaced(world: World) -> None:
    from chordage.orchestrator.core.model import Reply, StopReason, ToolAsk

    bad = ToolAsk(id="a\x00", name="n" * 300, arguments={"k\x00": ["\ud800"]}, raw="\x00")
    replies = iter([Reply(text="x\x00", asks=(bad,), stop=StopReason.TOOL_USE, model="fake"), spoken("ok")])
    world.models.script = lambda prompt: next(replies)
    turn = world.submit()

    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert world.row("calls")["code"] == "unknown_tool"


def test_work_with_an_unforeseen_failure_ends_as_poison(world: World) -> None:
    def explode(prompt):
        raise ZeroDivisionError

    world.models.before_reply = explode
    turn = world.submit()
    for _ in range(12):
        while world.pending:
            try:
                world.deliver(world.pending.pop(0))
            except ZeroDivisionError:
                world.forget_the_dead()
        if not world.unfinished():
            break
        world.sweep(seconds=2000)

    assert world.row("runs")["code"] == "poison"
    assert len(world.models.prompts) <= world.runtime.leases.poison_after
    assert world.row("turns", id=turn)["disposition"] == "failed"


@pytest.mark.parametrize("effect", ["pure", "idempotent", "reconcilable", "unsafe"])
def test_call_with_an_unforeseen_end_still_ends_the_turn(world: World, effect: str) -> None:
    def explode(order):
        raise MemoryError

    world.tools.before = explode
    world.models.script = rounds_of(1, tool=effect)
    turn = world.submit()
    for _ in range(12):
        while world.pending:
            try:
                world.deliver(world.pending.pop(0))
            except MemoryError:
                world.forget_the_dead()
        if not world.unfinished():
            break
        world.revive()
        for row in world.inbox():
            world.decide(a_persons_answer(row))
        world.sweep(seconds=2000)

    assert world.row("turns", id=turn)["disposition"] == ("answered" if effect == "unsafe" else "failed")
    assert world.row("calls")["code"] == ("failed_by_decision" if effect == "unsafe" else "error")
    check_all(world.store)


def test_decision_with_an_unforeseen_failure_ends_as_poison(world: World) -> None:
    def explode(name):
        raise PermissionError("agent.toml")

    turn = world.submit()
    world.agents.get, get = explode, world.agents.get
    for _ in range(12):
        while world.pending:
            try:
                world.deliver(world.pending.pop(0))
            except PermissionError:
                world.forget_the_dead()
        if not world.unfinished():
            break
        world.sweep(seconds=2000)
    world.agents.get = get

    assert world.row("runs")["code"] == "poison"
    assert world.row("turns", id=turn)["disposition"] == "failed"
