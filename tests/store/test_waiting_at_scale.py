"""Thousands of runs that wait for a person cost a sweep, and the turns of others, what ten cost."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise

import pytest
from sqlalchemy import event, text, update

from chordage.orchestrator import stages
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store import groups, schema, turns
from chordage.orchestrator.store.database import Store
from support.backlog import load
from support.databases import BACKENDS, Databases
from support.rows import NOW, admit
from support.world import World

FEW, MANY = 10, 2_000
VERY_MANY = 10_000
BEHIND = 3  # turns behind each run that waits
SWEEPS = 8
AT_FIRST = {"resends": 0, "expiries": 0}


def waits(n: int) -> dict[str, dict]:
    """The rows of a run whose one call is suspended; by table."""
    names = {"thread_id": f"waiting{n}", "run_id": f"run{n}"}
    thread = {"id": names["thread_id"], "agent": "ada", "arrivals": 1, "created_at": NOW, "updated_at": NOW}
    turn = {
        "id": f"turn{n}", **names, "arrival": 1, "agent": "ada", "grp": "chat", "rank": 0, "tenant": "ada",
        "status": "active", "ready": 0, "steers": 0, "origin": "invoke", "sender": "service", "text": "hi", "meta": {},
        "strategy": "react", "control": "auto", "source": "test", "due_at": NOW, "queued_at": NOW, "nudge_at": NOW,
        "started_at": NOW,
    }  # fmt: skip
    run = {
        "id": names["run_id"], "thread_id": names["thread_id"], "turn_id": turn["id"], "agent": "ada", "grp": "chat",
        "tenant": "ada", "strategy": "react", "control": "auto", "status": "waiting", "reason": "suspended",
        "epoch": 1, "step": 3,
        "phase": "replay", "rounds": 1, **AT_FIRST, "input_tokens": 5, "output_tokens": 4, "cached_tokens": 0,
        "cache_write_tokens": 0, "suspended": 1,
        "rested_ms": 0, "steers": 0, "children": 0, "started_at": NOW,
    }  # fmt: skip
    call = {
        "id": f"call{n}", **names, "step": 2, "place": 0, "ask_id": "ask", "generation": 1, "tool": "pure",
        "arguments": {"n": n}, "effect": "pure", "status": "suspended", **AT_FIRST, "suspension_id": f"asked{n}",
    }  # fmt: skip
    asked = {
        "id": f"asked{n}", "call_id": call["id"], **names, "agent": "ada", "step": 2, "tool": "pure", "why": "tool",
        "prompt": "May I?", "resume_mode": "replay_tool_call", "digest": "0" * 64, "status": "open", "created_at": NOW,
        "on_expiry": "deny",
    }  # fmt: skip
    return {"threads": thread, "turns": turn, "runs": run, "calls": call, "suspensions": asked}


def crowded(store: Store, number: int) -> Store:
    made = [waits(n) for n in range(number)]
    tables = ("threads", "turns", "runs", "calls", "suspensions")
    load(store, {schema.metadata.tables[table]: [rows[table] for rows in made] for table in tables})
    return store


@pytest.fixture(scope="module", params=BACKENDS)
def crowd(request: pytest.FixtureRequest, databases: Databases) -> Iterator[list[World]]:
    """One world with few that wait, one with many."""
    urls = [databases.migrated(request.param) for _ in range(2)]
    worlds = [World(crowded(Store(url), number)) for url, number in zip(urls, (FEW, MANY), strict=True)]
    yield worlds
    for world, url in zip(worlds, urls, strict=True):
        world.close()
        databases.drop(url)


def statements_of(world: World, work) -> int:
    before = world.statements
    work(world)
    return world.statements - before


def sweep_finds_nothing(world: World) -> None:
    assert world.sweep(3600) == []


def a_turn_is_answered(world: World) -> None:
    turn = world.submit(thread="somebody else's")
    world.run_dry()
    assert world.row("turns", id=turn)["disposition"] == "answered"


def test_a_sweep_sends_as_many_statements_for_thousands_as_for_ten(crowd):
    few, many = (statements_of(world, sweep_finds_nothing) for world in crowd)

    assert few == many
    assert few < 20


def test_a_turn_on_another_thread_starts_at_once_and_costs_the_same(crowd):
    few, many = (statements_of(world, a_turn_is_answered) for world in crowd)

    assert few == many
    for world in crowd:
        with world.store.read() as tx:
            assert groups.places(tx, Group.CHAT, default=64).free == 64


TABLES = set(schema.metadata.tables)
OF_THOSE_THAT_WAIT = {"uq_runs_open_thread", "uq_suspensions_call", "ix_suspensions_run", "ix_suspensions_inbox"}


class Watched:
    """A SQLite store of which we see what its statements are, how they are planned, and how much work they are."""

    def __init__(self, url: str) -> None:
        self.statements: list[str] = []
        self.steps = 0  # instructions of SQLite's machine, in hundreds
        self.store = Store(url)
        for engine in (self.store.engine, self.store.plain):
            event.listen(engine, "connect", self._watch)
        self.world = World(self.store)

    def _watch(self, raw: sqlite3.Connection, _record: object) -> None:
        raw.set_trace_callback(self.statements.append)
        raw.set_progress_handler(self._step, 100)

    def _step(self) -> int:
        self.steps += 1
        return 0

    def sweep(self) -> tuple[list[str], int]:
        """What one sweep sent, and the work it was."""
        self.statements.clear()
        before = self.steps
        stages.rescue(self.world.runtime)
        return list(self.statements), self.steps - before

    def plans(self, statements: list[str]) -> list[str]:
        with self.store.read() as tx:
            asked = [f"EXPLAIN QUERY PLAN {sent}" for sent in statements if sent.startswith(("SELECT", "UPDATE"))]
            return [row.detail for ask in asked for row in tx.exec_driver_sql(ask)]


@pytest.fixture
def watched(migrated_database_url) -> Iterator[list[Watched]]:
    made = []
    for number in (FEW, MANY):
        url = migrated_database_url("sqlite")
        crowded(Store(url), number).close()
        made.append(Watched(url))
    yield made
    for one in made:
        one.world.close()


def test_no_statement_of_a_sweep_scans_the_waiting_turns(watched):
    few, many = watched
    sent, little = few.sweep()
    sent_again, much = many.sweep()

    plans = many.plans(sent_again)
    assert len(sent) == len(sent_again)
    assert plans
    walks = [plan.split() for plan in plans if plan.startswith("SCAN")]
    assert [walk for walk in walks if walk[1] in TABLES and "USING" not in walk] == [], "whole tables"
    assert [walk for walk in walks if OF_THOSE_THAT_WAIT & set(walk)] == []
    print(f"a sweep takes {little} hundred steps with {FEW} that wait, {much} with {MANY}")
    assert much <= little + 10


def queue_behind(store: Store, number: int) -> None:
    """Turns behind each of so many runs that wait."""
    due = [
        waits(n)["turns"] | {"id": f"behind{n}-{k}", "arrival": 2 + k, "run_id": None, "status": "queued"}
        for n in range(number)
        for k in range(BEHIND)
    ]
    load(store, {schema.turns: [turn | {"started_at": None} for turn in due]})


def test_no_line_behind_a_waiting_run_is_worth_more_than_a_look(watched):
    """Nor more lines than a sweep looks at, however many there are. Those of SQLite's machine are counted."""
    taken = []
    for number, one in zip((FEW, MANY), watched, strict=True):
        queue_behind(one.store, number)
        one.world.clock.pass_by(60)
        taken.append(max(one.sweep()[1] for _ in range(SWEEPS)))

    print(f"a sweep takes {taken[0]} hundred steps with {FEW} lines, {taken[1]} with {MANY}")
    assert taken[1] <= taken[0] + turns.LINES


def pages_touched(store: Store) -> int:
    """Of all tables and their indexes, so far."""
    with store.read() as tx:
        tx.execute(text("SELECT pg_stat_force_next_flush()"))
    with store.read() as tx:
        tables = "heap_blks_hit + heap_blks_read", "idx_blks_hit + idx_blks_read"
        return int(tx.execute(text(f"SELECT sum({' + '.join(tables)}) FROM pg_statio_user_tables")).scalar() or 0)


@pytest.mark.postgres
def test_a_sweep_touches_few_pages_whatever_is_queued_behind_waiting_runs(migrated_database_url):
    store = crowded(Store(migrated_database_url("postgres"), pool_size=1), VERY_MANY)
    queue_behind(store, VERY_MANY)
    with store.read() as tx:
        tx.execute(text("ANALYZE"))
    world = World(store)
    world.clock.pass_by(60)

    touched = [pages_touched(store)]
    for _ in range(SWEEPS):
        stages.rescue(world.runtime)
        touched.append(pages_touched(store))
        world.clock.pass_by(60)
    world.close()

    sweeps = [after - before for before, after in pairwise(touched)]
    print(f"pages a sweep: {sweeps}")
    assert max(sweeps) <= 2_500


@pytest.mark.parametrize("thread", ["a free one", "yet another"])
@pytest.mark.parametrize("held", [FEW, 600])
def test_stranded_thread_is_found_behind_all_held_ones(store, held, thread):
    """Turns that wait with a waiting run may be many and old; they must not hide the one that was not made ready."""
    crowded(store, held)
    world = World(store)
    with store.write() as tx:
        for n in range(held):
            admit(tx, f"held{n}", f"waiting{n}")
        admit(tx, "stranded", thread, queued_at=NOW + timedelta(seconds=1))
        tx.execute(update(schema.turns).where(schema.turns.c.id == "stranded").values(ready=0))
    for _ in range(3):
        world.sweep(60)
        world.run_dry()

    ended = world.row("turns", id="stranded")["disposition"]
    world.close()
    assert ended == "answered"
