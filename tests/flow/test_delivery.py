"""Deliveries: behind the bus, in the order of their thread, once by their key, whatever dies or fails."""

from __future__ import annotations

import importlib
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from chordage.orchestrator import stages
from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.core.errors import Conflict, NotFound, TryLater, Undeliverable
from chordage.orchestrator.core.intents import Deliver, Project
from chordage.orchestrator.store import outbox, schema
from support.bus import settle, stream, with_bus
from support.fakes import spoken
from support.world import Died, World

pytestmark = pytest.mark.redis

stage = importlib.import_module("chordage.orchestrator.stages.deliver")  # the package has a function of that name
ME = {"channel": "me", "chat": 42}


@pytest.fixture
def receiver(world: World, redis_url: str):
    world.client, receiver = with_bus(world, redis_url)
    yield receiver
    world.client.close()


def answered(world: World, *threads: str, target=ME) -> list[str]:
    world.models.script = lambda prompt: spoken("ok")
    turns = []
    for thread in threads:
        turns.append(world.submit("hi", thread=thread, reply_target=target))
        world.run_dry()
    return turns


def refuse(error):
    def says(reply):
        raise error

    return says


def project(world: World) -> None:
    """All that is true is on the bus; nothing has left yet."""
    while Project() in world.deliver(Project()):
        pass
    world.pending.clear()


def states(world: World) -> list[str]:
    return [row["status"] for row in world.rows("outbox")]


def test_nothing_leaves_before_its_facts_are_on_the_bus(world: World, receiver) -> None:
    (turn,) = answered(world, "t")
    world.deliver(Deliver())
    assert receiver.got == []

    settle(world)
    world.deliver(Deliver())

    (sent,) = receiver.got
    assert (sent.key, sent.turn_id, sent.thread_id, sent.text) == (turn, turn, "t", "ok")
    assert sent.body["reason"] == "natural_end"
    assert states(world) == ["sent"]


def test_bus_announces_that_a_delivery_is_due(world: World, receiver) -> None:
    answered(world, "t")
    while Deliver() not in (following := world.deliver(Project())):
        assert following
    assert world.deliver(Deliver()) == []
    assert len(receiver.got) == 1


def test_replies_of_a_thread_leave_in_their_order_although_the_first_fails(world: World, receiver) -> None:
    turns = answered(world, "t", "t", "t")
    receiver.says = refuse(TryLater("busy"))
    settle(world)
    assert receiver.got == []
    assert [row["attempts"] for row in world.rows("outbox")] == [1, 0, 0]

    receiver.says = lambda reply: None
    world.clock.pass_by(60)
    settle(world)

    assert receiver.keys == turns
    assert states(world) == ["sent"] * 3


def test_failing_receiver_is_retried_with_growing_pauses_and_becomes_a_dead_letter(world: World, receiver) -> None:
    (turn,) = answered(world, "t")
    receiver.says = refuse(TryLater("busy"))
    project(world)
    world.deliver(Deliver())
    pauses = []
    while states(world) == ["pending"]:
        pause = world.row("outbox")["next_at"] - world.clock()
        pauses.append(pause.total_seconds())
        world.clock.now += max(pause, timedelta(0))
        world.deliver(Deliver())

    assert len(pauses) == world.runtime.delivery.attempts - 1
    assert all(5 * 2**n <= pause <= 10 * 2**n for n, pause in enumerate(pauses[:8]))
    assert max(pauses) <= world.runtime.delivery.longest
    assert "given up after 12 attempts; the last: busy" in world.row("outbox")["error"]
    assert world.row("turns", id=turn)["disposition"] == "answered"


def test_pause_requested_by_the_receiver_is_kept(world: World, receiver) -> None:
    answered(world, "t")
    receiver.says = refuse(TryLater("busy", 600.0))
    settle(world)

    assert (world.row("outbox")["next_at"] - world.clock()).total_seconds() > 540


def test_a_dead_letter_does_not_hold_up_the_next_and_can_be_sent_again(world: World, receiver) -> None:
    first, second = answered(world, "t", "t")
    receiver.says = lambda reply: refuse(Undeliverable("no such chat"))(reply) if reply.key == first else None
    settle(world)
    assert (receiver.keys, states(world)) == ([second], ["dead", "sent"])
    number = world.rows("outbox")[0]["id"]

    receiver.says = lambda reply: None
    assert stages.retry_dead(world.runtime, number) == [number]
    settle(world)

    assert (receiver.keys, states(world)) == ([second, first], ["sent", "sent"])
    assert stages.retry_dead(world.runtime) == []
    with pytest.raises(Conflict, match="no dead letter"):
        stages.retry_dead(world.runtime, number)
    with pytest.raises(NotFound, match="deliveries --dead"):
        stages.retry_dead(world.runtime, 999)


def test_a_dead_letter_that_is_sent_again_has_all_its_attempts(world: World, receiver) -> None:
    answered(world, "t")
    receiver.says = refuse(Undeliverable("no"))
    settle(world)
    stages.retry_dead(world.runtime)
    receiver.says = refuse(TryLater("busy"))
    for _ in range(11):
        world.clock.pass_by(4000)
        settle(world)
    assert states(world) == ["pending"]
    world.clock.pass_by(4000)
    settle(world)
    assert states(world) == ["dead"]
    assert len(world.rows("journal", kind="DeliveryDead")) == 2


def test_unknown_channel_is_a_dead_letter_with_a_message(world: World, receiver) -> None:
    answered(world, "t", target={"channel": "nowhere"})
    settle(world)

    assert states(world) == ["dead"]
    assert "there is no channel 'nowhere'" in world.row("outbox")["error"]


def test_unforeseen_failure_is_retried(world: World, receiver) -> None:
    answered(world, "t")
    receiver.says = refuse(ZeroDivisionError())
    settle(world)

    assert (states(world), world.row("outbox")["error"]) == (["pending"], "ZeroDivisionError")


@pytest.mark.parametrize("before", [False, True], ids=["behind", "before"])
def test_death_at_any_commit_leaves_nothing_unsent_and_no_duplicate_key(world: World, receiver, before: bool) -> None:
    turns = answered(world, "t", "t", "u")
    for at in range(1, 14):
        world.commits, world.die_at, world.die_before = 0, at, before
        try:
            world.deliver(Project())
            world.deliver(Deliver())
        except Died:
            world.clock.pass_by(60)
        world.die_at = None
        world.revive()
    world.clock.pass_by(60)
    settle(world)

    first_times = list(dict.fromkeys(receiver.keys))
    assert sorted(first_times) == sorted(turns)
    assert [key for key in first_times if key in turns[:2]] == turns[:2]
    assert states(world) == ["sent"] * 3


def test_death_between_sending_and_recording_sends_again_with_the_same_key(world: World, receiver) -> None:
    (turn,) = answered(world, "t")

    def die():
        raise world.kill()

    receiver.then = die
    with pytest.raises(Died):
        settle(world)
    receiver.then = lambda: None
    world.revive()
    world.deliver(Deliver())
    assert receiver.keys == [turn], "while the lease holds it is not sent"

    world.clock.pass_by(world.runtime.delivery.lease + 1)
    settle(world)
    assert receiver.keys == [turn, turn]
    assert states(world) == ["sent"]


def test_late_result_after_a_lost_lease_changes_nothing(world: World, receiver) -> None:
    answered(world, "t")
    project(world)
    (late,) = stage.take(world.runtime)
    world.clock.pass_by(world.runtime.delivery.lease + 1)
    (again,) = stage.take(world.runtime)
    stage.attempt(world.runtime, again)

    with world.store.write() as tx:
        dead = DeliveryStatus.DEAD
        assert not outbox.settle(tx, late, dead, now=world.clock(), next_at=world.clock(), error="late")
    assert states(world) == ["sent"]


def test_two_that_deliver_at_once_take_no_row_twice(world: World, receiver) -> None:
    answered(world, "a", "b", "c")
    project(world)
    taken = [*stage.take(world.runtime), *stage.take(world.runtime)]

    assert len(taken) == len({one.id for one in taken}) == world.runtime.delivery.to_one


def test_receiver_has_a_bounded_number_in_flight_and_others_pass_it(world: World, receiver) -> None:
    answered(world, *(f"s{n}" for n in range(8)), target={"url": "https://slow.example/x"})
    answered(world, "f", target={"url": "https://fast.example/x"})
    project(world)

    hosts = [one.receiver for one in stage.take(world.runtime)]
    assert sorted(hosts) == ["host:fast.example", *["host:slow.example"] * world.runtime.delivery.to_one]


def test_a_backlog_on_one_thread_is_put_off_and_comes_out_in_order(world: World, receiver) -> None:
    turns = answered(world, *["t"] * 60)
    settle(world)

    assert receiver.keys == turns


def test_deliveries_are_announced_on_the_bus_and_shown_with_the_turn(world: World, receiver) -> None:
    from chordage.orchestrator import views

    turn, _ = answered(world, "t"), answered(world, "u", target={"channel": "nowhere"})
    settle(world)

    told = {entry["kind"]: entry for entry in stream(world.client) if entry["kind"].startswith("delivery")}
    assert told["delivery.sent"]["data"]["to"] == "channel me (chat=42)"
    assert told["delivery.dead"]["data"]["error"].startswith("there is no channel")
    shown = views.delivery_of(world.store, turn[0])
    assert (shown.channel, shown.status, shown.attempts, shown.target["chat"]) == ("me", "sent", 1, 42)


def test_a_turn_without_a_reply_target_leaves_nothing(world: World, receiver) -> None:
    world.models.script = lambda prompt: spoken("ok")
    world.submit("hi", thread="t")
    world.run_dry()
    settle(world)

    assert world.rows("outbox") == []


def test_reply_target_learns_that_its_message_was_dropped_from_the_queue(world: World, receiver) -> None:
    turn = world.submit("hi", thread="t", reply_target=ME)
    stages.cancel_turn(world.runtime, turn, "no need")
    settle(world)

    assert receiver.got[0].body == {"reason": "cancelled", "code": None, "detail": "no need", "text": None}


def test_answers_leave_in_the_order_of_ends_and_a_cancelled_message_ends_at_once(world: World, receiver) -> None:
    world.models.script = lambda prompt: spoken("ok")
    first, dropped, last = (world.submit("hi", thread="t", reply_target=ME) for _ in range(3))
    stages.cancel_turn(world.runtime, dropped, "no need")
    world.run_dry()
    settle(world)

    assert [sent.turn_id for sent in receiver.got] == [dropped, first, last]


def test_a_worker_that_stops_takes_nothing_more(world: World, receiver) -> None:
    answered(world, "t")
    project(world)
    world.runtime.in_flight.hand_over()

    assert (world.deliver(Deliver()), receiver.got) == ([], [])


def test_long_work_continues_in_another_message(world: World, receiver, monkeypatch) -> None:
    answered(world, "t")
    monkeypatch.setattr(stage, "AT_ONE_GO", -1.0)

    assert world.deliver(Deliver()) == [Deliver()]


def test_the_rules_of_the_room_are_kept(world: World, receiver) -> None:
    world.runtime = replace(world.runtime, delivery=replace(world.runtime.delivery, attempts=1))
    answered(world, "t")
    receiver.says = refuse(TryLater("busy"))
    settle(world)

    assert states(world) == ["dead"]


def test_a_target_of_a_newer_version_is_left_to_newer_workers(world: World, receiver) -> None:
    answered(world, "a", "b")
    strange = world.rows("outbox")[0]["id"]
    with world.store.write() as tx:
        outbox = schema.outbox
        tx.execute(update(outbox).where(outbox.c.id == strange).values(target={"pigeon": "grey"}))
    settle(world)

    assert states(world) == ["pending", "sent"]
    assert world.row("outbox", id=strange)["error"] == "this worker does not know where to send it: pigeon"
