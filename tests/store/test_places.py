"""Places of a budget are numbers in an index: starts share no row, and no count can be wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import IntegrityError

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.reasons import NATURAL_END
from chordage.orchestrator.core.records import Phase
from chordage.orchestrator.store import groups, runs, schema, starts
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.fairness import StartRule
from chordage.orchestrator.store.runs import RunClaim
from support.draws import examples
from support.race import race
from support.rows import LATER, NOW, admit, load_run, start
from support.schedules import LONG

ANY = (StartRule.HAS_ROOM,)


def queue(store, number):
    with store.write() as tx:
        for n in range(number):
            admit(tx, f"a{n}", f"t{n}")


def begin(store, n, *, budget=100, rules=ANY):
    with store.write() as tx:
        return start(tx, f"a{n}", f"r{n}", budget, rules=rules)


def end(store, n):
    with store.write() as tx:
        run = runs.lock(tx, f"r{n}")
        assert run is not None
        assert runs.end(tx, run, NATURAL_END, NOW)


def wait_for_decision(store, n):
    run = load_run(store, f"r{n}")
    assert run.next_inference
    at = RunClaim(run=run, step=run.next_inference, token=None)
    with store.write() as tx:
        runs.suspend(tx, at, to=at.step + 1, kept=None, rounds=0, usage=Usage(), now=NOW)


def stall(store, n):
    with store.write() as tx:
        assert runs.stall(tx, f"r{n}")


def resume(store, n):
    with store.write() as tx:
        assert runs.resume(tx, load_run(store, f"r{n}"), rested_ms=0, lease_until=LATER)


def places(store):
    """Of the runs at work."""
    at_work = schema.runs.c.status == "running", schema.runs.c.stalled == 0
    with store.read() as tx:
        rows = tx.execute(select(schema.runs.c.id, schema.runs.c.place).where(*at_work))
        return {row.id: row.place for row in rows}


def test_each_run_has_a_number_of_the_budget_and_none_is_left_when_it_is_spent(store):
    queue(store, 9)

    started = [begin(store, n, budget=7) for n in range(9)]

    assert started == [True] * 7 + [False] * 2
    assert sorted(places(store).values()) == list(range(7))


@pytest.mark.parametrize("leave", [end, wait_for_decision, stall])
def test_number_of_a_run_that_leaves_its_place_is_free_without_another_statement(store, leave):
    queue(store, 4)
    assert [begin(store, n, budget=3) for n in range(3)] == [True] * 3
    left = places(store)["r1"]

    leave(store, 1)

    assert begin(store, 3, budget=3)
    assert places(store)["r3"] == left


def test_run_that_is_resumed_has_no_number_and_keeps_one_start_away(store):
    queue(store, 6)
    assert [begin(store, n, budget=3) for n in range(3)] == [True] * 3
    wait_for_decision(store, 1)
    assert begin(store, 3, budget=3)
    resume(store, 1)
    assert (places(store)["r1"], len(places(store))) == (None, 4)

    end(store, 0)

    assert not begin(store, 4, budget=3), "three are at work"
    end(store, 2)
    assert begin(store, 4, budget=3)
    assert not begin(store, 5, budget=3)


def test_run_that_was_stalled_counts_again_when_it_moves_and_takes_nobodys_number(store):
    queue(store, 3)
    assert begin(store, 0, budget=1)
    stall(store, 0)
    assert begin(store, 1, budget=1)

    at = RunClaim(run=load_run(store, "r0"), step=1, token=None)
    with store.write() as tx:
        runs.open_step(tx, at, to=(2, Phase.INFERENCE), rounds=0, usage=Usage(), lease_until=LATER, by="h:1")

    assert places(store) == {"r0": None, "r1": 0}
    end(store, 1)
    assert not begin(store, 2, budget=1)


def test_numbers_beyond_a_budget_that_was_lowered_count(store):
    queue(store, 12)
    assert [begin(store, n, budget=8) for n in range(8)] == [True] * 8
    with store.write() as tx:
        groups.set_budget(tx, Group.CHAT, 4)

    for n in range(4):
        assert not begin(store, 8)
        end(store, n)
    assert not begin(store, 8), "four are at work, whatever their numbers"
    end(store, 4)
    assert begin(store, 8)
    assert not begin(store, 9)


moves = st.lists(
    st.one_of(
        st.just(("start",)),
        st.tuples(st.sampled_from(["end", "suspend", "resume"]), st.integers(0, 30)),
        st.tuples(st.just("budget"), st.integers(0, 5)),
    ),
    max_size=40,
)


@settings(LONG, max_examples=examples(60))
@given(moves=moves)
def test_a_turn_starts_exactly_while_fewer_runs_are_at_work_than_the_budget(migrated_database_url, moves):
    store = Store(migrated_database_url("sqlite"))
    queue(store, len(moves))
    budget, waiting, begun = 3, [], 0
    for name, *what in moves:
        at_work = sorted(places(store))
        match name:
            case "start":
                assert begin(store, begun, budget=budget) is (len(at_work) < budget)
                begun += len(at_work) < budget
            case "budget":
                (budget,) = what
            case "resume" if waiting:
                resume(store, waiting.pop(what[0] % len(waiting)))
            case "end" | "suspend" if at_work:
                n = int(at_work[what[0] % len(at_work)][1:])
                waiting += [n] if name == "suspend" else []
                (wait_for_decision if name == "suspend" else end)(store, n)
    store.close()


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_start_waits_for_no_other_start_and_for_no_end_of_its_group(store, monkeypatch):
    """Two starts seldom draw the same number; then the later one waits for the other."""
    queue(store, 5)
    for n in (0, 1):
        assert begin(store, n)
    with store.write() as ending, store.write() as starting:
        run = runs.lock(ending, "r0")
        assert run is not None
        runs.end(ending, run, NATURAL_END, NOW)
        monkeypatch.setattr(starts, "random", SimpleNamespace(getrandbits=lambda _bits: 40))
        assert start(starting, "a2", "r2", rules=ANY)
        monkeypatch.setattr(starts, "random", SimpleNamespace(getrandbits=lambda _bits: 80))
        with store.write() as tx:
            tx.execute(text("SET LOCAL lock_timeout = '1ms'"))
            assert start(tx, "a3", "r3", rules=ANY)


def test_two_that_want_the_last_place_at_one_moment_do_not_both_get_it(store):
    queue(store, 6)

    def until_spent(tx, n):
        return any(start(tx, f"a{n}", f"r{n}", budget=2, rules=ANY) for _ in range(5))

    won = race(store, [lambda tx, n=n: until_spent(tx, n) for n in range(6)])

    assert sum(won) == 2
    assert sorted(places(store).values()) == [0, 1]


def test_index_refuses_a_place_twice_whatever_the_code_assumed(store):
    queue(store, 2)
    begin(store, 0)
    with store.read() as tx:
        row = dict(tx.execute(select(schema.runs)).first()._mapping)

    with pytest.raises(IntegrityError, match=r"uq_runs_place|runs\.place"), store.write() as tx:
        tx.execute(insert(schema.runs), {**row, "id": "another", "thread_id": "t1"})
    with store.write() as tx:  # of a run that is over, the number is only history
        tx.execute(update(schema.runs).values(status="done", reason="natural_end", ended_at=NOW))
        tx.execute(insert(schema.runs), {**row, "id": "another", "thread_id": "t1"})
