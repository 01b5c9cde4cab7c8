"""What `prune` deletes, what it keeps because something needs it, and what it leaves after a death."""

from __future__ import annotations

import importlib
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import insert, update

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.errors import InvalidMessage, NotFound
from chordage.orchestrator.core.message import WhenBusy
from chordage.orchestrator.core.pruning import PruneLimits, limits_for
from chordage.orchestrator.core.status import Disposition
from chordage.orchestrator.runtime import Patrol
from chordage.orchestrator.store import journal, pruning, schema
from chordage.orchestrator.store.database import Store
from support.fakes import rounds_of, spoken
from support.family import Lines, ask, settle_in
from support.invariants import check_all
from support.questions import approve, asks_once
from support.summing import FITS, last_prompt, summing, talk
from support.world import Died, World

DAY = timedelta(days=1)
OLD = 100 * DAY
stage = importlib.import_module("chordage.orchestrator.stages.prune")  # the package has a function of that name
passes = importlib.import_module("chordage.orchestrator.run.pruning")


def limits(world: World, days: int = 90, **more: Any) -> PruneLimits:
    return limits_for(world.runtime.now(), older_than=days * DAY, keep_keys=30 * DAY, **more)


def prune(world: World, days: int = 90, **more: Any) -> dict[str, int]:
    world.revive()
    with world.as_another_process():
        return dict(stages.prune(world.runtime, limits(world, days, **more), by=CLI).rows)


def age(world: World, by: timedelta = OLD) -> None:
    world.clock.pass_by(by.total_seconds())


def everything(world: World) -> dict[str, int]:
    """Rows by table, of those tables that `prune` deletes from."""
    with world.store.read() as tx:
        tables = [table for table in schema.metadata.sorted_tables if table.name not in pruning.NOT_PRUNED]
        counted = {table.name: len(tx.execute(table.select()).all()) for table in tables}
    return {name: number for name, number in counted.items() if number}


def add(world: World, table: str, **values: Any) -> None:
    with world.store.write() as tx:
        tx.execute(insert(schema.metadata.tables[table]), values)


def deliver(world: World, turn_id: str, **state: Any) -> None:
    now = world.clock.now
    add(
        world, "outbox", thread_id="t1", turn_id=turn_id, target={}, receiver="r", body={"text": "secret"},
        created_at=now, position=0, attempts=1, forgiven=0, next_at=now, **state,
    )  # fmt: skip


def filled(world: World) -> str:
    """A turn with a row in every table that has rows of turns."""
    world.tools.asks = asks_once(0)
    settle_in(world)
    world.models.script = Lines({"ada": [[("pure", {"n": 0}), ask("bob")]]})
    turn = world.submit()
    world.run_dry()
    approve(world, world.inbox()[0])
    row = world.row("turns", id=turn)
    call = world.rows("calls", run_id=row["run_id"])[0]
    now = world.clock.now
    deliver(world, turn, status="sent", sent_at=now)
    for scope, owner in (("thread", "t1"), ("run", row["run_id"]), ("call", call["id"])):
        add(world, "plugin_state", scope=scope, owner=owner, key="k", value=1)
    add(world, "ops", turn_id=turn, key="k", request_hash="h", response={}, at=now)
    add(world, "agent_versions", digest="d" * 32, agent="ada", definition={}, first_seen_at=now)
    add(world, "takeovers", run_id=row["run_id"], step=1, lost_at=now, noticed_at=now)
    add(world, "executions", run_id=row["run_id"], call_id="c", worker="w", at=now)
    add(world, "refusals", source="s", key="k", why="w", excerpt="e", at=now)
    add(
        world, "stepped", turn_id=turn, rev=1, drive="auto", going=0, mutated=0, parked=0, iteration=0,
        cap_policy="end", on_held="park", params={}, options={}, given={}, replaces=0, steers=[], verdicts={},
        withheld=[],
    )  # fmt: skip
    add(
        world, "bulk_jobs", id="job", action="cancel", asked_by="a", digest="d", counted=0, is_estimate=0, state="done",
        position="", done=0, refused=1, lease_until=now, created_at=now, ended_at=now,
    )  # fmt: skip
    add(world, "bulk_refusals", job_id="job", target="t", why="w")
    return turn


def test_everything_of_an_idle_thread_goes(world):
    turn = filled(world)
    world.models.script = lambda prompt: spoken("aye")
    run_id = str(world.row("turns", id=turn)["run_id"])
    add(world, "forks", turn_id=turn, run_id="gone", step=0, kept=0, arguments={}, effects=[])
    before = everything(world)
    assert before.keys() == schema.metadata.tables.keys() - pruning.NOT_PRUNED.keys(), "a table has no row to prune"
    assert prune(world) == {}
    age(world)

    counted = stages.count_old_turns(world.runtime, limits(world)).rows
    pruned = prune(world)

    assert everything(world) == {}
    assert pruned == before
    lists = ("threads", "refusals", "bulk_jobs", "bulk_refusals", "agent_versions")
    of_threads = {"plugin_state": 1}
    assert counted == {n: rows - of_threads.get(n, 0) for n, rows in before.items() if n not in lists}
    with pytest.raises(NotFound):
        views.run(world.store, run_id)


def test_a_pruned_thread_begins_anew(world):
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    age(world)
    prune(world)

    turn = talk(world, "second")

    assert (turn["disposition"], turn["arrival"], last_prompt(world)) == ("answered", 1, ["second"])
    check_all(world.store)


def test_what_an_operator_did_is_recorded_with_the_rows_by_table(world):
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    age(world)
    prune(world, dispositions=frozenset({Disposition.ANSWERED}))

    begun, ended = (row["detail"] for row in world.rows("caller_audit", action="pruned"))
    assert (begun["rows"], begun["states"]) == ({}, ["answered"])
    assert ended["rows"] == {"turns": 1, "runs": 1, "threads": 1, "journal": 4}


@pytest.mark.parametrize(("state", "kept"), [(Disposition.FAILED, 1), (Disposition.ANSWERED, 0)])
def test_only_turns_that_ended_so(world, state, kept):
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    age(world)

    prune(world, dispositions=frozenset({state}))

    assert len(world.rows("turns")) == kept


def test_turns_of_the_last_day_cannot_be_pruned(world):
    with pytest.raises(InvalidMessage, match="--older-than 1d or more"):
        limits_for(world.runtime.now(), older_than=timedelta(hours=23), keep_keys=DAY)


# What is kept.


def a_waiting_run(world: World) -> None:
    talk(world, "before it")
    world.tools.asks = asks_once(0)
    world.models.script = rounds_of(1)
    world.submit()
    world.run_dry()


def a_queued_turn(world: World) -> None:
    talk(world, "before it")
    world.submit()
    world.pending.clear()


def a_live_thread(world: World) -> None:
    talk(world, "old")
    age(world)
    talk(world, "new")


def a_live_thread_with_a_long_run(world: World) -> None:
    """Its last turn came long ago, and ended now."""
    a_waiting_run(world)
    age(world)
    approve(world, world.inbox()[0])


def a_child_of_a_waiting_run(world: World) -> None:
    settle_in(world)
    world.tools.asks = asks_once(0)
    world.models.script = Lines({"ada": [[ask("bob")], [("pure", {"n": 0})]]})
    world.submit()
    world.run_dry()


def a_parent_of_a_child_that_ended_lately(world: World) -> None:
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]]})
    world.submit()
    world.run_dry()
    of_child, late = schema.turns.c.parent_run.is_not(None), world.clock.now + OLD
    with world.store.write() as tx:
        tx.execute(update(schema.turns).where(of_child).values(done_at=late))


def a_pending_delivery(world: World) -> None:
    deliver(world, str(talk(world, "hi")["id"]), status="pending")


def a_letter_that_died_lately(world: World) -> None:
    turn = str(talk(world, "hi")["id"])
    deliver(world, turn, status="dead", dead_at=world.clock.now + OLD)


def a_source_of_a_fork(world: World) -> None:
    run_id = talk(world, "hi")["run_id"]
    add(world, "forks", turn_id="other", run_id=run_id, step=0, kept=0, arguments={}, effects=[])


def a_task(world: World) -> None:
    turn = talk(world, "hi")["id"]
    add(
        world, "pulse", kind="task", key="k", path="p", rev=1, state="live", paused=0, count=1, merged=0, missed=0,
        turn_id=turn, open=1,
    )  # fmt: skip


def a_message_merged_into_a_queued_turn(world: World) -> None:
    into = world.submit(thread="t2")
    world.pending.clear()
    turn = talk(world, "hi")["id"]
    with world.store.write() as tx:
        gone = {"disposition": "merged", "into_turn": into, "run_id": None}
        tx.execute(update(schema.turns).where(schema.turns.c.id == turn).values(gone))


@pytest.mark.parametrize(
    "keeping",
    [
        a_waiting_run, a_queued_turn, a_live_thread, a_live_thread_with_a_long_run, a_child_of_a_waiting_run,
        a_parent_of_a_child_that_ended_lately,
        a_pending_delivery, a_letter_that_died_lately, a_source_of_a_fork, a_task, a_message_merged_into_a_queued_turn,
    ],
)  # fmt: skip
def test_what_is_needed_is_kept(world, keeping):
    world.models.script = lambda prompt: spoken("aye")
    keeping(world)
    if not keeping.__name__.startswith("a_live"):
        age(world)
    before = everything(world)

    pruned = prune(world)

    assert (pruned, everything(world)) == ({}, before)


def test_a_message_that_was_steered_into_a_run_goes_with_it(world):
    world.models.script = rounds_of(1)
    world.submit()
    while not world.tools.orders:
        world.deliver(world.pending.pop(0))
    world.submit("more", when_busy=WhenBusy.STEER)
    world.run_dry()
    assert {row["disposition"] for row in world.rows("turns")} == {"answered", "steered"}
    age(world)

    prune(world)

    assert everything(world) == {}


@pytest.mark.parametrize(("days", "kept"), [(20, 1), (40, 0)])
def test_a_dedupe_key_is_recognised_for_a_time_of_its_own(world, days, kept):
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "hi", dedupe_key="k")
    age(world, days * DAY)

    prune(world, days=10)

    assert len(world.rows("turns")) == kept


def test_of_a_live_thread_goes_what_a_summary_replaces(world):
    summing(world, lambda prompt: spoken("aye"), threshold=FITS)
    talk(world, "first")
    talk(world, "second")
    age(world)
    talk(world, "third")
    with world.store.read() as tx:
        before = journal.history(tx, "t1")

    prune(world)

    with world.store.read() as tx:
        assert journal.history(tx, "t1") == before
    texts = [row["text"] for row in world.rows("turns")]
    assert "first" not in texts, "a summary replaces it"
    assert "third" in texts
    assert talk(world, "fourth")["disposition"] == "answered"
    check_all(world.store)


def test_a_thread_that_began_as_a_fork_goes_with_its_copies(world):
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "first")
    fork = stages.fork_thread(world.runtime, "t1", stages.ForkPoint(), space="api", name="copy")
    talk(world, "second", thread=fork.thread_id)
    age(world)
    talk(world, "again")

    prune(world)

    assert {row["thread_id"] for row in world.rows("runs")} == {"t1"}
    assert [row["id"] for row in world.rows("threads")] == ["t1"]
    assert {row["thread_id"] for row in world.rows("journal")} == {"t1"}


# Deaths, and others at work.


def test_a_death_at_any_commit_leaves_nothing_that_a_second_call_does_not_delete(world, monkeypatch):
    monkeypatch.setattr(passes, "LARGEST", 1)
    monkeypatch.setattr(passes, "SMALLEST", 1)
    monkeypatch.setattr(stage, "Patrol", partial(Patrol, prune_batch=1))
    world.models.script = lambda prompt: spoken("aye")
    for number in range(12):
        talk(world, f"m{number}", thread=f"t{number % 2}")
    age(world)
    for die_at in range(1, 6):
        world.commits, world.die_at = 0, die_at
        with pytest.raises(Died):
            prune(world)
        world.die_at = None
        world.revive()
        check_all(world.store)
        left = {row["run_id"] for row in world.rows("turns")}
        assert {row["id"] for row in world.rows("runs")} == left

    prune(world)

    assert everything(world) == {}


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
@pytest.mark.parametrize("table", ["threads", "runs", "turns"])
def test_a_row_that_another_has_locked_is_left_for_a_later_pass(world, table):
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "mine", thread="t1")
    talk(world, "free", thread="t2")
    age(world)
    row = world.row(table, **{"id" if table == "threads" else "thread_id": "t1"})
    chosen = schema.metadata.tables[table]

    with world.store.write() as tx:
        tx.execute(chosen.select().where(chosen.c.id == row["id"]).with_for_update())
        pruned = prune(world)

    assert pruned["turns"] == 1
    assert [left["thread_id"] for left in world.rows("turns")] == ["t1"]
    assert prune(world)["turns"] == 1


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
@pytest.mark.parametrize("fork", ["of a thread", "of a run"])
def test_what_is_being_forked_is_left(world, fork):
    world.models.script = lambda prompt: spoken("aye")
    run_id = str(talk(world, "old")["run_id"])
    age(world)
    pruned = []

    def prune_meanwhile(_connection: object) -> None:
        world.before_commit = lambda _: None
        with closing(Store(world.store.url, pool_size=1)) as other:
            pruned.append(stages.prune(replace(world.runtime, store=other), limits(world), by=CLI).rows)

    terms = stages.fork_request(world.runtime, run_id, 0, stages.ForkEdits(), space="api", source="test")
    world.before_commit = prune_meanwhile
    if fork == "of a run":
        stages.fork_run(world.runtime, terms)
    else:
        stages.fork_thread(world.runtime, "t1", stages.ForkPoint(), space="api")

    assert pruned == [{}]


def test_a_sweep_deletes_what_the_settings_keep_no_longer(world):
    world.models.script = lambda prompt: spoken("aye")
    talk(world, "old", thread="t1")
    age(world)
    talk(world, "new", thread="t2")

    stages.rescue(world.runtime)
    assert len(world.rows("turns")) == 2
    stages.rescue(replace(world.runtime, turn_keep=90 * DAY))

    assert [row["text"] for row in world.rows("turns")] == ["new"]


def test_one_sweep_takes_a_moment_and_the_next_continues_behind_it(world, monkeypatch):
    world.models.script = lambda prompt: spoken("aye")
    for number in range(5):
        talk(world, f"m{number}", thread=f"t{number}")
    age(world)
    rt = replace(world.runtime, turn_keep=90 * DAY)
    rt.patrol.prune_batch = 2
    times = iter(range(1_000))  # each look at the clock costs a second
    monkeypatch.setattr(passes.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(passes.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(passes, "PASS", 2.5)
    monkeypatch.setattr(passes, "SMALLEST", 2)

    left = []
    for _ in range(5):
        passes.prune_some(rt, limits(world))
        left.append(len(world.rows("turns")))

    assert left == [3, 1, 0, 0, 0]


def test_after_a_look_at_all_old_turns_the_next_waits(world):
    world.models.script = lambda prompt: spoken("aye")
    rt = replace(world.runtime, turn_keep=90 * DAY)
    stages.rescue(rt)
    talk(world, "old")
    age(world)
    rt.patrol.prune_at = world.clock.now + DAY
    stages.rescue(rt)
    assert len(world.rows("turns")) == 1

    age(world, DAY)
    stages.rescue(rt)

    assert world.rows("turns") == []


def test_a_slow_batch_is_followed_by_a_smaller_one_and_a_quick_one_by_a_larger(world, monkeypatch):
    world.models.script = lambda prompt: spoken("aye")
    rt = replace(world.runtime, turn_keep=90 * DAY)
    sizes = []
    monkeypatch.setattr(passes, "SMALLEST", 5)
    monkeypatch.setattr(passes.time, "sleep", lambda seconds: None)
    for cost in (1.0, 1.0, 0.0):
        for number in range(30):
            add_turns(world, f"{cost}{len(sizes)}-{number}")
        age(world)
        times = iter([cost * n for n in range(1_000)])
        monkeypatch.setattr(passes.time, "monotonic", lambda times=times: next(times))
        rt.patrol.pruned_to = ""
        passes.prune_window(rt, limits(world), passes.Counter(), lambda: len(world.rows("turns")) > 0)
        sizes.append(rt.patrol.prune_batch)

    assert sizes == [15, 5, 35]


def add_turns(world: World, name: str) -> None:
    talk(world, "hi", thread=name)
