"""What `chordage doctor` says of rows that should be moving: each fault is made, on both databases."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from sqlalchemy import insert, text, update

from chordage.orchestrator import stages
from chordage.orchestrator.core.groups import ALL_QUEUES, Group
from chordage.orchestrator.core.presence import Process
from chordage.orchestrator.store import diagnosis, schema
from chordage.workers.doctor import fleet, services, work
from support.examining import context_of, is_error, only, real_now
from support.fakes import rounds_of
from support.pulse_room import PulseRoom
from support.questions import asks_once
from support.world import World

CHORE = '---\nevery: "1d"\n---\nWater the plants.\n'
TARGET = {"url": "https://example.com/replies"}


@pytest.fixture
def context(world, tmp_path):
    return context_of(world.store, tmp_path, now=world.runtime.now)


def change(world, statement):
    with world.store.write() as tx:
        tx.execute(statement)


def until_a_call_waits(world):
    world.models.script = rounds_of(1)
    world.submit()
    while not world.rows("calls"):
        world.deliver(world.pending.pop(0))


# healthy


def test_rows_at_work_and_done_are_no_finding(world: World, context) -> None:
    world.submit(thread="done")
    world.run_dry()
    until_a_call_waits(world)

    for look in (work.look_at_work, work.look_at_deliveries, work.look_at_sources, work.look_at_keys):
        assert look(context).symptoms == ()
    for look in (services.look_at_schema, services.look_at_connections):
        assert look(context).symptoms == ()


def test_what_a_sweep_is_about_to_move_is_no_finding(world: World, context) -> None:
    until_a_call_waits(world)
    world.clock.pass_by(world.runtime.leases.seconds + 5)

    assert work.look_at_work(context).symptoms == ()


# work


def test_run_whose_lease_ran_out_is_named_with_the_worker_that_would_sweep(world: World, context) -> None:
    world.submit()
    world.deliver(world.pending.pop())
    world.clock.pass_by(600)

    symptom = only(work.look_at_work(context))

    run = world.row("runs")
    assert (symptom.code, symptom.where, symptom.since) == ("lease_expired", "runs", run["lease_until"])
    assert symptom.text == f"1 run with a lease that ran out, and no sweep takes them over (first {run['id']})."
    assert symptom.remedy == "chordage worker --queues system"
    assert is_error(symptom)


def test_call_whose_lease_ran_out_is_named(world: World, context) -> None:
    until_a_call_waits(world)
    change(world, update(schema.runs).values(lease_until=world.clock() + timedelta(hours=1)))
    world.clock.pass_by(600)

    symptom = only(work.look_at_work(context))

    assert (symptom.code, symptom.where) == ("lease_expired", "calls")
    assert symptom.text.startswith("1 call with a lease that ran out")


def test_turn_that_could_start_and_does_not_is_named(world: World, context) -> None:
    turn = world.submit()
    world.clock.pass_by(60)

    symptom = only(work.look_at_work(context))

    assert (symptom.code, symptom.where) == ("turn_not_started", "group chat")
    assert symptom.text == (
        f"1 turn of group chat could have started, and did not although its budget is free (first {turn})."
    )
    assert symptom.remedy == "chordage worker --queues chat"
    assert symptom.since == world.row("turns")["due_at"]


def test_turn_of_a_paused_group_is_no_finding(world: World, context) -> None:
    world.submit()
    change(world, update(schema.groups).where(schema.groups.c.name == "chat").values(budget=0))
    world.clock.pass_by(60)

    assert work.look_at_work(context).symptoms == ()


def test_queued_turn_past_its_deadline_is_named(world: World, context) -> None:
    turn = world.submit(deadline=world.clock() + timedelta(seconds=5))
    world.clock.pass_by(60)

    symptom = only(work.look_at_work(context))

    assert symptom.code == "deadline_passed"
    assert symptom.text == f"1 queued turn with a deadline that passed, and no sweep drops them (first {turn})."


def test_question_that_expired_and_was_not_closed_is_named(world: World, context) -> None:
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()
    change(world, update(schema.suspensions).values(expires_at=world.clock()))
    world.clock.pass_by(60)

    symptom = only(work.look_at_work(context))

    assert symptom.code == "question_expired"
    assert symptom.text.startswith("1 question with a time that is over, and no sweep closes them")


def test_settled_round_that_no_worker_commits_is_named_before_its_lease_ends(world: World, context) -> None:
    until_a_call_waits(world)
    now = world.clock()
    run = world.row("runs")["id"]
    change(
        world, update(schema.calls).values(status="succeeded", ended_at=now, started_at=now, content="3", worker="w")
    )
    world.clock.pass_by(20)
    leases = world.runtime.leases

    with world.store.read() as tx:
        late = diagnosis.untaken_runs(
            tx, list(Group), settled_before=now + timedelta(seconds=5), leased_before=leases.until(now) + timedelta(1)
        )

    assert late.ids == (run,)


def test_poisoned_run_of_today_is_a_warning_and_one_of_last_week_is_none(world: World, context) -> None:
    world.submit()
    world.run_dry()
    run = world.row("runs")["id"]
    change(world, update(schema.turns).values(disposition="failed"))
    change(world, update(schema.runs).values(reason="failed", code="poison"))

    symptom = only(work.look_at_work(context))
    world.clock.pass_by(7 * 86_400)

    assert (symptom.code, symptom.remedy) == ("poison_run", f"chordage show {run}")
    assert "1 run failed in the last 24 hours as poison" in symptom.text
    assert not is_error(symptom)
    assert work.look_at_work(context).symptoms == ()


# deliveries, the bus, sources


def test_dead_and_late_replies_are_named(world: World, context) -> None:
    for thread in ("a", "b"):
        world.submit(thread=thread, reply_target=TARGET)
    world.run_dry()
    now = world.clock()
    dead, late = sorted(row["id"] for row in world.rows("outbox"))
    change(world, update(schema.outbox).values(status="pending", sent_at=None, next_at=now, claim_token=None))
    change(world, update(schema.outbox).where(schema.outbox.c.id == dead).values(status="dead", dead_at=now))
    world.clock.pass_by(300)

    of_dead, of_late = work.look_at_deliveries(context).symptoms

    assert (of_dead.code, of_dead.since, of_dead.remedy) == ("dead_delivery", now, "chordage deliveries --dead")
    assert of_dead.text == f"1 reply was given up (first {dead})."
    assert (of_late.code, of_late.text) == ("delivery_late", "1 reply is due, and no worker sends them.")
    assert of_late.remedy == "chordage worker --queues delivery,system"
    assert late != dead


def test_bus_that_is_behind_and_one_that_is_stuck_are_named(world: World, context, tmp_path) -> None:
    world.submit()
    world.run_dry()
    with_bus = context_of(world.store, tmp_path, now=world.runtime.now, redis=object())
    world.clock.pass_by(90)

    behind = only(work.look_at_bus(with_bus))
    error = {"failures": 3, "error": "Redis says OOM", "error_at": world.clock()}
    names = {"name": "bus", "bus": "b", "generation": 0, "position": 0, **error}
    change(world, insert(schema.projection).values(**names))
    stuck = only(work.look_at_bus(with_bus))

    assert (behind.code, behind.text) == (
        "bus_behind", "the bus is 90 s behind the database, and no process writes it: replies wait for it.",
    )  # fmt: skip
    assert (stuck.code, stuck.since) == ("bus_stuck", world.clock())
    assert stuck.text == "the bus does not advance, after 3 failures: Redis says OOM."
    assert stuck.remedy == "chordage bus status"
    assert work.look_at_bus(context).symptoms == ()  # without Redis there is none


def test_export_of_traces_that_is_stuck_or_not_carried_out_is_named(world: World, tmp_path) -> None:
    collector = "http://127.0.0.1:4318"
    with_traces = context_of(world.store, tmp_path, now=world.runtime.now, otlp_endpoint=collector)
    world.submit()
    error = {"error": "status 503", "error_at": world.clock(), "failures": 4}
    names = {"name": "traces", "bus": "", "generation": 0, "position": 0, **error}
    change(world, insert(schema.projection).values(names))
    world.clock.pass_by(200)
    assert work.look_at_traces(with_traces).symptoms == ()  # one attempt more may succeed

    world.clock.pass_by(200)
    stuck = only(work.look_at_traces(with_traces))
    change(world, update(schema.projection).values(error=None))
    behind = only(work.look_at_traces(with_traces))

    assert (stuck.code, stuck.where, stuck.remedy) == ("traces_stuck", collector, f"curl -i {collector}")
    assert stuck.text.startswith("no spans have been sent for 400 s, after 4 failures: status 503. They wait")
    assert (behind.code, behind.remedy) == ("traces_behind", "chordage worker --queues system")
    assert work.look_at_traces(context_of(world.store, tmp_path, now=world.runtime.now)).symptoms == ()


def test_scheduled_work_that_no_tick_looks_at_means_that_no_beat_is_seen(world: World, context, tmp_path) -> None:
    room = PulseRoom(world, tmp_path)
    room.file("chores/plants.md", CHORE)
    room.tick_and_finish()
    world.clock.pass_by(60)
    unrecorded = only(work.look_at_sources(context))
    room.tick()
    recorded = work.look_at_sources(context).symptoms
    world.clock.pass_by(2 * 86_400)

    symptom = only(work.look_at_sources(context))

    assert (symptom.code, symptom.where, symptom.remedy) == ("beat_not_seen", "beat", "chordage beat")
    assert "scheduled work was not looked at (1, first chore:plants): no beat runs" in symptom.text
    assert (unrecorded.code, recorded) == ("beat_not_seen", ())
    assert (
        work.look_at_sources(context_of(world.store, tmp_path, now=world.runtime.now, loops=("poll",))).symptoms == ()
    )


def test_channel_that_fails_is_a_warning_without_what_its_error_may_quote(world: World, context) -> None:
    row = {"name": "mail", "revision": 1, "failures": 4, "error": "login refused", "looked_at": world.clock()}
    counts = dict.fromkeys(("taken", "doubled", "refused", "passed_over"), 0)
    change(world, insert(schema.polls).values(**row, **counts))

    symptom = only(work.look_at_sources(context))

    assert (symptom.code, symptom.where, symptom.remedy) == ("channel_failing", "mail", "chordage why channel:mail")
    assert symptom.text == "the channel mail failed 4 times in a row."


# keys


def test_key_that_expires_within_days_is_a_warning_and_a_server_without_a_key_an_error(
    world, context, tmp_path
) -> None:
    expires = world.clock() + timedelta(days=3)
    row = {
        "id": "abcdefghijkl", "hash": "0" * 64, "name": "crm", "scopes": ["read"], "created_by": "cli", "act_as": 0,
        "created_at": world.clock(), "expires_at": expires,
    }  # fmt: skip
    change(world, insert(schema.caller_keys).values(**row))
    open_server = context_of(world.store, tmp_path, now=world.runtime.now, keyless="none")

    symptom = only(work.look_at_keys(context))
    world.clock.pass_by(4 * 86_400)
    none = only(work.look_at_keys(open_server))

    assert (symptom.code, symptom.where) == ("key_expires", "abcdefghijkl")
    assert symptom.text == "the key abcdefghijkl (crm) expires at 2026-01-04 00:00 UTC."
    assert symptom.remedy == "chordage keys create crm"
    assert work.look_at_keys(context).symptoms == ()  # it is too late for a warning
    assert (none.code, is_error(none)) == ("no_key", True)
    assert "wants a key with every request" in none.text


# processes


def show(world, name="far/1:7", *, version=None, queues=ALL_QUEUES, after=0.0):
    """A process that shows itself, by a clock that is `after` ahead of ours."""
    world.clock.pass_by(after)
    process = Process(id=name, machine="far", pid=7, born="then", queues=queues, version=version)
    with world.as_another_process():
        stages.show_presence(world.runtime, [process])
    world.clock.pass_by(-after)


@pytest.fixture
def by_world(world, tmp_path):
    """The time of the world is that of the database."""
    world.clock.now = real_now()
    return context_of(world.store, tmp_path)


def test_workers_of_this_version_that_serve_all_queues_are_no_finding(world: World, by_world) -> None:
    show(world)

    assert fleet.look_at_processes(by_world).symptoms == ()


def test_fleet_without_processes_is_an_error_since_the_last_was_seen(world: World, by_world) -> None:
    show(world)
    seen = world.clock()
    with world.as_another_process():
        stages.end_presence(world.runtime, ["far/1:7"])

    symptom = only(fleet.look_at_processes(by_world))

    assert (symptom.code, symptom.since, symptom.remedy) == ("no_worker", seen, "chordage start")
    assert symptom.text == "no process carries out work: what comes in is stored, and waits."


def test_queue_that_every_fleet_needs_and_nothing_serves_is_an_error(world: World, by_world) -> None:
    show(world, queues=tuple(queue for queue in ALL_QUEUES if queue != "system"))

    symptom = only(fleet.look_at_processes(by_world))

    assert (symptom.code, symptom.where) == ("queue_without_worker", "system")
    assert symptom.text == "no worker takes messages from the queue system."
    assert symptom.remedy == "chordage worker --queues system"


def test_worker_of_another_version_is_a_warning(world: World, by_world) -> None:
    show(world)
    show(world, "far/2:8", version="0.0.9")

    symptom = only(fleet.look_at_processes(by_world))

    assert (symptom.code, symptom.where) == ("other_version", "far/2:8")
    assert "far/2:8 runs Chordage 0.0.9, and this is " in symptom.text


def test_worker_whose_clock_is_ahead_is_named_with_the_seconds(world: World, by_world) -> None:
    show(world)
    show(world, "far/2:8", after=90)

    symptom = only(fleet.look_at_processes(by_world))

    assert (symptom.code, symptom.where, symptom.remedy) == ("clock_skew", "far/2:8", "timedatectl status")
    assert symptom.text == "the clock of far/2:8 is 90 s ahead of that of the database."


def test_worker_whose_clock_is_behind_is_told_from_one_that_is_silent(world: World, by_world, monkeypatch) -> None:
    show(world, "far/1:7", after=-40)
    show(world, "far/2:8", after=-40)
    monkeypatch.setattr(fleet.time, "sleep", lambda _seconds: show(world, "far/2:8", after=-39))

    skewed, silent = sorted(fleet.look_at_processes(by_world).symptoms, key=lambda found: found.code)[:2]

    assert (skewed.code, skewed.where) == ("clock_skew", "far/2:8")
    assert re.fullmatch(r"the clock of far/2:8 is (39|4\d) s behind that of the database\.", skewed.text)
    assert (silent.code, silent.where) == ("process_silent", "far/1:7")
    assert re.match(r"1 process has not shown a sign of life for 4\d s", silent.text)


# the database


def test_server_whose_commits_a_crash_may_undo_is_an_error(world: World, context) -> None:
    """The PostgreSQL of the tests is one: that makes them quick."""
    answer = services.look_at_database(context)

    if not world.store.is_postgres:
        assert (answer.summary.partition(" ")[0], answer.symptoms) == ("SQLite", ())
        return
    symptom = only(answer)
    assert answer.summary.startswith("PostgreSQL ")
    assert (symptom.code, is_error(symptom)) == ("unsafe_commits", True)
    assert symptom.text.startswith("off: fsync, full_page_writes, synchronous_commit. A crash of the server may lose")
    assert symptom.remedy.startswith("psql -c 'ALTER SYSTEM RESET fsync' -c 'ALTER SYSTEM RESET full_page_writes' -c")


def test_answers_may_not_be_given_before_they_are_on_the_disk() -> None:
    (symptom,) = services.server_symptoms("PostgreSQL 17.2", unsafe=["synchronous_commit"])

    assert (symptom.code, symptom.text.partition(".")[0]) == ("unsafe_commits", "off: synchronous_commit")


def test_missing_index_is_named_with_the_statements_that_make_it(world: World, context) -> None:
    change(world, text("DROP INDEX ix_runs_lease"))

    symptom = only(services.look_at_schema(context))
    assert (symptom.code, symptom.where, is_error(symptom)) == ("missing_index", "ix_runs_lease", True)
    assert "the index ix_runs_lease is missing, or cannot be used" in symptom.text

    with world.store.read() as tx:  # each by itself, as psql sends them
        for statement in filter(None, symptom.remedy.split(";")):
            tx.execute(text(statement))
    assert services.look_at_schema(context).symptoms == ()


def test_schema_of_an_earlier_pre_release_is_an_error(world: World, context) -> None:
    change(world, text("UPDATE chordage_version SET checksum = 'other'"))
    try:
        symptom = only(services.look_at_schema(context))
    finally:
        from chordage.orchestrator.store import schema_version

        right = schema_version.checksum("postgresql" if world.store.is_postgres else "sqlite")
        change(world, text(f"UPDATE chordage_version SET checksum = '{right}'"))

    assert (symptom.code, symptom.remedy) == ("wrong_schema", "chordage migrate")
    assert "made by an earlier pre-release" in symptom.text
