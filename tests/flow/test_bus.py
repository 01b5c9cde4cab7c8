"""The bus: streams in Redis that follow the journal, whatever dies, is emptied, or comes late."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import insert

from chordage.orchestrator import stages
from chordage.orchestrator.core.bus import BusCursor
from chordage.orchestrator.core.errors import Conflict, Unavailable
from chordage.orchestrator.core.intents import Project
from chordage.orchestrator.store import projection, schema, statements
from chordage.orchestrator.store.database import Store
from support.bus import PREFIX, kinds, settle, stream, with_bus
from support.fakes import asking, rounds_of, spoken
from support.questions import asks_once
from support.world import Died, World

pytestmark = pytest.mark.redis


@pytest.fixture
def redis(world: World, redis_url: str):
    client, _ = with_bus(world, redis_url, batch=3)
    yield client
    client.close()


def play(world: World, count: int = 2) -> None:
    world.models.script = lambda prompt: spoken("ok")
    for n in range(count):
        world.submit(f"hi {n}", thread=f"t{n}")
    world.run_dry()


def snapshot(client):
    return {name: client.xrange(name) for name in client.scan_iter(f"{PREFIX}bus*") if client.type(name) == "stream"}


def journal_ids(world):
    with world.store.read() as tx:
        return [fact.id for fact in projection.facts(tx, 0, 10_000)]


def test_what_is_new_costs_one_look_at_the_journal_and_two_writes(world: World, redis_url: str) -> None:
    """To take the claim, and to move the cursor and release it. Redis is asked twice."""
    client, _ = with_bus(world, redis_url)
    play(world, 1)
    settle(world)
    play(world, 3)
    seen: list[str] = []
    client.config_resetstat()
    statements.observers.append(lambda _tx, sql: seen.append(sql))
    try:
        stages.project(world.runtime)
    finally:
        statements.observers.pop()

    assert sum("FROM journal LEFT" in sql.replace("\n", " ") for sql in seen) == 1
    assert sum(sql.startswith("UPDATE projection") for sql in seen) == 2
    stats = client.info("commandstats")
    assert (stats["cmdstat_evalsha"]["calls"], stats["cmdstat_hmget"]["calls"]) == (1, 1 + 2)  # two in the script
    row = world.rows("projection")[0]
    assert (row["position"], row["claim_token"], row["lease_until"]) == (journal_ids(world)[-1], None, None)
    client.close()


def test_fleet_stream_follows_a_turn_from_arrival_to_end(world: World, redis) -> None:
    play(world, 1)
    settle(world)

    told = stream(redis)
    assert [entry["kind"] for entry in told] == ["turn.queued", "run.started", "run.finished", "turn.ended"]
    assert {entry["thread"] for entry in told} == {"t0"}
    assert {entry["turn"] for entry in told} == {world.row("turns")["id"]}
    assert told[-1]["data"] == {"disposition": "answered", "reason": "natural_end"}
    assert "text" not in told[1]["data"]
    assert {entry["fact"] for entry in told} == {"1"}


def test_the_stream_of_a_run_has_all_that_it_committed(world: World, redis) -> None:
    replies = iter([asking(("pure0", {})), spoken("done")])
    world.models.script = lambda prompt: next(replies)
    world.submit("hi", thread="t")
    world.run_dry()
    settle(world)

    run = world.row("runs")["id"]
    told = stream(redis, f":run:{run}")
    expected = ["run.started", "model.replied", "tools.settled", "model.replied", "run.finished", "turn.ended"]
    assert [entry["kind"] for entry in told] == expected
    assert told[0]["data"]["text"] == "hi"
    rows = [row["id"] for row in world.rows("journal", run_id=run)]
    assert [entry["id"] for entry in told] == [*(f"{row}-0" for row in rows), f"{rows[-1]}-1"]
    assert 0 < redis.ttl(f"{PREFIX}bus:run:{run}") <= 86_400


def test_turn_that_ends_in_the_queue_is_announced_too(world: World, redis) -> None:
    turn = world.submit("hi", thread="t")
    stages.cancel_turn(world.runtime, turn, "not needed")
    settle(world)

    assert kinds(redis) == ["turn.queued", "turn.ended"]
    assert stream(redis)[1]["data"] == {"turn": turn, "disposition": "cancelled", "detail": "not needed", "into": None}


def test_questions_and_answers_are_announced(world: World, redis) -> None:
    world.tools.asks = asks_once(0)
    world.models.script = rounds_of(1)
    world.submit("hi", thread="t")
    world.run_dry()
    world.recover()
    settle(world)

    told = kinds(redis)
    assert told.index("call.suspended") < told.index("run.waiting") < told.index("call.decided")
    assert "call.decided" in kinds(redis, f":run:{world.row('runs')['id']}")


def test_what_is_new_is_copied_in_batches_and_an_idle_look_writes_nothing(world: World, redis) -> None:
    play(world, 4)
    settle(world)
    row = world.row("projection")
    assert row["position"] == journal_ids(world)[-1]

    before, sent = world.commits, world.statements
    assert world.deliver(Project()) == []

    assert (world.commits - before, world.statements - sent) == (0, 3)
    assert world.row("projection") == row


@pytest.mark.parametrize("before", [False, True], ids=["behind", "before"])
def test_a_process_that_dies_at_any_commit_leaves_no_gap_and_no_double(world: World, redis, before: bool) -> None:
    play(world, 3)
    for at in range(1, 12):
        world.commits, world.die_at, world.die_before = 0, at, before
        try:
            world.deliver(Project())
        except Died:
            world.clock.pass_by(30)
        world.die_at = None
        world.revive()
    settle(world)

    whole = snapshot(redis)
    redis.flushdb()
    world.clock.pass_by(30)
    settle(world)
    assert snapshot(redis) == whole
    assert {int(entry["id"].split("-")[0]) for entry in stream(redis)} <= set(journal_ids(world))


def test_a_process_that_dies_between_redis_and_sql_is_followed_by_one_that_doubles_nothing(world: World, redis) -> None:
    play(world, 2)
    publish = world.runtime.bus.publish

    class Dying:
        cursor, begin = world.runtime.bus.cursor, world.runtime.bus.begin

        def publish(self, *args):
            publish(*args)
            raise world.kill()

    whole = world.runtime
    for _ in range(5):
        world.runtime = replace(whole, bus=Dying())
        with pytest.raises(Died):
            world.deliver(Project())
        world.revive()
        world.clock.pass_by(30)
    world.runtime = whole
    settle(world)

    ids = [entry["id"] for entry in stream(redis)]
    assert ids == sorted(set(ids), key=lambda one: [int(part) for part in one.split("-")])
    assert kinds(redis).count("turn.ended") == 2


def test_while_one_holds_the_claim_another_does_nothing(world: World, redis) -> None:
    play(world)
    with world.store.write() as tx:
        projection.begin(tx, "mine")
        assert projection.claim(tx, "a", "w", now=world.clock(), until=world.clock.now.replace(year=2027))

    assert world.deliver(Project()) == []
    assert stream(redis) == []


def test_two_projectors_of_a_new_database_agree_on_the_name_of_its_bus(world: World, redis) -> None:
    with ThreadPoolExecutor(4) as pool:
        looks = [pool.submit(stages.project, world.runtime) for _ in range(4)]

    assert [look.exception() for look in looks] == [None] * 4
    assert len(world.rows("projection")) == 1


def test_a_claim_that_ran_out_moves_nothing(world: World, redis) -> None:
    play(world)
    settle(world)
    now = world.clock()
    with world.store.write() as tx:
        mark = projection.claim(tx, "old", "w", now=now, until=now)
        assert projection.claim(tx, "new", "w", now=now, until=now)
        assert not projection.move(tx, "old", replace(mark, position=0), now=now, until=now)
    assert world.row("projection")["position"] == mark.position


def test_a_redis_that_was_emptied_is_noticed_and_filled_again_with_the_same_ids(world: World, redis) -> None:
    play(world, 3)
    settle(world)
    whole = snapshot(redis)

    redis.flushdb()
    settle(world)

    assert snapshot(redis) == whole
    assert world.row("projection")["generation"] == 2


def test_a_redis_that_lost_its_last_seconds_is_taken_up_where_it_is(world: World, redis) -> None:
    play(world, 1)
    settle(world)
    dumps = {key: redis_dump(redis, key) for key in redis.keys(f"{PREFIX}bus*")}
    play(world, 3)
    settle(world)
    whole = snapshot(redis)

    redis.flushdb()
    for key, dump in dumps.items():
        restore(redis, key, dump)
    settle(world)

    assert snapshot(redis) == whole
    assert world.row("projection")["generation"] == 1


def redis_dump(client, key):
    if client.type(key) == "hash":
        return client.hgetall(key)
    return client.xrange(key)


def restore(client, key, dump):
    if isinstance(dump, dict):
        client.hset(key, mapping=dump)
    for entry_id, fields in dump if isinstance(dump, list) else ():
        client.xadd(key, fields, id=entry_id)


def test_restored_database_rebuilds_the_bus(world: World, redis) -> None:
    play(world, 1)
    settle(world)
    mark = world.runtime.bus.cursor()
    world.runtime.bus.publish(mark, mark.position + 100, [])

    settle(world)

    assert world.runtime.bus.cursor() == BusCursor(bus=mark.bus, generation=2, position=mark.position)
    assert kinds(redis)[-1] == "turn.ended"


def test_bus_of_another_database_is_left_alone_until_an_operator_takes_it_over(world: World, redis) -> None:
    play(world, 1)
    foreign = BusCursor(bus="theirs", generation=7, position=1)
    world.runtime.bus.begin(foreign)
    for _ in range(3):
        world.deliver(Project())
        world.clock.pass_by(10)

    assert world.runtime.bus.cursor() == foreign
    assert "another database" in world.row("projection")["error"]
    stages.rebuild_bus(world.runtime)
    settle(world)
    assert kinds(redis)[-1] == "turn.ended"
    assert world.row("projection")["error"] is None


def test_bus_rebuilt_on_request_is_the_same_as_before(world: World, redis) -> None:
    play(world, 3)
    settle(world)
    whole = snapshot(redis)
    redis.xadd(f"{PREFIX}bus:run:stray", {"a": "b"})

    stages.rebuild_bus(world.runtime)
    settle(world)

    assert snapshot(redis) == whole


def test_bus_is_not_rebuilt_during_another_write(world: World, redis) -> None:
    play(world, 1)
    settle(world)
    now = world.clock()
    with world.store.write() as tx:
        projection.claim(tx, "a", "w", now=now, until=now.replace(year=2027))

    with pytest.raises(Conflict, match="try again"):
        stages.rebuild_bus(world.runtime)
    with pytest.raises(Conflict, match="no Redis"):
        stages.rebuild_bus(replace(world.runtime, bus=None))


def test_redis_away_stops_the_copying_alone_and_it_catches_up_in_order(world: World, redis) -> None:
    class Away:
        def cursor(self):
            raise Unavailable("the bus in Redis does not take anything: gone")

    whole = world.runtime
    world.runtime = replace(whole, bus=Away())
    play(world, 2)
    for _ in range(20):
        assert world.deliver(Project()) == []
        world.clock.pass_by(1)
    row = world.row("projection")
    assert {turn["disposition"] for turn in world.rows("turns")} == {"answered"}
    assert (row["error"], row["position"]) == ("the bus in Redis does not take anything: gone", 0)
    assert 3 < row["failures"] < 10

    world.runtime = whole
    world.clock.pass_by(6)
    settle(world)
    assert kinds(redis).count("turn.ended") == 2
    assert world.row("projection")["failures"] == 0


def test_only_young_entries_are_rebuilt(world: World, redis) -> None:
    play(world, 2)
    world.clock.pass_by(90_000)
    play(world, 1)
    old = [row["id"] for row in world.rows("journal")][:6]
    settle(world)

    assert {int(entry["id"].split("-")[0]) for entry in stream(redis)}.isdisjoint(old)
    assert kinds(redis) == ["turn.queued", "run.started", "run.finished", "turn.ended"]


def test_streams_are_trimmed(world: World, redis_url: str) -> None:
    client, _ = with_bus(world, redis_url, keep=1)
    play(world, 60)
    settle(world)

    assert 0 < client.xlen(f"{PREFIX}bus") < 240
    client.close()


def test_a_body_that_is_too_long_is_left_to_the_truth(world: World, redis) -> None:
    world.models.script = lambda prompt: spoken("x" * 70_000)
    world.submit("hi", thread="t")
    world.run_dry()
    settle(world)

    told = stream(redis, f":run:{world.row('runs')['id']}")
    assert told[1]["data"]["left_out"] > 70_000
    assert told[2]["kind"] == "run.finished"


def test_consumer_continues_after_the_last_entry_it_read(world: World, redis) -> None:
    play(world, 1)
    settle(world)
    last = redis.xrange(f"{PREFIX}bus")[1][0]
    redis.flushdb()
    settle(world)

    ((_, rest),) = redis.xread({f"{PREFIX}bus": last})
    assert [fields["kind"] for _, fields in rest] == ["run.finished", "turn.ended"]


# PostgreSQL: ids become visible out of order


def a_row(number):
    return {"thread_id": "x", "run_id": f"r{number}", "step": 0, "kind": "RolledBack", "body": {}}


@pytest.fixture
def postgres(migrated_database_url, redis_url: str):
    world = World(Store(migrated_database_url("postgres")))
    world.client, _ = with_bus(world, redis_url)
    yield world
    world.close()
    world.client.close()


@pytest.mark.postgres
def test_a_row_that_commits_late_with_a_smaller_id_is_not_passed_over(postgres: World, monkeypatch) -> None:
    world = postgres
    monkeypatch.setattr(projection, "PAUSES", (0.001, 0.001))
    play(world, 1)
    settle(world)
    with world.store.engine.connect() as late:
        late.execute(insert(schema.journal).values(**a_row(1), at=world.clock()))
        with world.store.write() as tx:
            tx.execute(insert(schema.journal).values(**a_row(2), at=world.clock()))
        world.deliver(Project())
        held_back = world.row("projection")["position"]
        late.commit()
    settle(world)

    top = journal_ids(world)[-1]
    assert (held_back, world.row("projection")["position"]) == (top - 2, top)


@pytest.mark.postgres
def test_long_foreign_transaction_delays_nothing(postgres: World) -> None:
    world = postgres
    play(world, 1)
    with world.store.engine.connect() as foreign:
        foreign.exec_driver_sql("CREATE TABLE theirs AS SELECT 1 AS n")  # it has a transaction id now
        with world.store.engine.connect() as broken:
            broken.execute(insert(schema.journal).values(**a_row(1), at=world.clock()))
            broken.rollback()  # a gap, so that it has to be asked
        play(world, 1)
        settle(world)
        assert world.row("projection")["position"] == journal_ids(world)[-1]
        foreign.rollback()
    assert kinds(world.client).count("turn.ended") == 2


@pytest.mark.postgres
@pytest.mark.parametrize("mode", ["SHARE UPDATE EXCLUSIVE", "ROW SHARE"])
def test_a_vacuum_of_the_journal_holds_nothing_up(postgres: World, monkeypatch, mode: str) -> None:
    world = postgres
    monkeypatch.setattr(projection, "PAUSES", (0.001, 0.001))
    play(world, 1)
    with world.store.engine.connect() as broken:
        broken.execute(insert(schema.journal).values(**a_row(1), at=world.clock()))
        broken.rollback()  # a gap, so that it has to be asked
    play(world, 1)
    with world.store.engine.connect() as vacuum:
        vacuum.exec_driver_sql(f"LOCK TABLE journal IN {mode} MODE")  # as VACUUM and ANALYZE do
        settle(world)
        assert world.row("projection")["position"] == journal_ids(world)[-1]


# what a newer version writes, during a deploy


def written_by_a_newer_version(world: World, run: str, kind: str = "SomethingNew", **body) -> None:
    row = {"thread_id": "t0", "run_id": run, "step": 9, "kind": kind, "body": body, "at": world.clock()}
    with world.store.write() as tx:
        tx.execute(insert(schema.journal).values(row))


def test_a_kind_that_is_not_known_is_copied_as_it_is_and_stops_nothing(world: World, redis) -> None:
    play(world, 1)
    run = world.row("runs")["id"]
    written_by_a_newer_version(world, run, text="news", n=7)
    written_by_a_newer_version(world, "note-1", text="a secret", n=8)
    play(world, 1)
    settle(world)

    assert stream(redis, f":run:{run}")[-1]["kind"] == "SomethingNew"
    assert stream(redis, f":run:{run}")[-1]["data"] == {"text": "news", "n": 7}
    of_fleet = [entry for entry in stream(redis) if entry["kind"] == "SomethingNew"]
    assert [entry["data"] for entry in of_fleet] == [{"n": 8}], "of what belongs to no run, without its texts"
    assert [entry["kind"] for entry in stream(redis)].count("turn.ended") == 2


def test_end_for_an_unknown_reason_is_announced_without_a_disposition(world: World, redis) -> None:
    play(world, 1)
    run = world.row("runs")["id"]
    written_by_a_newer_version(world, run, kind="RunFinished", reason="paused_for_ever", code="x")
    settle(world)
    assert stream(redis)[-1]["kind"] == "turn.ended"
    assert stream(redis)[-1]["data"] == {"reason": "paused_for_ever", "code": "x"}


def test_stream_of_a_run_ends_with_the_result_of_its_turn(world: World, redis) -> None:
    play(world, 1)
    settle(world)
    told = stream(redis, f":run:{world.row('runs')['id']}")[-1]
    assert (told["kind"], told["turn"]) == ("turn.ended", world.row("turns")["id"])
    assert told["data"] == {"disposition": "answered", "reason": "natural_end"}
