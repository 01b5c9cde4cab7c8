"""With a cipher nothing that was written is readable in the database, in Redis or in logs, and all of it works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, Text, cast, insert, select, text, update
from sqlalchemy.exc import StatementError

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.contents import MARK, CipherContext, decrypt, key_of
from chordage.orchestrator.core.errors import ConfigError, InvalidMessage, WrongKey
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Hint
from chordage.orchestrator.gateways.redis_bus import RedisBus
from chordage.orchestrator.run import limits
from chordage.orchestrator.stages.fork import ForkPoint
from chordage.orchestrator.store import calls, encryption, journal, projection, schema, schema_version, turns
from chordage.orchestrator.store import turn_search as search
from chordage.orchestrator.store.contents import owned
from chordage.orchestrator.store.database import Store
from chordage.workers.doctor import services
from support.bus import PREFIX, settle, with_bus
from support.ciphers import TestCipher
from support.examining import context_of, only
from support.fakes import rounds_of, spoken
from support.family import Lines, ask, settle_in
from support.questions import ASK, approval, asks_once
from support.summing import talk
from support.world import World

CANARY = "canary-7f3a"
Opened = Callable[[TestCipher | None], Store]
BOTH = TestCipher(key_id="k2", known=frozenset({"k1", "k2"}))
NEW = TestCipher(key_id="k2", known=frozenset({"k2"}))


@pytest.fixture(autouse=True)
def _with_cipher(with_cipher: None) -> None:
    """The world of every test here has the cipher whose key is k1."""


@pytest.fixture
def opened(database_url: str, world: World) -> Iterator[Opened]:
    """The database of the world, as another process with this cipher opens it."""
    stores: list[Store] = []

    def open_with(cipher: TestCipher | None) -> Store:
        stores.append(Store(database_url, cipher=cipher))
        return stores[-1]

    yield open_with
    for store in stores:
        store.close()


def raw(world: World) -> str:
    """All rows, as the database has them; and the bytes of the file."""
    with world.store.read() as tx:
        rows = [
            str(row)
            for table in schema.metadata.sorted_tables
            for row in tx.exec_driver_sql(f'SELECT * FROM "{table.name}"').all()
        ]
    if world.store.is_postgres:
        return "\n".join(rows)
    file = Path(str(world.store.engine.url.database))
    return "\n".join(rows) + "".join(path.read_bytes().decode("latin-1") for path in file.parent.glob(f"{file.name}*"))


def whole_turn(world: World) -> str:
    """With a question, a sub-agent, a delivery and a fork, and a canary in every word."""
    world.tools.asks = asks_once(0, question=replace(ASK, prompt=f"May I? {CANARY}", schema={"title": CANARY}))
    world.tools.says = lambda order: f"said {CANARY}"
    settle_in(world)
    asked = [("pure", {"n": 0, "of": CANARY}), ask("bob", CANARY)]
    world.models.script = Lines({"ada": [asked], "bob": [[("pure", {"n": 9, "of": CANARY})]]})
    turn = world.submit(CANARY, meta={"about": CANARY}, reply_target={"channel": "me", "to": CANARY})
    world.run_dry()
    (question,) = world.inbox()
    world.decide(approval(question, {"said": CANARY}, reason=CANARY))
    world.run_dry()
    stages.fork_thread(world.runtime, "t1", ForkPoint(), space="api", name="copy")
    return turn


@pytest.mark.redis
def test_nothing_that_was_written_is_readable_anywhere(
    world: World, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client, receiver = with_bus(world, redis_url)
    world.runtime = replace(
        world.runtime, bus=RedisBus(client, prefix=PREFIX, rules=world.runtime.bus_rules, cipher=world.store.cipher)
    )
    turn = whole_turn(world)
    settle(world)

    view = views.turn(world.store, turn)
    assert CANARY in (view.text or "")
    assert CANARY in world.models.prompts[-1].said[0].text
    assert any(CANARY in str(reply) for reply in receiver.got)
    assert {"calls", "decisions", "journal", "outbox", "runs", "suspensions", "turns"} <= {
        name for name in schema.CONTENTS if world.rows(name)
    }
    with world.store.read() as tx:
        copied = journal.of_thread(tx, "api:copy", 100)
    assert any(CANARY in str(entry.body) for entry in copied)

    assert CANARY not in raw(world)
    entries = [fields for key in client.scan_iter("b:*", _type="stream") for _, fields in client.xrange(key)]
    assert entries
    assert CANARY not in str(entries)
    assert all(key_of(entry["data"].strip('"')) == "k1" for entry in entries)
    assert CANARY not in "".join(capsys.readouterr())


# Columns of unbounded text or JSON in which people, models and tools do not write.
NO_CONTENTS = {
    "turns.path": "names of agents", "runs.path": "names of agents", "calls.placed": "a word and seconds",
    "forks.effects": "names of tools", "polls.cursor": "a position", "pulse.path": "a file", "pulse.schedule": "times",
    "projection.error": "of Redis or a collector", "processes.queues": "names", "processes.agents": "digests",
    "bulk_jobs.chosen": "ids", "bulk_jobs.agents": "names", "bulk_jobs.groups": "names",
    "bulk_refusals.why": "a sentence of ours", "caller_keys.scopes": "words", "caller_keys.agents": "names",
    "caller_keys.groups": "words", "stream_tickets.path": "an address of ours",
    "saved_views.query": "docs/how-to/encryption.md says so",
}  # fmt: skip


def test_column_of_text_holds_contents_or_there_is_a_reason() -> None:
    """A new column has to be in one of the two lists."""
    columns = [column for table in schema.metadata.sorted_tables for column in table.columns]
    plain = {str(column) for column in columns if isinstance(column.type, Text | JSON)}
    assert plain == set(NO_CONTENTS)


def test_every_column_of_contents_is_encrypted(world: World) -> None:
    """Of the same list from which `erase` is tested."""
    whole_turn(world)
    with world.store.write() as tx:
        for table, row in (
            ("ops", {"turn_id": "t", "key": "k", "request_hash": "h", "response": {}, "at": world.clock.now}),
            ("plugin_state", {"scope": "run", "owner": "o", "key": "k", "value": 1}),
            ("forks", {"turn_id": "t", "run_id": "r", "step": 0, "kept": 0, "arguments": {}, "effects": []}),
            ("stepped", {
                "turn_id": "t", "rev": 1, "drive": "auto", "going": 0, "mutated": 0, "parked": 0, "iteration": 0,
                "cap_policy": "end", "on_held": "park", "params": {}, "options": {}, "given": {}, "replaces": 0,
                "steers": [], "verdicts": {}, "withheld": [],
            }),
            ("caller_audit", {"at": world.clock.now, "actor": "cli", "action": "decided", "about": "x", "detail": {}}),
            ("refusals", {"source": "s", "key": "k", "why": "w", "excerpt": "e", "at": world.clock.now}),
            ("polls", {
                "name": "p", "error": "e",
                **dict.fromkeys(("revision", "failures", "taken", "doubled", "refused", "passed_over"), 0),
            }),
            ("agent_versions", {"digest": "d", "agent": "a", "definition": {}, "first_seen_at": world.clock.now}),
            ("bulk_jobs", {
                "id": "b", "action": "cancel", "asked_by": "a", "digest": "d", "counted": 0, "is_estimate": 0,
                "state": "open", "position": "", "done": 0, "refused": 0, "lease_until": world.clock.now,
                "created_at": world.clock.now,
            }),
        ):  # fmt: skip
            of = schema.metadata.tables[table]
            tx.execute(insert(of), owned(tx, of, row))
    planted = 0
    for name, columns in schema.CONTENTS.items():
        table = schema.metadata.tables[name]
        for column in columns:
            is_json = table.c[column].type.form.value == "json"
            of = table.c[table.c[column].type.owner]
            with world.store.write() as tx:
                for owner in tx.execute(select(of).distinct()).scalars().all():
                    value = owned(tx, table, {column: {"detail": CANARY} if is_json else CANARY}, owner)
                    planted += tx.execute(update(table).where(of == owner).values(value)).rowcount
            with world.store.read() as tx:
                read = tx.execute(select(table.c[column])).scalars().all()
                stored = tx.execute(select(cast(table.c[column], Text()))).scalars().all()
            assert all(CANARY in str(value) for value in read), f"{name}.{column}"
            assert all(key_of(str(value).strip('"')) == "k1" for value in stored), f"{name}.{column}"
            assert read or name == "cipher_keys", f"{name}.{column}"
    assert planted > len(schema.CONTENTS)
    assert CANARY not in raw(world)


def test_detail_that_a_trigger_copies_is_read_with_the_note(world: World) -> None:
    turn = world.submit("first")
    with world.store.write() as tx:
        turns.end_queued(tx, turn, turns.Disposition.CANCELLED, world.clock.now, detail=CANARY)

    (note,) = world.rows("journal", kind="TurnDropped")
    assert note["body"]["detail"] == world.row("turns", id=turn)["detail"] == CANARY
    with world.store.read() as tx:
        assert CANARY in "".join(fact.text for fact in projection.facts(tx, 0, 100))
    assert CANARY not in raw(world)


def test_value_in_another_thread_cannot_be_read(world: World) -> None:
    world.models.script = lambda prompt: spoken("aye")
    talk(world, CANARY)
    talk(world, "mine", thread="t2")
    text = cast(schema.turns.c.text, Text())
    with world.store.write() as tx:
        taken = tx.execute(select(text).where(schema.turns.c.thread_id == "t1")).scalar_one()
        tx.exec_driver_sql(f"UPDATE turns SET text = '{taken}' WHERE thread_id = 't2'")

    with pytest.raises(WrongKey, match=r"turns.text of 't2' cannot be decrypted with key 'k1'.*changed outside"):
        world.rows("turns", thread_id="t2")


def test_row_that_was_moved_to_another_thread_cannot_be_read(world: World) -> None:
    world.models.script = lambda prompt: spoken("aye")
    talk(world, CANARY)
    with world.store.write() as tx:
        tx.exec_driver_sql("UPDATE journal SET thread_id = 't2' WHERE kind = 'UserMessage'")

    with world.store.read() as tx, pytest.raises(WrongKey, match=r"journal.body of 't2'"):
        journal.history(tx, "t2")


def test_contents_are_not_stored_without_their_owner(world: World) -> None:
    turn = world.submit("hello")
    plain = update(schema.turns).where(schema.turns.c.id == turn).values(text="plain")
    with (
        world.store.write() as tx,
        pytest.raises(StatementError, match="stored without their owner"),
    ):
        tx.execute(plain)


def test_turn_whose_key_is_missing_waits_for_it(world: World, opened: Opened) -> None:
    world.models.script = lambda prompt: spoken("aye")
    turn = world.submit(CANARY)
    without = replace(world.runtime, store=opened(NEW))
    with pytest.raises(WrongKey, match=r"turns.text of 't1' cannot be decrypted with key 'k1'.*Nothing was lost"):
        stages.dispatch(without, Group.CHAT, Hint(turn, "t1"))

    world.run_dry()
    assert world.row("turns", id=turn)["status"] == "done"


def test_process_without_the_key_does_not_begin(world: World, opened: Opened) -> None:
    schema_version.check(world.store)
    schema_version.check(world.store)
    assert [row["key_id"] for row in world.rows("cipher_keys")] == ["k1"]

    with pytest.raises(WrongKey, match="encrypted with key 'k1', and this process has no cipher: set CHORDAGE_CIPHER"):
        schema_version.check(opened(None))
    with pytest.raises(WrongKey, match="cipher_keys.proof of 'k1' cannot be decrypted with key 'k1'"):
        schema_version.check(opened(NEW))
    schema_version.check(opened(BOTH), note_key=False)
    assert [row["key_id"] for row in world.rows("cipher_keys")] == ["k1"]
    schema_version.check(opened(BOTH))
    with world.store.read() as tx:
        assert set(tx.execute(select(schema.cipher_keys.c.key_id)).scalars()) == {"k1", "k2"}


def test_doctor_says_that_a_key_is_missing_and_notes_none(world: World, opened: Opened, tmp_path: Path) -> None:
    schema_version.check(world.store)

    symptom = only(services.look_at_schema(context_of(opened(NEW), tmp_path)))
    assert (symptom.code, symptom.where, symptom.remedy) == ("wrong_key", "CHORDAGE_CIPHER", "chordage check")
    assert services.look_at_schema(context_of(opened(BOTH), tmp_path)).symptoms == ()
    assert len(world.rows("cipher_keys")) == 1


def test_contents_from_before_the_cipher_are_read(world: World, opened: Opened) -> None:
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    with opened(None).write() as tx:
        tx.execute(update(schema.turns).values(text="from before", meta={"is": "plain"}))

    (row,) = world.rows("turns")
    assert (row["text"], row["meta"]) == ("from before", {"is": "plain"})
    assert talk(world, "second")["status"] == "done"


def keys_of(world: World) -> set[str | None]:
    stored = set()
    with world.store.read() as tx:
        for name in schema.CONTENTS.keys() - {"cipher_keys"}:
            table = schema.metadata.tables[name]
            for column in schema.CONTENTS[name]:
                values = tx.execute(select(cast(table.c[column], Text()))).scalars().all()
                stored |= {key_of(value.strip('"')) for value in values if value is not None}
    return stored


def test_all_is_encrypted_with_a_new_key_and_the_old_one_retires(world: World, opened: Opened) -> None:
    turn = whole_turn(world)
    schema_version.check(world.store)
    before = views.turn(world.store, turn)
    assert keys_of(world) == {"k1", None}  # notes of triggers have ids alone
    with pytest.raises(ConfigError, match="there is no cipher"):
        next(encryption.rewrite(opened(None)))

    store = opened(BOTH)
    counted = list(encryption.rewrite(store, dry_run=True))
    assert sum(one.changed for one in counted) == 0
    passed = list(encryption.rewrite(store))
    assert sum(one.changed for one in passed) == sum(one.found.total() for one in counted)
    assert keys_of(world) == {"k2"}
    assert sum(one.changed + one.missed for one in encryption.rewrite(store)) == 0
    assert encryption.retire(store) == ["k1"]

    alone = opened(NEW)
    schema_version.check(alone)
    assert views.turn(alone, turn) == before
    assert CANARY not in raw(world)


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_what_was_stored_before_the_cipher_does_not_stay_in_the_file(world: World, opened: Opened) -> None:
    """Nor in the log beside it. Each text has pages of its own, which are free when it was written again."""
    for number in range(5):
        world.submit("first", thread=f"t{number}")
    with opened(None).write() as tx:
        tx.execute(update(schema.turns).values(text=CANARY * 2000))
    assert CANARY in raw(world)

    list(encryption.rewrite(world.store))
    assert CANARY not in raw(world)


def test_pass_that_was_cut_short_is_completed_by_the_next(world: World, opened: Opened) -> None:
    whole_turn(world)
    store = opened(BOTH)
    for _ in zip(range(4), encryption.rewrite(store), strict=False):
        pass
    assert keys_of(world) == {"k1", "k2", None}

    list(encryption.rewrite(store))
    assert keys_of(world) == {"k2"}


def test_value_that_is_written_meanwhile_is_left_and_counted(
    world: World, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    read = encryption.plain_text

    def read_late(cipher: TestCipher, stored: str, context: CipherContext, **options: Any) -> str:
        if context.column == "text":
            with world.store.write() as tx:
                tx.execute(update(schema.turns).values(owned(tx, schema.turns, {"text": "new"}, "t1")))
        return read(cipher, stored, context, **options)

    monkeypatch.setattr(encryption, "plain_text", read_late)
    (found,) = [one for one in encryption.rewrite(opened(BOTH)) if one.table == "turns"]

    assert found.missed == 1
    with opened(BOTH).read() as tx:
        assert tx.execute(select(schema.turns.c.text)).scalar() == "new"


FOREIGN = "chordage-enc1:other:AAAA"


@pytest.mark.parametrize(
    "changed",
    [f"calls SET arguments = '\"{FOREIGN}\"'", f"runs SET kept_detail = '{FOREIGN}'"],
    ids=["call", "its run"],
)
def test_row_that_cannot_be_decrypted_keeps_back_no_other_work(world: World, changed: str) -> None:
    """The calls of two runs are lost."""
    world.models.script = rounds_of(1)
    waits, other = world.submit(thread="t1"), world.submit(thread="t2")
    while len(world.rows("calls")) < 2:
        world.deliver(world.pending.pop(0))
    world.pending.clear()
    with world.store.write() as tx:
        tx.execute(text(f"UPDATE {changed} WHERE thread_id = 't1'"))  # noqa: S608 - a constant
    world.clock.pass_by(3600)

    world.pending += stages.rescue(world.runtime)
    world.run_dry()

    assert {turn["id"]: turn["disposition"] for turn in world.rows("turns")} == {waits: None, other: "answered"}


def test_run_ends_although_the_turn_that_is_next_cannot_be_decrypted(world: World) -> None:
    """It would start it in its place."""
    world.budgets[Group.CHAT] = 1
    world.models.script = lambda prompt: spoken("aye")
    first, waits = world.submit(thread="t1"), world.submit(thread="t2")

    def change(_prompt: Any) -> None:
        with world.store.write() as tx:
            tx.execute(text(f"UPDATE turns SET text = '{FOREIGN}' WHERE thread_id = 't2'"))  # noqa: S608 - a constant

    world.models.before_reply = change
    with suppress(WrongKey):  # a wake-up of the other
        world.run_dry()

    with world.store.read() as tx:
        of_turns = select(schema.turns.c.id, schema.turns.c.status, schema.turns.c.run_id).order_by(schema.turns.c.id)
        rows = tx.execute(of_turns).all()
    assert [(row.id, row.status) for row in rows] == [(first, "done"), (waits, "queued")]
    assert rows[1].run_id is None
    assert len(world.rows("runs")) == 1


def test_part_of_the_sweep_that_waits_for_a_key_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep(_rt: Any) -> Any:
        raise WrongKey("no such key")

    monkeypatch.setattr(limits, "sweep", sweep)
    turn = world.submit()
    world.pending.clear()
    world.clock.pass_by(60)

    world.pending += stages.rescue(world.runtime)
    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "answered"


def test_words_cannot_be_searched(world: World) -> None:
    world.submit(CANARY)
    with world.store.read() as tx:
        with pytest.raises(InvalidMessage, match="q: words of a message cannot be searched here"):
            search.matching(tx, search.TurnConditions(text="canary"), limit=5)
        (row,) = search.matching(tx, search.TurnConditions(agent="ada"), limit=5).rows
    assert row["text"] == CANARY


def test_beginnings_and_parts_are_cut_as_without_a_cipher(world: World) -> None:
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "x" * 500)
    with world.store.read() as tx:
        (row,) = search.matching(tx, search.TurnConditions(), limit=5).rows
        (listed,) = turns.newest(tx, limit=5)
    assert (len(row["text"]), len(listed["text"])) == (search.EXCERPT, turns.EXCERPT)


def test_whole_result_is_read_in_parts(world: World) -> None:
    settle_in(world)
    world.models.script = Lines({"ada": [[("pure", {"n": 9})]]})
    world.submit("go")
    world.run_dry()
    (call,) = world.rows("calls")
    with world.store.write() as tx:
        whole = owned(tx, schema.calls, {"full_result": "0123456789"}, "t1")
        tx.execute(update(schema.calls).values(whole))
    with world.store.read() as tx:
        part = calls.result_part(tx, call["id"], 2, 3)
        assert calls.sizes_of_full_results(tx, call["run_id"]) == [(call["id"], 10)]
        assert calls.result_part(tx, "none", 0, 5) is None
    assert part == calls.ResultPart(thread_id="t1", text="234", total=10)


def test_erased_thread_leaves_nothing(world: World) -> None:
    whole_turn(world)
    stages.erase(world.runtime, stages.thread_to_erase(world.runtime, "t1"), by=CLI)
    assert {name for name in ("turns", "journal", "calls", "suspensions") if world.rows(name)} == set()


def test_context_and_mark_are_a_format_that_stays() -> None:
    """Stored values and those on the bus: programs of others read them."""
    context = CipherContext("bus", "data", "t1")
    assert bytes(context) == b'["bus", "data", "t1"]'
    assert MARK == "chordage-enc1:"
    assert decrypt(TestCipher(), "chordage-enc1:no base64!", context) == "chordage-enc1:no base64!"
