"""Guarded changes of tool calls, wanted by several connections at one barrier: one of them makes it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from chordage.orchestrator.core.agent_versions import AgentPin
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.store import calls, runs, schema
from chordage.orchestrator.store.calls import CallOutcome, CallToRun
from support.builders import a_call as built
from support.race import race
from support.rows import LATER, NOW, a_call, load_call

RACERS = 6


def test_call_is_claimed_by_one_until_rescue_has_released_it(store):
    call = a_call(store)

    def claim(tx, token, now=NOW):
        return calls.claim(tx, call, token, "w", now=now, lease_until=LATER)

    won = race(store, [lambda tx, n=n: claim(tx, f"k{n}") for n in range(RACERS)], single=True)

    assert sorted(won) == [False] * (RACERS - 1) + [True]
    with store.single() as tx:
        assert not claim(tx, "early", LATER)
        assert not claim(tx, "late", LATER + timedelta(seconds=1)), "a lease is judged by rescue alone"
        free(tx)
        assert claim(tx, "freed", LATER)


def claim_new(tx, token="k", agent="ada", digest=""):
    return calls.claim_new(tx, "c1", token, "w", agent=agent, digest=digest, now=NOW, lease_until=LATER)


def test_new_call_is_loaded_and_claimed_by_one(store):
    before = a_call(store)

    won = race(store, [lambda tx, n=n: claim_new(tx, f"k{n}") for n in range(RACERS)], single=True)

    (number,) = [n for n, claimed in enumerate(won) if claimed is not None]
    pin = AgentPin("ada", "")
    assert won[number] == CallToRun(call=before, pin=pin, epoch=1, is_running=True, may_be_limited=False)
    assert load_call(store) == replace(
        before, status=CallStatus.RUNNING, claim_token=f"k{number}", worker="w", started_at=NOW, lease_until=LATER
    )


@pytest.mark.parametrize(
    ("table", "values"),
    [
        (schema.calls, {"status": "resuming"}),
        (schema.calls, {"status": "running"}),
        (schema.calls, {"status": "succeeded", "ended_at": NOW}),
        (schema.calls, {"effect": "pure"}),
        (schema.calls, {"effect": "idempotent"}),
        (schema.calls, {"lease_until": None}),
        (schema.calls, {"suspension_id": "s"}),
        (schema.calls, {"resends": 1}),
        (schema.calls, {"expiries": 1}),
        (schema.runs, {"status": "waiting", "reason": "suspended"}),
        (schema.runs, {"status": "done", "reason": "natural_end", "ended_at": NOW}),
        (schema.runs, {"timeout_ms": 1}),
        (schema.runs, {"parent_run": "p"}),
        (schema.runs, {"agent": "bob"}),
        (schema.runs, {"agent_digest": "another"}),
    ],
    ids=lambda value: ",".join(f"{name}-{what}" for name, what in value.items()) if isinstance(value, dict) else "",
)
def test_only_a_new_unsafe_call_of_a_run_at_work_is_claimed_unseen(store, table, values):
    a_call(store)
    with store.write() as tx:
        tx.execute(table.update().values(values))
    before = load_call(store)

    with store.single() as tx:
        assert claim_new(tx) is None

    assert load_call(store) == before


@pytest.mark.parametrize(("digest", "is_claimed"), [("a", True), (None, True), ("b", False), ("", False)])
def test_a_call_is_claimed_unseen_only_for_the_version_with_which_its_run_began(store, digest, is_claimed):
    a_call(store)
    with store.write() as tx:
        tx.execute(schema.runs.update().values(agent_digest="a"))

    with store.single() as tx:
        assert (claim_new(tx, digest=digest) is not None) is is_claimed


def free(tx):
    calls.push_lease(tx, built(id="c1"), lease_until=LATER, resends=1, expiries=1)


def an_outcome(content="x", status=CallStatus.SUCCEEDED):
    return CallOutcome(
        status=status, code=None, content=content, full=None, worker="w", started_at=NOW, ended_at=NOW
    )  # fmt: skip


def test_a_call_is_settled_once_and_stays_as_it_was_settled(store):
    a_call(store)

    won = race(
        store,
        [lambda tx, n=n: calls.settle(tx, built(id="c1"), None, an_outcome(str(n))) for n in range(RACERS)],
        single=True,
    )

    assert sorted(won) == [False] * (RACERS - 1) + [True]
    assert load_call(store).content == str(won.index(True))
    with store.single() as tx:
        assert not calls.claim(tx, load_call(store), "k", "w", now=NOW, lease_until=LATER)


def test_a_holder_that_lost_its_claim_counts_no_crash_and_frees_no_call_of_another(store):
    """Freed, an unsafe call that the other has begun would be begun once more."""
    call = a_call(store)
    with store.single() as tx:
        assert calls.claim(tx, call, "new", "w2", now=NOW, lease_until=LATER)
        before = calls.load(tx, call.id)
        for token in ("old", None):
            calls.record_crash(tx, call.id, token, "w1", LATER)
        assert calls.load(tx, call.id) == before

        calls.record_crash(tx, call.id, "new", "w2", LATER)
        counted = calls.load(tx, call.id)

    assert (counted.worker, counted.expiries) == (None, before.expiries + 1)


def test_lost_claim_cannot_settle_a_call(store):
    call = a_call(store)
    with store.single() as tx:
        calls.claim(tx, call, "first", "w1", now=NOW, lease_until=LATER)
        free(tx)
        calls.claim(tx, call, "second", "w2", now=LATER, lease_until=LATER)

        assert not calls.settle(tx, built(id="c1"), "first", an_outcome())
        assert not calls.settle(tx, built(id="c1"), None, an_outcome())
        assert calls.settle(tx, built(id="c1"), "second", an_outcome())


@pytest.mark.parametrize("token", ["mine", None])
def test_released_call_counts_as_a_crash(store, token):
    call = a_call(store)
    with store.single() as tx:
        if token:
            calls.claim(tx, call, token, "w1", now=NOW, lease_until=LATER)
        calls.record_crash(tx, call.id, token, "w1", NOW)
        calls.record_crash(tx, call.id, "another", "w1", NOW)

    freed = load_call(store)
    assert (freed.expiries, freed.worker, freed.lease_until) == (1, None, NOW)


def test_a_call_is_settled_or_closed_with_its_run(store):
    a_call(store)

    won = race(
        store,
        [
            lambda tx: calls.settle(tx, built(id="c1"), None, an_outcome("mine")),
            lambda tx: calls.cancel_of_run(tx, "r1", code="cancelled", content="closed", now=NOW) == 1,
        ],
    )

    assert sorted(won) == [False, True]
    assert load_call(store).content == ("mine" if won[0] else "closed")


@pytest.mark.parametrize("what", ["runs", "calls"])
def test_sweepers_at_the_same_moment_never_hold_the_same_row(what, store):
    a_call(store)
    late = LATER + timedelta(seconds=1)

    def sweep(tx):
        found = runs.expired(tx, late, 10, among=["r1"]) if what == "runs" else calls.expired(tx, late, 10)
        for row in found:
            push = runs.push_lease if what == "runs" else calls.push_lease
            push(tx, row, lease_until=late + timedelta(seconds=30), resends=1, expiries=0)
        return len(found)

    assert sorted(race(store, [sweep] * RACERS)) == [0] * (RACERS - 1) + [1]
