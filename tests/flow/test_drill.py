"""What a drill judges by: the canaries' rows, with every kind of violation planted; and who may send canaries."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import delete, insert, select, update

from chordage.config.settings import load
from chordage.orchestrator import stages
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.drill import (
    AGENT_NAME,
    SPACE,
    DrillResult,
    DrillStep,
    ViolationKind,
    step_report,
    violations,
)
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, NotFound, Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.presence import HeldWork, Process
from chordage.orchestrator.gateways import canary
from chordage.orchestrator.gateways.tools.context import Context
from chordage.orchestrator.store import drills, processes, schema
from chordage.tasks.courier import Courier
from chordage.workers import local
from chordage.workers.app import make_app
from chordage.workers.bootstrap import runtime_from
from chordage.workers.drill import game_day
from chordage.workers.presence import machine

DEAD = "host/dead:1"


def request_for(agent: str | None, space: str | None, thread: str = "1-canary-0") -> TurnRequest:
    text = json.dumps({"seconds": 0})
    message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id=thread, text=text)
    return TurnRequest(message=message, agent=agent, group=Group.TASK, space=space, source="drill")


class Drilled:
    """Two canaries on one thread that were carried out, and their rows."""

    def __init__(self, url, room) -> None:
        self.settings, self.url = load(room=room, database_url=url), url
        self.rt = runtime_from(self.settings, with_redis=False)
        self.turns = [stages.admit(self.rt, request_for(AGENT_NAME, SPACE))[0].turn_id for _ in range(2)]
        for turn_id in self.turns:
            local.complete(self.rt, turn_id, on_wait=lambda _turn: None)

    def change(self, *statements) -> None:
        with self.rt.store.write() as tx:
            for statement in statements:
                tx.execute(statement)

    def rows(self):
        with self.rt.store.read() as tx:
            return drills.rows(tx, [f"{SPACE}:1-canary-0"])

    def call(self, tool: str):
        with self.rt.store.read() as tx:
            wanted = schema.calls.c.tool == tool, schema.calls.c.thread_id == f"{SPACE}:1-canary-0"
            return tx.execute(select(schema.calls).where(*wanted).order_by(schema.calls.c.id).limit(1)).one()

    def run_again(self, tool: str) -> None:
        """A second execution, as if no guard had kept it out."""
        call = self.call(tool)
        values = {"run_id": call.run_id, "call_id": call.id, "worker": "another", "at": datetime.now(UTC)}
        self.change(insert(schema.executions).values(**values))

    def kinds(self, **more) -> list[ViolationKind]:
        return [violation.kind for violation in violations(self.turns, self.rows(), **more)]


@pytest.fixture
def drilled(database_url, tmp_path):
    drilled = Drilled(database_url, tmp_path)
    yield drilled
    drilled.rt.store.close()


@pytest.fixture
def planted(migrated_database_url, tmp_path):
    drilled = Drilled(migrated_database_url("sqlite"), tmp_path)
    assert drilled.kinds() == []
    yield drilled
    drilled.rt.store.close()


def test_canaries_need_no_file_and_leave_a_row_for_each_tool_that_ran(drilled):
    assert drilled.kinds() == []
    rows = drilled.rows()
    assert sorted((call.tool, call.executions) for call in rows.calls) == sorted(
        [("canary_pure", 1), ("canary_idempotent", 1), ("canary_unsafe", 1)] * 2
    )
    assert [turn.disposition for turn in rows.turns] == ["answered", "answered"]


def test_canaries_are_erased_with_their_rows(drilled):
    with drilled.rt.store.read() as tx:
        threads = drills.threads_left(tx)
    stages.erase(drilled.rt, stages.ErasureSubject(threads=tuple(threads), name="drill:"), by=CLI)
    with drilled.rt.store.read() as tx:
        tables = (schema.turns, schema.calls, schema.executions, schema.journal, schema.threads)
        assert [tx.execute(select(table)).all() for table in tables] == [[]] * 5


# Violations.


def test_turn_that_is_gone_is_lost(planted):
    planted.change(delete(schema.turns).where(schema.turns.c.id == planted.turns[1]))

    assert planted.kinds() == [ViolationKind.LOST, ViolationKind.INCONSISTENT]


def test_turn_that_was_not_answered_is_seen(planted):
    of_turn = update(schema.turns).where(schema.turns.c.id == planted.turns[0])
    planted.change(of_turn.values(disposition="failed"))

    assert planted.kinds() == [ViolationKind.NOT_ANSWERED]


def test_open_turn_was_not_answered_and_is_inconsistent(planted):
    of_turn = update(schema.turns).where(schema.turns.c.id == planted.turns[0])
    planted.change(of_turn.values(status="active", disposition=None, done_at=None))

    assert planted.kinds() == [ViolationKind.NOT_ANSWERED, ViolationKind.INCONSISTENT]


def test_unsafe_call_that_ran_twice_is_seen_whoever_died(planted):
    planted.run_again("canary_unsafe")

    assert planted.kinds() == planted.kinds(killed={"another"}) == [ViolationKind.UNSAFE_TWICE]


@pytest.mark.parametrize("tool", ["canary_pure", "canary_idempotent"])
def test_call_that_may_run_again_is_counted_and_no_violation(planted, tool):
    planted.run_again(tool)

    assert planted.kinds() == []
    report = step_report(DrillStep.KILL, 30.0, planted.rows(), recovered={}, admitted=planted.turns)
    assert (report.result, report.repeated) == (DrillResult.HELD, 1)


def test_result_of_a_tool_that_never_ran_is_seen(planted):
    of_call = schema.executions.c.call_id == planted.call("canary_idempotent").id
    planted.change(delete(schema.executions).where(of_call))

    assert planted.kinds() == [ViolationKind.NOT_EXECUTED]


@pytest.mark.parametrize(
    ("tool", "killed", "kinds"),
    [
        ("canary_unsafe", {DEAD}, []),
        ("canary_unsafe", set(), [ViolationKind.UNKNOWN_WITHOUT_DEATH]),
        ("canary_idempotent", {DEAD}, [ViolationKind.UNKNOWN_WITHOUT_DEATH]),
    ],
)
def test_outcome_is_unknown_only_of_an_unsafe_call_whose_worker_was_killed(planted, tool, killed, kinds):
    of_call = update(schema.calls).where(schema.calls.c.id == planted.call(tool).id)
    planted.change(of_call.values(status="failed", code="outcome_unknown", worker=DEAD))

    assert planted.kinds(killed=killed) == kinds


def test_call_that_failed_otherwise_is_seen(planted):
    of_call = update(schema.calls).where(schema.calls.c.id == planted.call("canary_pure").id)
    planted.change(of_call.values(status="failed", code="tool_error"))

    assert planted.kinds() == [ViolationKind.CALL_FAILED]


def test_question_about_a_canary_is_seen(planted):
    rows = replace(planted.rows(), questions=1)

    assert [violation.kind for violation in violations(planted.turns, rows)] == [ViolationKind.ASKED]


def test_turns_of_a_thread_out_of_their_order_are_seen(planted):
    first = update(schema.turns).where(schema.turns.c.id == planted.turns[0])
    planted.change(first.values(arrival=99))

    assert planted.kinds() == [ViolationKind.INCONSISTENT]


def test_turn_behind_its_bound_is_late(planted):
    times = dict(zip(planted.turns, (3.0, 31.0), strict=True))

    report = step_report(DrillStep.KILL, 30.0, planted.rows(), recovered=times, admitted=planted.turns)

    assert [violation.kind for violation in report.violations] == [ViolationKind.LATE]
    assert (report.result, report.median, report.worst) == (DrillResult.VIOLATED, 17.0, 31.0)


# Who may send canaries, and which worker may be killed.


@pytest.mark.parametrize(("agent", "space"), [(AGENT_NAME, None), (AGENT_NAME, "api@shop")])
def test_agent_of_the_drill_takes_no_other_messages(planted, agent, space):
    with pytest.raises(InvalidMessage, match="takes messages of `chordage drill` alone"):
        stages.admit(planted.rt, request_for(agent, space))


def test_no_agent_of_a_room_may_have_the_name_of_the_drill(tmp_path):
    (tmp_path / "agent.toml").write_text(f'name = "{AGENT_NAME}"\nmodel = "scripted:script.yaml"\n')

    rt = runtime_from(load(room=tmp_path), with_redis=False)

    assert "is the agent of `chordage drill`: give another name" in str(rt.agents.faults[0])


def test_tools_of_canaries_refuse_every_other_call():
    with pytest.raises(NotFound, match="for the canaries of `chordage drill` alone"):
        canary.canary_unsafe(0.0, Context())


def worker(*, drill: bool = True, on: str | None = None, queues=("task", "task.tools")) -> HeldWork:
    return HeldWork(
        id="host/a:7", machine=on or machine(), pid=7, born="then", seen_at=datetime.now(UTC), gone_at=None, runs=0,
        calls=0, queues=queues, drill=drill,
    )  # fmt: skip


def test_worker_is_killed_only_where_it_allows_that_and_on_its_own_machine():
    assert game_day.target_of("7", [worker()]).id == game_day.target_of("host/a:7", [worker()]).id == "host/a:7"
    with pytest.raises(NotFound, match="there is no single worker '8'"):
        game_day.target_of("8", [worker()])
    with pytest.raises(Conflict, match="start it with CHORDAGE_DRILL=on"):
        game_day.target_of("7", [worker(drill=False)])
    with pytest.raises(Conflict, match="call `chordage drill --worker` there"):
        game_day.target_of("7", [worker(on="another")])


def test_fleet_that_cannot_run_canaries_is_refused(planted):
    game_day.check_fleet(planted.rt, Group.TASK, [worker()])
    with pytest.raises(Unavailable, match="queue 'task.tools'"):
        game_day.check_fleet(planted.rt, Group.TASK, [worker(queues=("task",))])
    with pytest.raises(Unavailable, match="no free place"):
        game_day.check_fleet(replace(planted.rt, budgets={Group.TASK: 0}), Group.TASK, [worker()])


def test_presence_says_whether_a_drill_may_kill_the_process(planted):
    allows = Process(id="host/b:8", machine="m", pid=8, born="then", drill=True)
    stages.show_presence(planted.rt, [allows, replace(allows, id="host/c:9", drill=False)])

    with planted.rt.store.read() as tx:
        assert {one.id: one.drill for one in processes.with_their_work(tx)} == {"host/b:8": True, "host/c:9": False}


def test_a_kill_is_bounded_by_lease_sweep_and_presence(planted):
    times = game_day.times_of(planted.settings, 10.0)

    assert times.bound(DrillStep.KILL, 2) == 30 + 10 + 2 * 2 + 7 + 2 * 3 + 5
    assert times.skew == planted.settings.lease / 3


@pytest.fixture
def day(planted):
    """A drill whose Redis is away."""
    settings = load(room=planted.settings.room, database_url=planted.url, redis_url="redis://127.0.0.1:1/0")
    times = game_day.times_of(settings, 1.0)
    plan = game_day.DrillPlan(steps=(DrillStep.REDIS,), group=Group.TASK, times=times)
    return game_day.GameDay(settings, planted.rt, Courier(make_app(settings)), plan)


def test_step_that_cannot_be_carried_out_says_why_and_sends_nothing(day):
    (step,) = day.run(lambda _step: None)

    assert (step.result, step.turns, step.violations) == (DrillResult.NOT_RUN, 0, ())
    assert "Connection refused" in step.notes[0]
    assert day.threads_to_erase() == [f"{SPACE}:1-canary-0"]  # of a drill long ago


def test_drill_is_on_record_before_it_breaks_anything(day, planted):
    next(day.run(lambda _step: None))

    with planted.rt.store.read() as tx:
        entry = tx.execute(select(schema.caller_audit)).one()
    assert (entry.actor, entry.action, entry.about) == ("cli", "drilled", day.id)
    assert entry.detail == {"steps": ["redis"], "worker": None}


def test_canaries_of_a_drill_that_may_still_run_are_left_to_it(day, planted):
    recent = f"{datetime.now(UTC).strftime(game_day.STAMP)}-abcdef-kill-0"
    stages.admit(planted.rt, request_for(AGENT_NAME, SPACE, recent))

    assert day.threads_to_erase() == [f"{SPACE}:1-canary-0"]


def test_kill_is_refused_where_one_death_ends_a_run(planted):
    once = planted.settings.model_copy(update={"poison_after": 1})

    game_day.check_plan(once, [DrillStep.CANARY])
    with pytest.raises(Conflict, match="CHORDAGE_POISON_AFTER is 1"):
        game_day.check_plan(once, [DrillStep.CANARY, DrillStep.KILL])
