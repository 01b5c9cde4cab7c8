"""Every guarded change of state, wanted by several connections at one barrier: one of them makes it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import func, insert, select

from chordage.orchestrator.core.errors import LostRace
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.reasons import NATURAL_END, cancelled
from chordage.orchestrator.core.records import Checkpoint, Phase
from chordage.orchestrator.store import journal, runs, schema, threads
from chordage.orchestrator.store.runs import RunClaim
from support.race import race
from support.rows import LATER, NOW, a_run, admit, load_run, start

NO_USAGE = Usage()
RACERS = 6


def count(store, table, **where):
    chosen = schema.metadata.tables[table]
    found = select(func.count()).where(*(chosen.c[name] == value for name, value in where.items()))
    with store.read() as tx:
        return tx.execute(found.select_from(chosen)).scalar_one()


def lost(came_to):
    """Of a move that another has made before."""
    assert came_to is None or isinstance(came_to, LostRace | bool), came_to
    return isinstance(came_to, LostRace)


def test_a_turn_is_started_by_one(store):
    with store.write() as tx:
        admit(tx, "a")

    won = race(store, [lambda tx, n=n: start(tx, "a", f"r{n}") for n in range(RACERS)])

    assert sorted(won) == [False] * (RACERS - 1) + [True]
    assert (count(store, "runs"), count(store, "turns", status="active")) == (1, 1)


def test_a_thread_gets_one_open_run_though_two_of_its_turns_are_ready(store):
    """A chore is ready, then a chat comes in ahead of it: their dispatchers do not wait for each other."""
    with store.write() as tx:
        admit(tx, "a", group=Group.CHORE)
        admit(tx, "b", group=Group.CHAT)
    assert count(store, "turns", ready=1) == 2

    def start_or_undo(tx, turn_id):
        if not start(tx, turn_id, f"run-of-{turn_id}"):
            tx.rollback()
            return False
        return True

    won = race(store, [lambda tx, turn=turn: start_or_undo(tx, turn) for turn in "ab"])

    assert [one for one in won if one is True] == [True], "the other saw it, or met it at the index"
    assert (count(store, "runs"), count(store, "turns", status="queued", ready=1)) == (1, 1)


def test_index_refuses_a_second_open_run_whatever_the_code_assumed(store):
    run = a_run(store)
    with store.read() as tx:
        row = dict(tx.execute(select(schema.runs)).first()._mapping)

    refused = race(
        store, [lambda tx: tx.execute(insert(schema.runs), {**row, "id": "another", "place": 999})], single=True
    )

    assert "uq_runs_open_thread" in str(refused[0]) or "runs.thread_id" in str(refused[0])
    assert [load_run(store).id, count(store, "runs")] == [run.id, 1]


def test_a_budget_is_never_exceeded_by_starts_at_the_same_moment(store):
    with store.write() as tx:
        for n in range(RACERS):
            admit(tx, f"a{n}", f"t{n}", group=Group.CHORE)

    def within_budget(tx, n):
        return any(start(tx, f"a{n}", f"r{n}", budget=2) for _ in range(5))  # two may have wanted one place

    won = race(store, [lambda tx, n=n: within_budget(tx, n) for n in range(RACERS)])

    assert sum(won) == 2
    assert count(store, "runs") == 2


def test_a_budget_in_the_database_wins_over_the_setting(store):
    with store.write() as tx:
        tx.execute(schema.groups.update().where(schema.groups.c.name == "chore").values(budget=5))

    with store.write() as tx:
        for n in range(6):
            admit(tx, f"chore{n}", f"chores{n}", group=Group.CHORE)
            admit(tx, f"will{n}", f"wills{n}", group=Group.WILL)
        started = {
            kind: [start(tx, f"{kind}{n}", f"{kind}-r{n}", budget=2) for n in range(6)] for kind in ("chore", "will")
        }

    assert {kind: sum(found) for kind, found in started.items()} == {"chore": 5, "will": 2}


def test_a_step_is_recorded_by_one(store):
    run = a_run(store)
    at = RunClaim(run=run, step=1, token=None)

    def go_on(tx):
        usage = Usage(input_tokens=7)
        return runs.open_step(tx, at, to=(2, Phase.INFERENCE), rounds=0, usage=usage, lease_until=LATER, by="h:1")

    came_to = race(store, [go_on] * RACERS)

    assert sorted(map(lost, came_to)) == [False] + [True] * (RACERS - 1)
    assert (load_run(store).step, load_run(store).usage.input_tokens) == (2, 7)


def test_a_run_is_finished_by_one(store):
    at = RunClaim(run=a_run(store), step=1, token=None)

    came_to = race(store, [lambda tx: runs.finish(tx, at, NATURAL_END, usage=NO_USAGE, now=NOW)] * RACERS)

    assert sorted(map(lost, came_to)) == [False] + [True] * (RACERS - 1)


def test_what_is_written_beside_a_refused_move_is_not_stored(store):
    """Its statements are sent without a wait for the answer to the move."""
    at = RunClaim(run=a_run(store), step=1, token=None)
    before = count(store, "journal")

    def finish(tx):
        runs.finish(tx, at, NATURAL_END, usage=NO_USAGE, now=NOW)
        body = {"reason": "natural_end"}
        journal.append(tx, [journal.entry("t1", at.run.id, 1, Checkpoint.RUN_FINISHED, body, NOW)])

    assert sorted(map(lost, race(store, [finish] * RACERS))) == [False] + [True] * (RACERS - 1)
    assert count(store, "journal") == before + 1


def test_a_run_either_finishes_or_is_ended_from_outside(store):
    run = a_run(store)
    at = RunClaim(run=run, step=1, token=None)

    finished, ended = race(
        store,
        [
            lambda tx: runs.finish(tx, at, NATURAL_END, usage=NO_USAGE, now=NOW),
            lambda tx: runs.end(tx, run, cancelled(), NOW),
        ],
    )

    assert lost(finished) is ended
    assert load_run(store).reason.value == ("cancelled" if ended else "natural_end")


def test_a_writer_of_an_old_epoch_step_or_token_changes_nothing(store):
    run = a_run(store)
    with store.write() as tx:
        assert runs.claim(tx, run, "token", "w1", LATER)
    wrong = [
        RunClaim(run=run, step=1, token="another"),
        RunClaim(run=run, step=1, token=None),
        RunClaim(run=run, step=3, token="token"),
        RunClaim(run=replace(run, epoch=run.epoch + 1), step=1, token="token"),
    ]

    for at in wrong:
        with pytest.raises(LostRace), store.write() as tx:
            runs.finish(tx, at, NATURAL_END, usage=NO_USAGE, now=NOW)
    with store.write() as tx:
        assert runs.end(tx, run, cancelled(), NOW)
    with pytest.raises(LostRace), store.write() as tx:
        runs.finish(tx, RunClaim(run=run, step=1, token="token"), NATURAL_END, usage=NO_USAGE, now=NOW)


def test_a_run_in_doubt_is_claimed_by_one_until_rescue_has_freed_it(store):
    run = a_run(store)

    won = race(store, [lambda tx, n=n: runs.claim(tx, run, f"k{n}", f"w{n}", LATER) for n in range(RACERS)])

    assert sorted(won) == [False] * (RACERS - 1) + [True]
    with store.write() as tx:
        assert not runs.claim(tx, run, "late", "w", LATER)
        runs.push_lease(tx, run, lease_until=LATER, resends=1, expiries=1)
        assert runs.claim(tx, run, "freed", "w", LATER)


def test_arrivals_on_one_thread_are_numbered_without_gap_or_double(store):
    numbers = race(store, [lambda tx: threads.arrive(tx, "t1", "ada", NOW)()] * RACERS)

    assert sorted(numbers) == list(range(1, RACERS + 1))


def test_the_same_dedupe_key_makes_one_turn(store):
    told = race(store, [lambda tx, n=n: admit(tx, f"a{n}", dedupe_key="k") for n in range(RACERS)])

    assert sum(isinstance(answer, str) for answer in told) == 1
    assert count(store, "turns") == 1


def test_a_checkpoint_is_written_once(store):
    row = {"thread_id": "t1", "run_id": "r1", "step": 1, "kind": "RunFinished", "body": {}, "at": NOW}

    told = race(store, [lambda tx: journal.append(tx, [row])] * RACERS)

    assert told.count(None) == 1
    assert count(store, "journal") == 1
