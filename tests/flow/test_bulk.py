"""Bulk jobs: cancel, retry and send again what fits a search, each target once, whatever dies meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import insert, update

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.bulk import BulkAction, BulkRequest, BulkState, target_of, targets_of
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import ContinueBulk
from chordage.orchestrator.core.message import CALLERS
from chordage.orchestrator.stages import bulk as stage
from chordage.orchestrator.store import schema, turn_search
from chordage.orchestrator.views import TurnFilter, TurnState
from chordage.orchestrator.views.turn_search import filter_as_json
from support.world import Died, World

BY = Actor(id="ops", address="10.0.0.1")


def queue(world: World, number: int, **fields: object) -> list[str]:
    """Turns that cannot start: there is no budget."""
    world.budgets.update(dict.fromkeys(Group, 0))
    world.agents.agents["bob"] = replace(world.agents.agents["ada"], name="bob")
    turns = [world.submit(f"turn {one}", thread=f"t{one}", **fields) for one in range(number)]
    world.pending.clear()
    return turns


def matching(*states: str, **fields: object) -> dict[str, object]:
    return filter_as_json(TurnFilter(states=frozenset(TurnState(state) for state in states), **fields))


def start(world: World, action: str = "cancel", **fields: object) -> str:
    with world.as_another_process():
        job, intents = stages.start_bulk(world.runtime, BulkRequest(action=BulkAction(action), by=BY, **fields))
    world.pending += intents
    return job.id


def job_of(world: World, job_id: str) -> views.BulkView:
    return views.bulk_job(world.store, job_id)


def dispositions(world: World) -> Counter[object]:
    return Counter(row["disposition"] for row in world.rows("turns"))


def refused(world: World, job_id: str) -> dict[str, str]:
    return {one.target: one.why for one in views.bulk_refusals(world.store, job_id)}


def dead_letters(world: World, number: int, thread: str = "api:t") -> list[int]:
    now = world.clock()
    rows = [
        {
            "thread_id": f"{thread}{one}", "turn_id": f"{thread}{one}", "target": {"url": "http://x"}, "receiver": "x",
            "body": {}, "created_at": now, "position": 0, "status": "dead", "attempts": 4, "forgiven": 0,
            "next_at": now, "dead_at": now,
        }
        for one in range(number)
    ]  # fmt: skip
    with world.store.write() as tx:
        tx.execute(insert(schema.outbox), rows)
    return [row["id"] for row in world.rows("outbox") if str(row["thread_id"]).startswith(thread)]


def test_all_that_fit_are_cancelled_and_nothing_else(world: World) -> None:
    queue(world, 5)
    other = world.submit(thread="other", agent="bob")
    world.pending.clear()

    job_id = start(world, wanted=matching("queued", agent="ada"), reason="enough")
    world.clock.pass_by(1)
    later = world.submit(thread="later")
    world.run_dry()

    job = job_of(world, job_id)
    assert (job.state, job.counted, job.done, job.refused) == (BulkState.DONE, 5, 5, 0)
    assert job.ended_at is not None
    assert dispositions(world) == {"cancelled": 5, None: 2}
    assert {world.row("turns", id=turn)["status"] for turn in (other, later)} == {"queued"}
    assert {row["detail"] for row in world.rows("turns", disposition="cancelled")} == {"enough"}


def test_nothing_is_done_before_a_worker_takes_the_job(world: World) -> None:
    queue(world, 3)

    job_id = start(world, wanted=matching("queued"))

    assert dispositions(world) == {None: 3}
    assert job_of(world, job_id).state is BulkState.OPEN
    (audited,) = views.audit_page(world.store, limit=10).data
    assert (audited.actor, audited.about, audited.detail["count"]) == ("ops", job_id, 3)


def test_hundreds_at_once_take_bounded_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In as many messages as the bound of one message demands."""
    (admitted,) = queue(world, 1)
    with world.store.write() as tx:
        model = dict(tx.execute(schema.turns.select().where(schema.turns.c.id == admitted)).mappings().one())
        rows = [
            {**model, "id": f"many{one:06d}", "thread_id": f"m{one}", "dedupe_key": None, "arrival": 1}
            for one in range(199)
        ]
        threads = [
            {"id": f"m{one}", "agent": "ada", "arrivals": 1, "created_at": world.clock(), "updated_at": world.clock()}
            for one in range(199)
        ]
        tx.execute(insert(schema.threads), threads)
        tx.execute(insert(schema.turns), rows)
    monkeypatch.setattr(stage, "TARGETS", 4)
    monkeypatch.setattr(stage, "LOOKS", 10)

    job_id = start(world, wanted=matching("queued"))
    messages = 0
    while world.pending:
        intent = world.pending.pop(0)
        if isinstance(intent, ContinueBulk):
            messages += 1
            before = dispositions(world)["cancelled"]
            world.deliver(intent)
            assert dispositions(world)["cancelled"] - before <= 40

    job = job_of(world, job_id)
    assert (job.counted, job.done, job.refused) == (200, 200, 0)
    assert dispositions(world) == {"cancelled": 200}
    assert messages >= 5, "40 a message"


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("action", ["cancel", "retry", "redeliver"])
@pytest.mark.parametrize("at", range(1, 9))
def test_a_job_survives_death_at_any_commit(world: World, at: int, action: str, before: bool) -> None:
    if action == "redeliver":
        dead_letters(world, 3)
    else:
        queue(world, 3)
    if action == "retry":
        start(world, wanted=matching("queued"))
        world.run_dry()
    wanted = {"cancel": matching("queued"), "retry": matching("cancelled"), "redeliver": None}[action]
    job_id = start(world, action, wanted=wanted)
    world.die_at, world.die_before = world.commits + at, before

    try:
        world.run_dry()
    except Died:
        world.pending.clear()
    world.die_at = None
    world.sweep(seconds=40)
    world.run_dry()

    job = job_of(world, job_id)
    assert (job.state, job.done, job.refused) == (BulkState.DONE, 3, 0)
    if action == "redeliver":
        assert Counter(row["status"] for row in world.rows("outbox")) == {"pending": 3}
    else:
        assert dispositions(world) == {"cancel": {"cancelled": 3}, "retry": {"cancelled": 3, None: 3}}[action]


def test_a_message_that_comes_twice_acts_on_nothing_twice(world: World) -> None:
    queue(world, 3)
    job_id = start(world, wanted=matching("queued"))
    (intent,) = world.pending

    world.deliver(intent)
    world.deliver(intent)

    assert job_of(world, job_id).done == 3
    assert len(world.rows("journal", kind="TurnDropped")) == 3


def test_a_worker_that_lost_the_job_acts_on_no_further_target(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease ran out in the middle, and another worker has claimed the job."""
    queue(world, 4)
    job_id = start(world, wanted=matching("queued"))
    world.pending.clear()
    taken = iter([True])

    plain = stage._pass

    def another_takes_it(*args):
        following = plain(*args)
        if next(taken, False):
            with world.store.write() as tx:
                tx.execute(update(schema.bulk_jobs).values(claim_token="another"))
        return following

    monkeypatch.setattr(stage, "_pass", another_takes_it)
    world.deliver(ContinueBulk(job_id=job_id))

    assert job_of(world, job_id).done == dispositions(world)["cancelled"] == 1


def test_a_job_that_is_stopped_leaves_the_rest_alone(world: World) -> None:
    queue(world, 3)
    job_id = start(world, wanted=matching("queued"))

    stopped = stages.stop_bulk(world.runtime, job_id, BY)
    world.run_dry()

    assert stopped.state is BulkState.STOPPED
    assert dispositions(world) == {None: 3}
    assert stages.stop_bulk(world.runtime, job_id, BY).ended_at == stopped.ended_at, "once more changes nothing"
    assert world.sweep(seconds=100) == [] or ContinueBulk(job_id=job_id) not in world.pending


def test_chosen_turns_are_cancelled_and_the_others_refused_with_the_reason(world: World) -> None:
    first, second, third = queue(world, 3)
    stages.cancel_turn(world.runtime, second)

    job_id = start(world, chosen=targets_of(BulkAction.CANCEL, [first, second, "nothing", first]))
    world.run_dry()

    job = job_of(world, job_id)
    assert (job.chosen, job.done, job.refused) == (3, 1, 2)
    assert refused(world, job_id) == {
        second: "it was done before",
        "nothing": "there is no turn 'nothing'; `chordage turns` lists them",
    }
    assert world.row("turns", id=third)["status"] == "queued"


def test_a_turn_that_no_longer_fits_is_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (turn,) = queue(world, 1)
    job_id = start(world, wanted=matching("queued", agent="ada"))
    world.pending.clear()
    plain = stage.turn_search.next_fitting

    def late(tx, *args, **more):
        fitting = plain(tx, *args, **more)
        tx.execute(update(schema.turns).where(schema.turns.c.id == turn).values(agent="bob"))
        return fitting

    monkeypatch.setattr(stage.turn_search, "next_fitting", late)
    world.deliver(ContinueBulk(job_id=job_id))

    assert refused(world, job_id) == {turn: "it no longer fits the search"}
    assert world.row("turns", id=turn)["status"] == "queued"


def test_turns_are_retried_once_in_the_order_they_came(world: World) -> None:
    turns = queue(world, 3)
    start(world, wanted=matching("queued"))
    world.run_dry()

    job_id = start(world, "retry", wanted=matching("cancelled", "failed"))
    world.run_dry()
    again = start(world, "retry", wanted=matching("cancelled", "failed"))
    world.run_dry()

    new = world.rows("turns", status="queued")
    assert [row["text"] for row in new] == ["turn 0", "turn 1", "turn 2"]
    assert [row["dedupe_key"] for row in new] == [f"retry:{turn}" for turn in turns]
    assert job_of(world, job_id).done == 3
    assert (job_of(world, again).done, job_of(world, again).refused) == (0, 3)
    assert all("retried before: that is turn" in why for why in refused(world, again).values())


def test_what_cannot_be_retried_is_refused_and_the_rest_is_done(world: World) -> None:
    first, second = queue(world, 2)
    stages.cancel_turn(world.runtime, first)
    bobs = world.submit("bobs", thread="b", agent="bob")
    stages.cancel_turn(world.runtime, bobs)

    chosen = targets_of(BulkAction.RETRY, [first, second, bobs])
    job_id = start(world, "retry", chosen=chosen, agents=frozenset({"ada"}))
    world.run_dry()

    assert job_of(world, job_id).done == 1
    assert "is queued: wait for its end" in refused(world, job_id)[second]
    assert "may not address agent 'bob'" in refused(world, job_id)[bobs]


def test_dead_letters_are_due_again_and_those_of_others_are_not_there(world: World) -> None:
    ours, others = dead_letters(world, 2, "api@acme:t"), dead_letters(world, 2, "api@acme2:t")

    job_id = start(world, "redeliver", space="api@acme")
    world.run_dry()
    named = start(world, "redeliver", space="api@acme", chosen=(target_of(others[0]),))
    world.run_dry()

    job = job_of(world, job_id)
    assert (job.counted, job.done, job.refused) == (2, 2, 0)
    assert [row["id"] for row in world.rows("outbox", status="pending")] == ours
    assert list(refused(world, named)) == [str(others[0])]


def test_a_letter_that_dies_again_meanwhile_is_not_sent_a_third_time(world: World) -> None:
    (number,) = dead_letters(world, 1)
    job_id = start(world, "redeliver", chosen=(target_of(number),))
    with world.store.write() as tx:
        tx.execute(update(schema.outbox).values(dead_at=world.clock() + timedelta(seconds=5)))

    world.run_dry()

    assert "dead letter once more" in refused(world, job_id)[str(number)]


def test_turns_of_another_space_are_neither_counted_nor_touched(world: World) -> None:
    turns = queue(world, 2, space=CALLERS)
    other = world.submit(thread="x", space="api@acme")
    world.pending.clear()

    everything = start(world, wanted=matching("queued"), space=CALLERS)
    named = start(world, chosen=(other,), space=CALLERS)
    world.run_dry()

    assert job_of(world, everything).counted == job_of(world, everything).done == len(turns)
    assert "there is no turn" in refused(world, named)[other]
    with pytest.raises(NotFound):
        views.bulk_job(world.store, named, space="api@acme")
    with pytest.raises(NotFound):
        stages.stop_bulk(world.runtime, named, BY, space="api@acme")


def test_the_same_request_under_one_key_is_one_job(world: World) -> None:
    queue(world, 2)
    first = start(world, wanted=matching("queued"), key="k")

    assert start(world, wanted=matching("queued"), key="k") == first
    assert len(world.pending) == 1
    with pytest.raises(Conflict, match="was used for another bulk job"):
        start(world, wanted=matching("running"), key="k")
    other = BulkRequest(action=BulkAction.CANCEL, by=Actor(id="else"), wanted=matching("running"), key="k")
    assert stages.start_bulk(world.runtime, other)[0].id != first, "the key of another caller"


def test_the_job_of_a_dead_process_is_sent_for_at_once(world: World) -> None:
    queue(world, 2)
    job_id = start(world, wanted=matching("queued"))
    world.pending.clear()
    with world.store.write() as tx:
        held = {"claim_token": "x", "claim_worker": "gone:1"}
        tx.execute(update(schema.bulk_jobs).values(**held, lease_until=world.clock() + timedelta(hours=1)))
        process = {"id": "gone:1", "machine": "m", "pid": 1, "born": "x", "seen_at": world.clock()}
        tx.execute(insert(schema.processes), {**process, "gone_at": world.clock()})

    assert ContinueBulk(job_id=job_id) in world.sweep()
    world.run_dry()
    assert job_of(world, job_id).done == 2


def test_a_fault_at_one_target_costs_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _, second, _ = queue(world, 3)
    plain = stage.cancelling.cancel

    def broken(unit, turn_id, reason):
        if turn_id == second:
            raise RuntimeError("no")
        return plain(unit, turn_id, reason)

    monkeypatch.setattr(stage.cancelling, "cancel", broken)
    job_id = start(world, wanted=matching("queued"))
    world.run_dry()

    assert job_of(world, job_id).done == 2
    assert refused(world, job_id) == {second: "a fault of Chordage: RuntimeError"}


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({}, "give a filter or ids"),
        ({"chosen": ()}, "name at least one"),
        ({"chosen": tuple(map(str, range(1001)))}, "the most is 1000"),
        ({"chosen": ("x",), "wanted": {}}, "not both"),
        ({"action": BulkAction.REDELIVER, "wanted": {}}, "dead letters have none"),
        ({"wanted": {}, "reason": "x" * 2001}, "at most 2000"),
    ],
)
def test_requests_that_make_no_sense_are_refused(world: World, fields: dict[str, object], fault: str) -> None:
    request = replace(BulkRequest(action=BulkAction.CANCEL, by=BY), **fields)

    with pytest.raises(InvalidMessage, match=fault):
        stages.start_bulk(world.runtime, request)
    assert world.rows("bulk_jobs") == []


def test_named_deliveries_are_numbers() -> None:
    assert targets_of(BulkAction.REDELIVER, ["12", " 3 ", "12"]) == (target_of(3), target_of(12))
    with pytest.raises(InvalidMessage, match="'x' is not the number of a delivery"):
        targets_of(BulkAction.REDELIVER, ["12", "x"])


def test_a_count_is_exact_where_all_was_looked_at_and_else_an_estimate_that_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_search, "LOOKED_AT", 1_000)
    monkeypatch.setattr(turn_search, "AT_ONCE", 250)
    (turn,) = queue(world, 1)
    queued = BulkRequest(action=BulkAction.CANCEL, by=BY, wanted=matching("queued"))
    assert stages.count_bulk(world.runtime, queued) == stage.BulkCount(number=1)
    number = 2_000
    with world.store.write() as tx:
        model = dict(tx.execute(schema.turns.select().where(schema.turns.c.id == turn)).mappings().one())
        ended = {"status": "done", "disposition": "failed", "done_at": world.clock(), "dedupe_key": None}
        rows = [{**model, **ended, "id": f"jd{one:08d}", "arrival": 10 + one} for one in range(number)]
        tx.execute(insert(schema.turns), rows)
    if world.store.is_postgres:
        with world.store.write() as tx:
            tx.exec_driver_sql("ANALYZE turns")

    request = BulkRequest(action=BulkAction.RETRY, by=BY, wanted=matching("failed"))
    count = stages.count_bulk(world.runtime, request)

    assert count.is_estimate
    assert abs(count.number - number) / number < 0.05
