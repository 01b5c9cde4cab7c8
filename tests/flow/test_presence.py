"""What a process leaves that is gone is sent again at once, without a wait for its leases."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.intents import CallTool
from chordage.orchestrator.core.presence import Process
from chordage.orchestrator.gateways.presence_watch import PresenceWatch
from chordage.orchestrator.gateways.steadiness import Steadiness
from chordage.orchestrator.store import schema
from support.fakes import rounds_of, spoken
from support.invariants import check_all
from support.world import Died, World


def process(name: str, machine: str = "far") -> Process:
    return Process(id=name, machine=machine, pid=1, born="then")


def goes(world: World, successor: str = "second") -> None:
    """The process the world plays is gone, and from now on it plays another."""
    world.revive()
    stages.show_presence(world.runtime, [process(world.runtime.worker)])
    stages.end_presence(world.runtime, [world.runtime.worker])
    world.runtime = replace(world.runtime, worker=successor)
    world.locks.worker = successor


def dies(world: World, *, messages_too: bool = True) -> None:
    with pytest.raises(Died):
        world.run_dry()
    if messages_too:
        world.pending.clear()
    goes(world)


def beat(world: World) -> None:
    stages.beat(world.runtime, first=0, every=0)


def killed_in_the_tool(world: World):
    """After a heartbeat, so that the call is on record."""

    def die(order):
        world.tools.before = lambda order: None
        beat(world)
        raise world.kill()

    return die


@pytest.mark.parametrize("tool", ["pure", "idempotent"])
def test_call_that_may_run_again_is_sent_at_once(world: World, tool) -> None:
    world.models.script = rounds_of(1, tool=tool)
    world.tools.before = killed_in_the_tool(world)
    turn = world.submit()
    dies(world)

    world.sweep()
    call = world.row("calls")
    assert (call["resends"], call["expiries"], call["worker"]) == (1, 1, None)
    assert world.sweep() == [], "once"
    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)


@pytest.mark.parametrize("tool", ["unsafe", "reconcilable"])
def test_call_that_may_have_had_an_effect_keeps_its_lease(world: World, tool) -> None:
    world.models.script = rounds_of(1, tool=tool)
    world.tools.before = killed_in_the_tool(world)
    world.submit()
    dies(world)

    assert world.sweep(seconds=25) == []
    assert world.inbox() == []
    world.sweep(seconds=10)

    assert bool(world.inbox()) == (tool == "unsafe")
    assert [isinstance(intent, CallTool) for intent in world.pending] == [tool == "reconcilable"]


def test_late_result_of_an_unsafe_call_counts_though_its_process_was_taken_for_gone(world: World) -> None:
    world.models.script = rounds_of(1, tool="unsafe")

    def taken_for_gone(order):
        stages.show_presence(world.runtime, [process("world")])
        stages.end_presence(world.runtime, ["world"])
        world.sweep(seconds=20)

    world.tools.before = taken_for_gone
    turn = world.submit()
    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert world.row("calls")["status"] == "succeeded"
    assert world.rows("suspensions") == []


def test_process_that_comes_back_changes_nothing_of_what_another_does(world: World) -> None:
    world.models.script = rounds_of(1, tool="pure")
    begun = []

    def taken_for_gone(order):
        begun.append(order)
        if len(begun) == 1:
            beat(world)
            stages.show_presence(world.runtime, [process("world")])
            stages.end_presence(world.runtime, ["world"])
            world.sweep()
            world.run_dry()  # another carries it out
            world.runtime = replace(world.runtime, worker="world")
            stages.show_presence(world.runtime, [process("world")])

    world.tools.before = taken_for_gone
    world.tools.says = lambda order: f"attempt {len(begun)}"
    turn = world.submit()
    world.run_dry()

    assert len(begun) == 2
    assert world.row("processes")["gone_at"] is None
    assert world.row("calls")["content"] == "attempt 2"
    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)


@pytest.mark.parametrize("recorded", [False, True])
def test_model_call_is_made_again_at_once(world: World, recorded) -> None:
    world.models.script = lambda prompt: spoken("yes")

    def die(prompt):
        world.models.before_reply = lambda prompt: None
        if recorded:
            beat(world)
        raise world.kill()

    world.models.before_reply = die
    turn = world.submit()
    dies(world)

    world.sweep()
    run = world.row("runs")
    assert (run["resends"], run["expiries"], run["claim_worker"]) == (1, 1, None)
    assert world.sweep() == [], "once"
    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "answered"


def test_process_that_took_a_model_call_from_a_queue_and_died_is_succeeded_by_the_message_put_back(
    world: World,
) -> None:
    """Nothing in SQL names it yet: its mark in Redis does."""
    world.models.script = rounds_of(1)
    world.submit()
    while not world.rows("calls", status="succeeded"):
        world.deliver(world.pending.pop(0))
    (commit,) = world.pending
    opener = world.runtime
    world.runtime = replace(world.runtime, worker="taker")
    world.locks.worker = "taker"
    world.models.before_reply = lambda prompt: (_ for _ in ()).throw(world.kill())
    with pytest.raises(Died):
        world.run_dry()
    world.models.before_reply = lambda prompt: None
    world.pending.clear()

    world.revive()
    world.runtime, world.locks.worker = opener, opener.worker
    world.pending = [commit]
    world.run_dry()
    assert world.unfinished(), "the mark keeps it from being asked twice"

    stages.show_presence(world.runtime, [process("taker")])
    stages.end_presence(world.runtime, ["taker"])
    world.pending = [commit]
    claims = []
    world.models.before_reply = lambda prompt: claims.append(world.row("runs")["claim_worker"])
    world.run_dry()

    assert world.unfinished() == []
    assert claims == [opener.worker], "on record before it asks"


@pytest.mark.usefixtures("calls_anywhere")
def test_every_commit_of_a_turn_may_be_the_last_of_its_process(world: World) -> None:
    """Its messages are lost with it. Nothing has to wait for a lease."""
    world.models.script = rounds_of(1, tool="pure")
    for at in range(1, 12):
        turn = world.submit(thread=f"t{at}")
        world.commits, world.die_at = 0, at
        try:
            world.run_dry()
        except Died:
            world.pending.clear()
            goes(world, f"process {at}")
            world.sweep(seconds=1)
            world.sweep(seconds=6)  # a dispatch is sent again when its queue has been empty for a while
            world.run_dry()
            world.sweep(seconds=1)
            world.run_dry()
        world.die_at = None
        assert world.row("turns", id=turn)["disposition"] == "answered", at
    check_all(world.store)


@pytest.mark.usefixtures("calls_anywhere")
def test_work_that_kills_each_process_is_poison(world: World) -> None:
    world.models.script = rounds_of(1, tool="pure")
    turn = world.submit()
    for n in range(6):
        world.tools.before = killed_in_the_tool(world)
        try:
            world.run_dry()
        except Died:
            goes(world, f"process {n}")
        world.pending.clear()
        world.sweep()

    run = world.row("runs")
    assert (run["reason"], run["code"]) == ("error", "poison")
    assert world.row("turns", id=turn)["disposition"] == "failed"


def test_round_whose_last_call_was_settled_by_a_process_that_is_gone_is_passed(world: World) -> None:
    """It may not have sent what follows. The process that opened the round lives."""
    world.models.script = rounds_of(1, tool="pure")
    turn = world.submit()
    opener = world.runtime
    while not world.rows("calls"):
        world.deliver(world.pending.pop(0))
    while not world.rows("calls", status="succeeded"):
        world.runtime = replace(opener, worker="settler")
        world.deliver(world.pending.pop(0))
    world.pending.clear()
    goes(world, opener.worker)

    world.sweep()
    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "answered"


def test_run_with_calls_in_flight_is_left_alone(world: World) -> None:
    world.models.script = rounds_of(1, tool="pure")
    world.submit()
    while not world.rows("calls"):
        world.deliver(world.pending.pop(0))
    with world.store.write() as tx:
        tx.execute(schema.calls.update().values(status="running", worker="another"))
    world.pending.clear()
    before = world.row("runs")
    world.clock.pass_by(5)
    goes(world)

    assert world.sweep() == []
    assert world.row("runs") == before


def lost_on_the_way(world: World, what: str, *, width: int = 1) -> str:
    """A message was taken from its queue, and its taker died before it was known to have it."""
    world.models.script = rounds_of(width, tool="pure")
    turn = world.submit()
    while not world.rows("calls", status="new" if what == "call" else "succeeded"):
        world.deliver(world.pending.pop(0))
    world.pending.clear()
    stages.show_presence(world.runtime, [process("taker")])
    stages.end_presence(world.runtime, ["taker"])
    return turn


@pytest.mark.parametrize("what", ["call", "commit"])
def test_message_that_is_nowhere_after_a_death_is_sent_again_soon(world: World, what) -> None:
    turn = lost_on_the_way(world, what)

    assert world.sweep(seconds=3) == [], "who took it may just not have said so"
    assert len(world.sweep(seconds=2)) == 1
    assert world.sweep() == []
    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "answered"


@pytest.mark.parametrize("what", ["call", "commit"])
def test_message_that_may_wait_in_a_long_queue_is_not_sent_again(world: World, what) -> None:
    lost_on_the_way(world, what)
    world.runtime = replace(world.runtime, queues=LongQueues())

    assert world.sweep(seconds=10) == []


class LongQueues:
    def is_empty(self, queue: str) -> bool:
        return False


def test_model_call_that_another_has_in_flight_is_not_sent_again_after_a_death(world: World) -> None:
    world.models.script = lambda prompt: spoken("yes")
    woken = []

    def another_goes(prompt):
        with world.as_another_process():
            stages.show_presence(world.runtime, [process("taker")])
            stages.end_presence(world.runtime, ["taker"])
        lease = lease_of_the_run()
        woken.append(world.sweep(seconds=10))
        assert lease_of_the_run() == lease

    def lease_of_the_run():
        return world.row("runs")["lease_until"]

    world.models.before_reply = another_goes
    world.submit()
    world.run_dry()

    assert woken == [[]]


def test_batch_whose_first_call_is_running_is_not_sent_again_after_a_death(world: World) -> None:
    lost_on_the_way(world, "call", width=2)
    with world.store.write() as tx:
        tx.execute(schema.calls.update().where(schema.calls.c.place == 0).values(status="running", worker="another"))

    assert world.sweep(seconds=10) == []


@pytest.mark.usefixtures("calls_anywhere")
def test_model_call_that_kills_each_process_is_poison(world: World) -> None:
    """The first is known by the run it started, those behind it by their claims."""
    world.models.script = lambda prompt: spoken("yes")
    turn = world.submit()
    asked = []

    def die(prompt):
        asked.append(prompt)
        raise world.kill()

    world.models.before_reply = die
    for n in range(6):
        try:
            world.run_dry()
        except Died:
            goes(world, f"process {n}")
        world.pending.clear()
        world.sweep(seconds=1)

    assert len(asked) == 3
    run = world.row("runs")
    assert (run["reason"], run["code"]) == ("error", "poison")
    assert world.row("turns", id=turn)["disposition"] == "failed"


def test_presence_counts_though_leases_cannot_be_judged_yet(world: World) -> None:
    """A process that has just started may have been the first to see that others are gone."""
    world.models.script = rounds_of(1, tool="pure")
    world.tools.before = killed_in_the_tool(world)
    turn = world.submit()
    dies(world)
    world.runtime = replace(world.runtime, steadiness=Steadiness(gap=10, enough=10, of=[lambda: 0.0]))

    world.sweep()
    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "answered"


def test_only_the_first_to_see_it_notices(world: World) -> None:
    stages.show_presence(world.runtime, [process("a", "here"), process("b", "here")])
    alive = {"b"}
    watch = PresenceWatch("here", lambda one: one.id in alive, gone_after=7, of=[lambda: 0.0])

    assert stages.look_for_gone(world.runtime, watch) == ["a"]
    assert stages.look_for_gone(world.runtime, watch) == []
    assert stages.left_behind(world.runtime) == ["a"]


def test_process_that_shows_itself_meanwhile_is_not_marked(world: World) -> None:
    stages.show_presence(world.runtime, [process("a", "here")])

    def shows_itself(one):
        world.clock.pass_by(1)
        stages.show_presence(world.runtime, [one])
        return False

    watch = PresenceWatch("here", shows_itself, gone_after=7, of=[lambda: 0.0])

    assert stages.look_for_gone(world.runtime, watch) == []


def test_what_went_long_ago_is_forgotten(world: World) -> None:
    stages.show_presence(world.runtime, [process("a"), process("b")])
    stages.end_presence(world.runtime, ["a"])
    world.sweep(seconds=500)
    assert stages.left_behind(world.runtime) == ["a"]

    world.sweep(seconds=timedelta(minutes=10).total_seconds())

    assert [row["id"] for row in world.rows("processes")] == ["b"]
