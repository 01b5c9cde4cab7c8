"""Who comes first: on one thread the first, between groups the higher, and no turn waits for another thread."""

from __future__ import annotations

import pytest

from support.rig import Plan
from support.rig_checks import check_rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]


def test_fifty_turns_on_one_thread_run_in_order_and_hold_up_no_other(make_rig, database_url):
    rig = make_rig(database_url, budgets={"chat": 64}, log_level="WARNING")
    rig.worker("turns-1", "--role", "turns", "--concurrency", "64")
    rig.worker("turns-2", "--role", "turns", "--concurrency", "64")
    rig.ready()
    busy = [Plan(id=f"busy-{n}", rounds=0, gated=n == 0) for n in range(50)]
    others = [Plan(id=f"other-{n}", rounds=0) for n in range(50)]

    waiting = [rig.admit(plan, "busy") for plan in busy]
    waiting += [rig.admit(plan, plan.id) for plan in others]
    rig.send(waiting)
    until(lambda: rig.unfinished() == len(busy), "all others end while the first of the busy thread is at work")
    (rig.room / "gate").touch()
    rig.wait_until_done()

    on_busy = sorted(rig.rows("turns", thread_id="busy"), key=lambda turn: turn["arrival"])
    for before, after in zip(on_busy, on_busy[1:], strict=False):
        assert before["done_at"] <= after["started_at"], "two turns of one thread at once, or out of order"
    started = [turn["started_at"] for turn in rig.rows("turns") if turn["thread_id"] != "busy"]
    assert len(started) == 50
    assert max(started) < on_busy[0]["done_at"], "all others start before the first of the busy thread ends"
    check_rig(rig)


def test_a_chat_is_next_when_a_slot_gets_free_whatever_else_waits(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"), budgets={"chat": 9, "task": 9, "chore": 9, "will": 9})
    rig.worker("turns", "--role", "turns", "--concurrency", "1")
    rig.ready()
    for group in ("will", "chore", "task"):
        for n in range(3):
            rig.submit(Plan(id=f"{group}-{n}", rounds=0, gated=True), f"{group}-{n}", group=group)
            until(lambda: rig.facts(what="model"), "the only slot is busy with the first of them")

    rig.submit(Plan(id="chat", rounds=0), "chat")
    (rig.room / "gate").touch()
    rig.wait_until_done()

    order = [fact["plan"] for fact in rig.facts(what="model")]
    assert order[1] == "chat"
    assert [plan.partition("-")[0] for plan in order[2:]] == ["task"] * 3 + ["chore"] * 3 + ["will"] * 2
    check_rig(rig)


def test_a_chat_comes_between_two_rounds_of_a_chore(make_rig, migrated_database_url):
    """A backlog of chores delays no chat beyond one round of one slot."""
    rig = make_rig(migrated_database_url("sqlite"), budgets={"chat": 9, "chore": 9})
    rig.worker("all", "--role", "all", "--concurrency", "1")
    rig.ready()
    for n in range(3):
        rig.submit(Plan(id=f"chore-{n}", rounds=2, tools=("pure",), gated=True), f"chore-{n}", group="chore")
    until(lambda: rig.facts(what="model"), "the only slot is busy")

    rig.submit(Plan(id="chat", rounds=0), "chat")
    (rig.room / "gate").touch()
    rig.wait_until_done()

    assert [fact["plan"] for fact in rig.facts(what="model")][1] == "chat"
    check_rig(rig)
