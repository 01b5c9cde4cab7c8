"""Of messages for the same work, the latest that is queued is kept; the older end `merged`, and say into what."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.core.agent import AgentSpec, Limits, WhenBusy, WhileWaiting
from chordage.orchestrator.core.errors import QueueFull
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import CallModel
from chordage.orchestrator.core.limits import TurnLimits
from chordage.orchestrator.core.message import Origin, Sender
from chordage.orchestrator.core.stepping import Control
from support.busy_thread import in_the_model_call
from support.fakes import rounds_of, spoken
from support.invariants import check_all
from support.questions import approval, asks_once
from support.world import World

CHORE = {"origin": Origin.CHORE, "sender": Sender.SELF, "thread": "chore:backup"}
TASK = {"origin": Origin.TASK, "sender": Sender.SELF, "thread": "task:7"}
WILL = {"origin": Origin.WILL, "sender": Sender.SELF, "thread": None}


def dispositions(world: World) -> list[str]:
    return [turn["disposition"] for turn in world.rows("turns")]


@pytest.mark.parametrize("own", [CHORE, TASK, {"coalesce_key": "report", "thread": "t1"}], ids=["chore", "task", "key"])
def test_the_latest_definition_of_queued_work_is_kept(world: World, own: dict) -> None:
    world.models.script = lambda prompt: spoken("ok")
    older, newer = world.submit("old", **own), world.submit("new", **own)

    world.run_dry()

    merged = world.row("turns", id=older)
    assert (merged["disposition"], merged["into_turn"], merged["run_id"]) == ("merged", newer, None)
    assert newer in merged["detail"]
    assert views.turn(world.store, older).fate == f"merged into turn {newer}"
    assert [prompt.said[-1].text for prompt in world.models.prompts] == ["new"]
    assert world.events.done == [older, newer]
    check_all(world.store)


def test_what_replaces_a_turn_has_its_place_in_time(world: World) -> None:
    """So triggers that keep coming do not put their work off for ever."""
    world.budgets[Group.CHORE] = 0
    first = world.submit(**CHORE)
    due = world.row("turns", id=first)["due_at"]
    for _ in range(3):
        world.clock.pass_by(10)
        latest = world.submit(**CHORE)

    assert world.row("turns", id=latest)["due_at"] == due
    assert world.row("turns", status="queued")["ready"] == 1


def test_scheduled_turn_starts_no_earlier_than_its_time(world: World) -> None:
    later = world.clock() + timedelta(hours=1)
    world.submit("now", **CHORE)
    latest = world.submit("later", not_before=later, **CHORE)
    world.run_dry()

    assert (world.models.prompts, world.row("turns", id=latest)["due_at"]) == ([], later)
    soon = world.submit("now", **CHORE)
    assert world.row("turns", id=soon)["due_at"] == world.clock()


def test_triggers_while_a_chore_runs_are_one_further_turn(world: World) -> None:
    world.models.script = lambda prompt: spoken("ok")
    in_the_model_call(world, lambda: [world.submit("tick", **CHORE) for _ in range(9)])
    world.submit("first", **CHORE)

    world.run_dry()

    ends = dispositions(world)
    assert (len(ends), ends.count("answered"), ends.count("merged")) == (10, 2, 8)
    known = {turn["id"] for turn in world.rows("turns")}
    assert all(turn["into_turn"] in known for turn in world.rows("turns", disposition="merged"))
    check_all(world.store)


def test_different_work_is_not_merged(world: World) -> None:
    world.submit(**CHORE)
    world.submit(**{**CHORE, "thread": "chore:other"})
    world.submit(**CHORE, group=Group.WILL)
    world.submit(**TASK)
    world.submit(thread="chore:backup")

    world.run_dry()

    assert dispositions(world) == ["answered"] * 5


def test_work_of_one_key_may_be_on_several_threads(world: World) -> None:
    """The line behind the merged one moves on."""
    older = world.submit("old", thread="b", coalesce_key="k")
    behind = world.submit("behind", thread="b")
    newer = world.submit("new", thread="a", coalesce_key="k")
    assert world.row("turns", id=behind)["ready"] == 1

    last = world.submit("last", thread="c", coalesce_key="k")
    world.run_dry()

    assert [world.row("turns", id=one)["into_turn"] for one in (older, newer)] == [newer, last]
    assert dispositions(world).count("answered") == 2
    check_all(world.store)


def test_a_turn_that_has_started_is_not_queued_any_more(world: World) -> None:
    first = world.submit(**CHORE)
    world.deliver(world.pending.pop(0))
    second = world.submit(**CHORE)
    world.run_dry()

    assert [world.row("turns", id=one)["disposition"] for one in (first, second)] == ["answered", "answered"]


def test_a_known_dedupe_key_finds_its_turn_though_that_was_merged(world: World) -> None:
    first = world.submit(**CHORE, dedupe_key="slot 1")
    second = world.submit(**CHORE, dedupe_key="slot 2")

    assert world.submit(**CHORE, dedupe_key="slot 1") == first
    assert world.row("turns", status="queued")["id"] == second


def test_reply_target_learns_that_the_turn_was_merged(world: World) -> None:
    older = world.submit(**CHORE, reply_target={"channel": "tg", "address": "42"})
    newer = world.submit(**CHORE)

    told = world.row("outbox", turn_id=older)
    assert (told["target"], told["body"]["reason"]) == ({"channel": "tg", "address": "42"}, "merged")
    assert newer in told["body"]["detail"]


def test_stepped_turn_yields_its_slot_to_another(world: World) -> None:
    older = world.submit(control=Control.STEP, coalesce_key="k")
    newer = world.submit(control=Control.STEP, coalesce_key="k")
    world.run_dry()

    assert views.stepped(world.store, newer).standing == "ready"
    assert views.stepped(world.store, older).standing == "done"


def test_decisions_in_the_message_are_taken_though_it_replaces_another(world: World) -> None:
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    world.submit(**CHORE)
    world.run_dry()
    (asked,) = world.inbox()
    world.tools.asks = lambda order: None
    world.submit(**CHORE)
    world.submit(**CHORE, decisions=(approval(asked),))

    world.run_dry()

    assert sorted(dispositions(world)) == ["answered", "answered", "merged"]
    check_all(world.store)


def test_default_of_its_agent_is_not_applied_to_standing_work(world: World) -> None:
    habits = {"when_busy": WhenBusy.INTERRUPT, "while_waiting": None}
    world.agents.agents["ada"] = AgentSpec(name="ada", model="fake", **habits)
    in_the_model_call(world, lambda: world.submit("tick", **CHORE))
    world.submit(**CHORE)
    world.run_dry()

    assert dispositions(world) == ["answered", "answered"]


# the will


def test_a_will_is_one_queued_or_at_work(world: World) -> None:
    world.models.script = lambda prompt: spoken("ok")
    first = world.submit(**WILL)
    queued = world.submit(**WILL)
    late: list[str] = []
    in_the_model_call(world, lambda: late.append(world.submit(**WILL, reply_target={"channel": "tg", "to": 1})))
    world.run_dry()

    assert world.row("turns", id=first)["thread_id"] == "will:ada"
    assert dispositions(world) == ["answered", "merged", "merged"]
    assert {world.row("turns", id=one)["into_turn"] for one in (queued, *late)} == {first}
    assert world.row("outbox", turn_id=late[0])["body"]["reason"] == "merged"
    assert world.events.done == [queued, *late, first]
    world.submit(**WILL)
    world.run_dry()
    assert dispositions(world)[-1] == "answered"
    check_all(world.store)


def test_a_will_that_waits_for_a_decision_is_at_work(world: World) -> None:
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    first = world.submit(**WILL)
    world.run_dry()
    second = world.submit(**WILL, while_waiting=WhileWaiting.SUPERSEDE)

    assert world.row("turns", id=second)["into_turn"] == first
    assert world.row("runs")["status"] == "waiting"


def test_each_agent_has_a_will_of_its_own(world: World) -> None:
    world.agents.agents["bob"] = AgentSpec(name="bob", model="fake")
    world.submit(**WILL)
    world.submit(**WILL, agent="bob")
    world.run_dry()

    assert dispositions(world) == ["answered", "answered"]


@pytest.mark.parametrize(("group", "more"), [(Group.CHAT, {}), (Group.TASK, TASK)], ids=["chat", "task"])
def test_a_will_is_put_off_while_chats_or_tasks_wait_for_budget(world: World, group: Group, more: dict) -> None:
    world.budgets[group] = 1
    work = {"thread": "t1", **more}
    world.submit(**work)
    world.submit(**WILL)
    world.submit(**{**work, "thread": f"{work['thread']}b"})

    with pytest.raises(QueueFull, match=f"the will of agent 'ada' is put off: turns of group '{group.value}'"):
        world.submit(**WILL)

    assert len(world.rows("turns", origin="will")) == 1
    world.run_dry()
    world.submit(**WILL)


def test_a_will_that_is_known_is_found_however_busy_it_is(world: World) -> None:
    first = world.submit(**WILL, dedupe_key="pulse 1")
    world.budgets[Group.CHAT] = 0
    world.submit()

    assert world.submit(**WILL, dedupe_key="pulse 1") == first


# limits of a turn's own


def test_a_turn_brings_limits_of_its_own(world: World) -> None:
    world.models.script = rounds_of(1, rounds=99)
    world.submit(limits=TurnLimits(max_rounds=1))
    world.run_dry()

    assert (world.row("runs")["code"], world.tools.finished.total()) == ("max_rounds", 1)


def test_a_turn_brings_a_time_limit_of_its_own(world: World) -> None:
    world.models.script = rounds_of(1, rounds=99)
    world.submit(limits=TurnLimits(timeout=7.5))
    while not any(isinstance(intent, CallModel) and intent.step > 1 for intent in world.pending):
        world.deliver(world.pending.pop(0))
    world.clock.pass_by(8)
    world.run_dry()

    assert (world.row("runs")["code"], world.row("runs")["detail"]) == (
        "timeout", "the limit of 7.5 s for a turn was reached",
    )  # fmt: skip


def test_a_limit_that_the_agent_has_lowered_since_counts(world: World) -> None:
    world.models.script = rounds_of(1, rounds=99)
    world.submit(limits=TurnLimits(max_rounds=9))
    world.agents.agents["ada"] = AgentSpec(name="ada", model="fake", limits=Limits(max_rounds=2))
    world.run_dry()

    assert world.tools.finished.total() == 2


def test_a_message_with_limits_of_its_own_steers_no_run(world: World) -> None:
    steering = {"when_busy": WhenBusy.STEER, "limits": TurnLimits(max_rounds=1)}
    in_the_model_call(world, lambda: world.submit("more", **steering))
    world.submit()
    world.run_dry()

    assert dispositions(world) == ["answered", "answered"]
