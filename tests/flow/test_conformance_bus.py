"""Truth, bus, delivery: behaviours that users of other runtimes count on."""

from __future__ import annotations

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.errors import TryLater, WrongSchema
from chordage.orchestrator.core.intents import Project
from chordage.orchestrator.store import schema_version, starts
from support.bus import settle, stream, with_bus
from support.fakes import rounds_of, spoken
from support.world import Died, World

pytestmark = pytest.mark.redis


@pytest.fixture
def receiver(world: World, redis_url: str):
    world.client, receiver = with_bus(world, redis_url)
    yield receiver
    world.client.close()


def play(world: World, **more) -> str:
    world.models.script = lambda prompt: spoken("the summary")
    turn = world.submit("hi", thread="t", **more)
    world.run_dry()
    return turn


def test_71_bus_follows_a_run_from_started_to_finished_with_its_text(world: World, receiver) -> None:
    play(world)
    settle(world)

    told = stream(world.client, f":run:{world.row('runs')['id']}")
    assert [entry["kind"] for entry in told] == ["run.started", "model.replied", "run.finished", "turn.ended"]
    assert told[1]["data"]["text"] == "the summary"


def test_72_a_delivery_is_recorded_with_the_turn_its_channel_address_and_result(world: World, receiver) -> None:
    turn = play(world, reply_target={"channel": "me", "chat": 7})
    settle(world)

    shown = views.delivery_of(world.store, turn)
    assert (shown.channel, shown.target["chat"], shown.status, shown.attempts) == ("me", 7, "sent", 1)
    assert shown.sent_at is not None
    (noted,) = world.rows("journal", kind="Delivered")
    assert (noted["body"]["turn"], noted["body"]["to"]) == (turn, "channel me (chat=7)")


def test_74_a_failed_delivery_is_retried_with_backoff_and_is_visible(world: World, receiver) -> None:
    def refuse(reply):
        raise TryLater("the channel is away")

    receiver.says = refuse
    turn = play(world, reply_target={"channel": "me"})
    settle(world)

    shown = views.delivery_of(world.store, turn)
    assert (shown.status, shown.attempts, shown.error) == ("pending", 1, "the channel is away")
    assert shown.next_at > world.clock()
    assert views.bus(world.store, world.clock()).deliveries_pending == 1


def test_76_announcements_are_durable_first_and_a_failing_listener_fails_no_run(world: World, receiver) -> None:
    on_record = []

    def listen(run_id, kind, **data):
        if kind == "run.finished":
            on_record.append(world.row("runs", id=run_id)["status"])

    world.events.emit = listen
    play(world)
    settle(world)
    turn = play(world)
    world.client.delete("b:bus")
    world.client.set("b:bus", "no stream")  # the bus takes nothing
    for _ in range(3):
        world.deliver(Project())
        world.clock.pass_by(10)

    assert on_record == ["done", "done"]
    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert "WRONGTYPE" in world.row("projection")["error"]


def test_77_a_start_that_fails_half_way_leaves_no_run(world: World, receiver, monkeypatch) -> None:
    def broken(*args):
        raise ZeroDivisionError

    world.submit("hi", thread="t")
    monkeypatch.setattr(starts._APPEND, "send", broken)
    with pytest.raises(ZeroDivisionError):
        world.run_dry()

    assert world.rows("runs") == []
    assert world.row("turns")["status"] == "queued"


def test_79_a_reply_is_rolled_back_with_its_step(world: World, receiver) -> None:
    world.models.script = rounds_of(1)
    world.submit("hi", thread="t")
    world.die_at, world.die_before = world.commits + 2, True  # the start, then the reply
    with pytest.raises(Died):
        world.run_dry()
    world.revive()

    assert world.rows("journal", kind="AssistantTurnCommitted") == []
    assert world.rows("calls") == []
    assert world.row("runs")["step"] == 1


def test_81_late_reply_after_a_cancel_is_not_announced(world: World, receiver) -> None:
    turn = world.submit("hi", thread="t")
    world.models.script = lambda prompt: spoken("late")
    world.models.before_reply = lambda prompt: stages.cancel_turn(world.runtime, turn, "enough")
    world.run_dry()
    settle(world)

    told = stream(world.client)
    assert [entry["data"].get("disposition") for entry in told if entry["kind"] == "turn.ended"] == ["cancelled"]
    assert "model.replied" not in [e["kind"] for e in stream(world.client, f":run:{world.row('runs')['id']}")]


def test_82_an_unknown_newer_schema_is_refused_and_left_as_it_is(world: World, receiver) -> None:
    with world.store.write() as tx:
        tx.exec_driver_sql("UPDATE chordage_version SET version_num = '0099', oldest = '0099'")
    before = world.rows("projection")

    with pytest.raises(WrongSchema, match="0099"):
        schema_version.check(world.store)

    assert schema_version.current(world.store) == "0099"
    assert world.rows("projection") == before
