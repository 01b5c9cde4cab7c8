"""A process dies, or is kept too long, at a place that only Celery has: between two steps of a chord."""

from __future__ import annotations

import pytest

from support import dying_worker
from support.dying_worker import give_order, is_carried_out
from support.rig import Plan
from support.rig_checks import check_rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

PLACES = {
    "part": "a header has returned, the chord has not counted it",
    "body": "the last header has been counted, and has not yet sent the body",
    "header": "the fan-out is half done",
    "tool": "a call is settled, its header has not returned",
}


@pytest.mark.parametrize("who", ["child", "worker"])
def test_a_chord_whose_process_dies_costs_time_only(who, make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"), lease=2, beat=0.5, sweep=0.5)
    order = rig.folder / "order"
    give_order(order, at=10_000, when="never", who="worker")
    for name, role in (("turns-1", "turns"), ("turns-2", "turns"), ("tools", "tools")):
        arguments = ("--role", role, "--concurrency", "3")
        rig.worker(name, *arguments, program=(dying_worker.__file__,), env={"RIG_ORDER": str(order)})
    rig.ready()

    for place, meaning in PLACES.items():
        give_order(order, at=2 if place == "header" else 1, when=place, who=who)
        turn = rig.submit(Plan(id=place, seconds=0.1))
        rig.wait_until_done(meanwhile=rig.restart_the_dead)

        assert is_carried_out(order), f"nobody died where {meaning}"
        assert rig.row("turns", id=turn)["disposition"] == "answered"
    check_rig(rig)


@pytest.mark.parametrize("error", ["Ignore", "Reject"])
def test_tool_that_raises_a_celery_exception_gives_an_error_result(error, make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"))
    rig.worker("all", "--role", "all", "--concurrency", "4")
    rig.ready()

    turn = rig.submit(Plan(id=error, tools=("pure", error.lower(), "pure")))
    rig.wait_until_done()

    statuses = [row["status"] for row in rig.rows("calls")]
    assert statuses == ["succeeded", "failed", "succeeded"]
    assert error in rig.answer(turn)


def test_a_poison_header_ends_its_run_as_poison_and_no_other(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"), lease=1.5, beat=0.5, sweep=0.5)
    rig.worker("turns", "--role", "turns", "--concurrency", "4")
    rig.worker("tools", "--role", "tools", "--concurrency", "3")
    rig.ready()

    bad = rig.submit(Plan(id="bad", tools=("poison", "pure")))
    good = [rig.submit(Plan(id=f"good-{n}", tools=("pure", "idempotent"))) for n in range(4)]
    rig.wait_until_done()

    assert rig.row("turns", id=bad)["disposition"] == "failed"
    assert rig.row("runs", turn_id=bad)["code"] == "poison"
    assert {rig.row("turns", id=turn)["disposition"] for turn in good} == {"answered"}
    deaths = len(rig.facts(name="poison"))
    assert deaths <= 2 * rig.settings.poison_after + 2, f"it took {deaths} processes with it"


# A worker that does not see at its start that the tool may take longer than the worker lets it: a tool can lie.
UNCHECKED = (
    "-c",
    (
        "import chordage.workers.bootstrap as b; b.check_agent = lambda *a, **k: None; "
        "from chordage.workers.cli import main; main()"
    ),
)


def test_a_header_over_the_hard_time_limit_is_a_worker_that_died_inside_the_call(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"), lease=2, beat=0.5, sweep=0.5, tool_time_limit=1)
    rig.worker("turns", "--role", "turns", "--concurrency", "4", program=UNCHECKED)
    rig.worker("tools", "--role", "tools", "--concurrency", "3", program=UNCHECKED)
    rig.ready()

    turn = rig.submit(Plan(id="long", tools=("unsafe",), seconds=30))
    rig.wait_until_done()

    assert rig.row("calls")["code"] == "outcome_unknown"
    assert "not known whether it took effect" in rig.answer(turn)
    check_rig(rig)


def executed(rig, name):
    """How many Celery tasks of this name the workers have begun."""
    ask = rig.app.control.inspect(timeout=3).stats
    answers = until(lambda: len(stats := ask() or {}) == len(rig.workers) and stats, "each worker answers")
    return sum(stats["total"].get(name, 0) for stats in answers.values())


def test_message_that_comes_again_while_its_work_is_in_flight_starts_nothing(make_rig, migrated_database_url):
    """The visibility timeout is shorter than a call, so Redis hands the message out again in the middle of it: when the
    heartbeat has put it on record, which is what keeps others from it.
    """
    rig = make_rig(migrated_database_url("sqlite"), visibility_timeout=6, lease=30, beat=1)
    rig.worker("turns", "--role", "turns", "--concurrency", "4")
    rig.worker("tools", "--role", "tools", "--concurrency", "4")
    rig.ready()

    rig.submit(Plan(id="tools", tools=("held_up", "held_up_unsafe")))
    rig.submit(Plan(id="model", rounds=0, gated=True))
    until(lambda: executed(rig, "tools.call") > 2, "a call's message comes again, and is taken")
    until(lambda: executed(rig, "turns.dispatch") > 2, "a turn's message comes again, and is taken")
    (rig.room / "gate").touch()
    rig.wait_until_done()

    assert {turn["disposition"] for turn in rig.rows("turns")} == {"answered"}
    assert len(rig.facts(what="tool", phase="begin")) == 2
    assert len(rig.facts(what="model")) == 3
    check_rig(rig)
