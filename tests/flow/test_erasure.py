"""What `erase` deletes: everything of a thread, in every field, and of what came of it; and what it leaves alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import JSON, Column, String, Table, insert, select, update
from sqlalchemy.exc import DataError, IntegrityError

from chordage.orchestrator import stages
from chordage.orchestrator.core.audit import CLI, Actor
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, NotFound
from chordage.orchestrator.core.message import Once
from chordage.orchestrator.gateways.redis_erasure import RedisErasure
from chordage.orchestrator.gateways.redis_events import live_stream
from chordage.orchestrator.stages.fork import ForkPoint
from chordage.orchestrator.store import erasure, pruning, schema
from chordage.orchestrator.store.contents import Contents, ContentsForm, owned
from chordage.orchestrator.store.database import Tx
from support.bus import settle, stream, with_bus
from support.fakes import spoken
from support.family import Lines, ask, settle_in
from support.questions import approve, asks_once
from support.summing import talk
from support.world import Died, World

CANARY = "canary-7f3a"
# Keys, names and words of closed sets, by which rows are found. What a person wrote is in none of them.
NOT_PLANTED = {
    "id", "thread_id", "turn_id", "run_id", "call_id", "suspension_id", "parent_run", "parent_call", "root_run",
    "root_thread", "into_turn", "status", "reason", "kind", "scope", "owner", "key", "grp", "strategy", "control",
    "effect", "action", "on_expiry", "resume_mode", "why", "state", "drive", "cap_policy", "on_held", "origin",
    "sender", "disposition", "job_id", "target", "about", "phase", "fork_of", "answered_from", "space", "ask_id",
    "channel", "sent_by", "dedupe_key", "name", "source", "actor", "on_behalf", "tenant", "address",
    "question_id",
}  # fmt: skip
OF_NO_THREAD = {"agent_versions", "bulk_jobs", "cipher_keys", "polls", "refusals"}
OF_NO_TURN = {"caller_audit", "question_links"}


def filled(world: World) -> str:
    """A turn that asked a person and a sub-agent, and a row in every other table that has rows of turns."""
    world.tools.asks = asks_once(0)
    settle_in(world)
    world.models.script = Lines({"ada": [[("pure", {"n": 0}), ask("bob")]]})
    turn = world.submit()
    world.run_dry()
    approve(world, world.inbox()[0])
    run, now = world.row("turns", id=turn)["run_id"], world.clock.now
    call, question = world.rows("calls", run_id=run)[0], world.rows("suspensions", run_id=run)[0]
    rows: list[tuple[str, dict[str, Any]]] = [
        ("outbox", {
            "thread_id": "t1", "turn_id": turn, "target": {}, "receiver": "r", "body": {}, "created_at": now,
            "position": 0, "attempts": 1, "forgiven": 0, "next_at": now, "status": "pending",
        }),
        *(
            ("plugin_state", {"scope": scope, "owner": owner, "key": "k", "value": 1})
            for scope, owner in (("thread", "t1"), ("run", run), ("call", call["id"]))
        ),
        ("ops", {"turn_id": turn, "key": "k", "request_hash": "h", "response": {}, "at": now}),
        ("takeovers", {"run_id": run, "step": 1, "lost_at": now, "noticed_at": now}),
        ("executions", {"run_id": run, "call_id": call["id"], "worker": "w", "at": now}),
        ("forks", {"turn_id": turn, "run_id": "other", "step": 0, "kept": 0, "arguments": {}, "effects": []}),
        ("stepped", {
            "turn_id": turn, "rev": 1, "drive": "auto", "going": 0, "mutated": 0, "parked": 0, "iteration": 0,
            "cap_policy": "end", "on_held": "park", "params": {}, "options": {}, "given": {}, "replaces": 0,
            "steers": [], "verdicts": {}, "withheld": [],
        }),
        ("question_links", {
            "id": "link", "hash": "h", "question_id": question["id"], "digest": "d", "made_by": "cli",
            "created_at": now, "expires_at": now,
        }),
        ("caller_audit", {"at": now, "actor": "cli", "action": "decided", "about": call["id"], "detail": {}}),
    ]  # fmt: skip
    with world.store.write() as tx:
        for table, values in rows:
            of = schema.metadata.tables[table]
            tx.execute(insert(of), owned(tx, of, values) if table in schema.CONTENTS else values)
    return turn


def plant(world: World) -> set[str]:
    """The canary in every field that a person's words may be in; the columns that had a row to take it."""
    planted = set()
    for table in schema.metadata.sorted_tables:
        if table.name in pruning.NOT_PRUNED and table.name not in OF_NO_TURN:
            continue
        for column in table.columns:
            is_contents = column.name in schema.CONTENTS.get(table.name, ())
            if not is_contents and (
                column.name in NOT_PLANTED or column.primary_key or not isinstance(column.type, JSON | String)
            ):
                continue
            try:
                with world.store.write() as tx:
                    if plant_in(tx, table, column):
                        planted.add(f"{table.name}.{column.name}")
            except (IntegrityError, DataError):
                continue  # a word of a closed set
    return planted


def plant_in(tx: Tx, table: Table, column: Column[Any]) -> int:
    """In all rows. Contents belong to the owner of their row."""
    if not isinstance(column.type, Contents):
        value: Any = {"text": CANARY, "asks": []} if isinstance(column.type, JSON) else CANARY
        return tx.execute(update(table).values({column: value})).rowcount
    of = table.c[column.type.owner]
    value = {"text": CANARY, "asks": []} if column.type.form is ContentsForm.JSON else CANARY
    return sum(
        tx.execute(update(table).where(of == owner).values(owned(tx, table, {column.name: value}, owner))).rowcount
        for owner in tx.execute(select(of).distinct()).scalars().all()
    )


def found(world: World) -> list[str]:
    with world.store.read() as tx:
        return [
            f"{table.name}: {row}"
            for table in schema.metadata.sorted_tables
            for row in map(str, tx.execute(select(table)).all())
            if CANARY in row
        ]


def erase(world: World, thread_id: str = "t1") -> dict[str, int]:
    erased, intents = stages.erase(world.runtime, stages.thread_to_erase(world.runtime, thread_id), by=CLI)
    world.pending += intents
    return dict(erased.rows)


def counts(world: World) -> dict[str, int]:
    left = pruning.NOT_PRUNED.keys() - {"question_links"}
    tables = [table for table in schema.metadata.tables if table not in left]
    return {table: len(rows) for table in tables if (rows := world.rows(table))}


def test_no_field_of_a_thread_keeps_what_was_written(world: World) -> None:
    filled(world)
    world.models.script = lambda prompt: replace(spoken("aye"), reasoning=CANARY)
    world.submit("more")
    world.run_dry()
    assert any("'reasoning': 'canary" in row for row in found(world))
    planted = plant(world)
    of_turns = schema.CONTENTS.keys() - OF_NO_THREAD
    assert {f"{table}.{name}" for table in of_turns for name in schema.CONTENTS[table]} <= planted

    recorded = len(world.rows("caller_audit"))

    rows = erase(world)

    assert found(world) == []
    assert counts(world) == {}
    assert rows["caller_audit, blanked"] == recorded > 0
    if not world.store.is_postgres:
        file = Path(str(world.store.engine.url.database))
        assert CANARY.encode() not in b"".join(path.read_bytes() for path in file.parent.glob(f"{file.name}*"))


def test_count_says_what_will_go(world: World) -> None:
    filled(world)
    subject = stages.thread_to_erase(world.runtime, "t1")

    counted = stages.count_erasure(world.runtime, subject)
    rows = erase(world)

    not_counted = {"question_links", "caller_audit, blanked"}
    assert dict(+counted) == {name: number for name, number in rows.items() if name not in not_counted}


def test_what_was_done_is_on_record_without_the_name(world: World) -> None:
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    erase(world)

    begun, ended = world.rows("caller_audit", action="erased")
    assert begun["about"] == ended["about"] == stages.ErasureSubject(threads=(), name="t1").digest
    assert (begun["detail"], ended["detail"]["rows"]["turns"]) == ({"threads": 1, "rows": {}}, 1)


def test_other_threads_stay(world: World) -> None:
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    kept = world.submit("hello", thread="t2")
    world.run_dry()
    erase(world)

    assert [row["id"] for row in world.rows("turns")] == [kept]
    assert {row["thread_id"] for row in world.rows("journal")} == {"t2"}


def test_copies_go_with_the_thread_they_were_made_of(world: World) -> None:
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    fork = stages.fork_thread(world.runtime, "t1", ForkPoint(), space="api", name="copy")
    stages.fork_thread(world.runtime, fork.thread_id, ForkPoint(), space="api", name="copy of the copy")

    assert stages.thread_to_erase(world.runtime, "t1").threads == ("api:copy of the copy", "api:copy", "t1")
    erase(world)
    assert counts(world) == {}


def test_thread_of_a_sub_agent_is_erased_with_the_one_it_works_for(world: World) -> None:
    filled(world)
    (child,) = {row["thread_id"] for row in world.rows("turns")} - {"t1"}

    with pytest.raises(Conflict, match="whose answer is on thread 't1': erase that one"):
        stages.thread_to_erase(world.runtime, child)
    assert set(stages.thread_to_erase(world.runtime, "t1").threads) == {child, "t1"}


def test_open_turns_are_cancelled_and_nothing_is_left_to_do(world: World) -> None:
    world.tools.asks = asks_once(0)
    world.models.script = lambda prompt: spoken("aye")
    settle_in(world)
    world.models.script = Lines({"ada": [[("pure", {"n": 0})]]})
    world.submit()
    world.submit("second")
    world.run_dry()
    assert world.inbox()

    erase(world)
    world.run_dry()
    world.sweep(60)

    assert counts(world) == {}


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("at", range(1, 6))
def test_erasure_that_a_death_cut_short_is_completed_by_the_next(world: World, at: int, before: bool) -> None:
    filled(world)
    plant(world)
    world.die_at, world.die_before = world.commits + at, before
    try:
        erase(world)
    except Died:
        world.revive()
    world.die_at = None

    if world.rows("threads", id="t1"):
        erase(world)
    assert found(world) == []
    assert counts(world) == {}


def test_erasure_that_died_behind_its_last_thread_can_be_called_again(world: World) -> None:
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    with pytest.raises(NotFound):
        stages.thread_to_erase(world.runtime, "t2")
    erase(world)

    again = stages.thread_to_erase(world.runtime, "t1")
    rows = stages.erase(world.runtime, again, by=CLI)[0].rows

    assert (again.threads, dict(rows)) == ((), {})
    assert len(world.rows("caller_audit", action="erased")) == 4


def test_message_that_comes_meanwhile_is_cancelled_too(world: World) -> None:
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    subject = stages.thread_to_erase(world.runtime, "t1")
    world.submit("late")

    stages.erase(world.runtime, subject, by=CLI)

    assert counts(world) == {}


def test_what_came_of_a_thread_since_it_was_named_goes_too(world: World) -> None:
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    subject = stages.thread_to_erase(world.runtime, "t1")
    fork = stages.fork_thread(world.runtime, "t1", ForkPoint(), space="api", name="copy")
    stages.fork_thread(world.runtime, fork.thread_id, ForkPoint(), space="api", name="copy of the copy")

    erased, _ = stages.erase(world.runtime, subject, by=CLI)

    assert counts(world) == {}
    assert erased.names.threads == {"t1", "api:copy", "api:copy of the copy"}


def test_threads_that_are_forks_of_each_other_go(world: World) -> None:
    """The first was pruned, and its name given to a fork of its fork."""
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    stages.fork_thread(world.runtime, "t1", ForkPoint(), space="api", name="copy")
    with world.store.write() as tx:
        tx.execute(update(schema.threads).where(schema.threads.c.id == "t1").values(fork_of="api:copy"))

    erase(world)

    assert counts(world) == {}


def test_sub_agent_that_was_asked_since_its_thread_was_named_goes_too(world: World) -> None:
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]]})
    world.submit()
    subject = stages.thread_to_erase(world.runtime, "t1")
    world.run_dry()
    assert len(world.rows("threads")) == 2

    stages.erase(world.runtime, subject, by=CLI)

    assert counts(world) == {}


@pytest.mark.parametrize("moment", ["a tool runs", "a model is asked"])
def test_work_that_ends_after_its_thread_was_erased_writes_nothing(world: World, moment: str) -> None:
    erased = []

    def erase_once(_: object) -> None:
        if not erased:
            erased.append(erase(world))

    if moment == "a tool runs":
        world.tools.before = erase_once
    else:
        world.models.before_reply = erase_once
    world.submit()
    world.run_dry()
    world.recover()

    assert len(erased) == 1
    assert counts(world) == {}


def test_signed_message_may_come_again_after_it_was_erased(world: World) -> None:
    world.models.script = lambda prompt: spoken("aye")
    signed = {"once": Once(digest="d", seconds=60.0), "dedupe_key": "k"}
    first = world.submit(**signed)
    world.run_dry()
    erase(world)
    assert world.rows("replays") == []

    assert world.submit(**signed) != first


def test_record_keeps_no_thread_that_may_be_an_address(world: World) -> None:
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    stages.ask_to_compact(world.runtime, "t1", by=CLI)
    erase(world)

    assert "t1" not in {row["about"] for row in world.rows("caller_audit")}
    assert erasure.digest_of("t1") in {row["about"] for row in world.rows("caller_audit", action="compacted")}


def test_sender_that_does_not_stop_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    monkeypatch.setattr(erasure, "remove", lambda tx, thread_id, above: None)
    with pytest.raises(Conflict, match="messages keep coming to thread 't1': stop its sender"):
        erase(world)


def sent(world: World, words: str, thread: str, by: Actor | None = None, **fields: Any) -> str:
    turn = world.submit(words, thread=thread)
    world.run_dry()
    with world.store.write() as tx:
        chosen = update(schema.turns).where(schema.turns.c.id == turn)
        tx.execute(chosen.values(sent_by=by and by.name, **fields))
    return turn


def test_sender_is_a_key_a_user_or_an_address(world: World) -> None:
    world.models.script = lambda prompt: spoken("aye")
    sent(world, "one", "t1", Actor(id="ck1", user="ann"))
    sent(world, "two", "t2", Actor(id="ck1"))
    sent(world, "three", "mail:ann:orders", channel="mail")
    sent(world, "four", "mail:anna", channel="mail")
    sent(world, "five", "t5", Actor(id="ck1", user="Ann"))

    def threads(sender: str) -> set[str]:
        return set(stages.sender_to_erase(world.runtime, sender, shared=False).threads)

    assert threads("ann") == {"t1", "mail:ann:orders"}
    assert threads("anna") == {"mail:anna"}
    assert threads("ck1") == {"t2"}
    with pytest.raises(NotFound, match="no turn was sent by 'nn'"):
        threads("nn")
    with pytest.raises(InvalidMessage, match="a sender has a name"):
        threads(" ")


def test_threads_on_which_others_have_written_are_erased_only_if_that_is_said(world: World) -> None:
    world.models.script = lambda prompt: spoken("aye")
    sent(world, "one", "t1", Actor(id="ann"))
    sent(world, "two", "t1", Actor(id="bob"))

    with pytest.raises(Conflict, match="others have written on t1: .* give --shared"):
        stages.sender_to_erase(world.runtime, "ann", shared=False)
    stages.erase(world.runtime, stages.sender_to_erase(world.runtime, "ann", shared=True), by=CLI)
    assert counts(world) == {}


def test_lists_that_mention_a_sender_go(world: World) -> None:
    world.models.script = lambda prompt: spoken("aye")
    sent(world, "one", "t1", Actor(id="ck1", user="ann"))
    now = world.clock.now
    job = {
        "action": "cancel", "asked_by": "a", "digest": "d", "counted": 0, "is_estimate": 0, "position": "", "done": 0,
        "refused": 0, "lease_until": now, "created_at": now,
    }  # fmt: skip
    with world.store.write() as tx:
        tables = schema.metadata.tables
        tx.execute(
            insert(tables["bulk_jobs"]), {"id": "old", "state": "done", "ended_at": now, "query": "by ann", **job}
        )
        tx.execute(insert(tables["bulk_jobs"]), {"id": "open", "state": "open", "query": "by ann", **job})
        tx.execute(insert(tables["refusals"]), {"source": "s", "key": "k", "why": "w", "excerpt": "I, ann", "at": now})
        tx.execute(insert(tables["refusals"]), {"source": "s", "key": "l", "why": "w", "excerpt": "I", "at": now})
        values = {"at": now, "actor": "ck1", "on_behalf": "ann", "action": "decided", "about": "x", "detail": {"a": 1}}
        tx.execute(insert(tables["caller_audit"]), values)

    stages.erase(world.runtime, stages.sender_to_erase(world.runtime, "ann", shared=False), by=CLI)

    assert [row["id"] for row in world.rows("bulk_jobs")] == ["open"]
    assert [row["key"] for row in world.rows("refusals")] == ["l"]
    (entry,) = world.rows("caller_audit", about="x")
    assert (entry["on_behalf"], entry["detail"]) == (None, {"erased": True})


@pytest.mark.redis
def test_streams_in_redis_keep_nothing_of_it(world: World, redis_url: str) -> None:
    client, _ = with_bus(world, redis_url)
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    world.submit("hello", thread="t2")
    world.run_dry()
    settle(world)
    run = world.row("turns", thread_id="t1")["run_id"]
    client.xadd(live_stream("b:", run), {"kind": "model.delta", "run": run, "data": CANARY})
    client.xadd("b:live", {"kind": "run.started", "run": run})
    before = len(stream(client))

    erased, _ = stages.erase(world.runtime, stages.thread_to_erase(world.runtime, "t1"), by=CLI)
    names = erased.names
    deleted = RedisErasure(client, prefix="b:").erase(names.threads, [], [])

    assert names.runs == {run}
    assert deleted["streams"] == 2
    assert deleted["entries"] == before - len(stream(client)) + 1
    assert {entry["thread"] for entry in stream(client)} == {"t2"}
    assert not [key for key in client.scan_iter("b:*") if run in key]
    assert stages.project(world.runtime) is not None
    assert {entry["thread"] for entry in stream(client)} == {"t2"}


@pytest.mark.redis
def test_redis_that_is_away_is_an_error_with_a_name() -> None:
    from chordage.orchestrator.core.errors import Unavailable

    client = Redis(port=1, socket_connect_timeout=0.2, retry=Retry(NoBackoff(), 1))
    with pytest.raises(Unavailable, match="Redis does not delete what it has of these threads"):
        RedisErasure(client, prefix="b:").erase(["t"], ["r"], ["u"])


@pytest.mark.parametrize(
    ("excerpt", "goes"),
    [
        ("from mütter@example.org:", True), (json.dumps({"of": "mütter@example.org"}), True),
        (json.dumps({"text": "\nmütter@example.org"}), True), ("from grossmütter@example.org", False),
        ("from mütter@example.organic", False),
    ],
)  # fmt: skip
def test_name_is_found_as_a_whole_word_however_it_is_written(world: World, excerpt: str, goes: bool) -> None:
    now = world.clock.now
    with world.store.write() as tx:
        refused = {"source": "s", "key": "k", "why": "w", "excerpt": excerpt, "at": now}
        tx.execute(insert(schema.refusals), refused)
        erasure.remove_mentions(tx, ["mütter@example.org"])

    assert bool(world.rows("refusals")) is not goes
