"""Which version of its agent a run began with and each reply was asked with; and what is written about versions."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import insert, select

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.agent import AgentSpec, Limits, ToolMode, WhenChanged
from chordage.orchestrator.core.agent_versions import AgentPin, AgentVersion
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.errors import WrongKey
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.presence import Process
from chordage.orchestrator.core.pruning import limits_for
from chordage.orchestrator.run import limits
from chordage.orchestrator.store import agent_versions, schema
from chordage.workers.doctor import fleet
from support.examining import context_of
from support.fakes import rounds_of, spoken
from support.invariants import check_all
from support.questions import approval, approve, asks_once
from support.world import Died, World

OLD, NEW = "a" * 32, "b" * 32
FIRST = AgentSpec(name="ada", model="fake", instructions="Be kind.", digest=OLD)
SECOND = replace(FIRST, instructions="Be brief.", digest=NEW)


@pytest.fixture(autouse=True)
def versioned(world: World) -> None:
    world.agents.agents["ada"] = FIRST


def edit(world: World, agent: AgentSpec = SECOND) -> None:
    world.agents.agents["ada"] = agent


def digests(world: World, turn: str) -> tuple[str | None, list[str | None]]:
    """With which its run began, and with which each reply was asked for."""
    run = views.run(world.store, world.row("turns", id=turn)["run_id"])
    return run.agent_digest, [step.agent_digest for step in run.steps if step.kind == "inference"]


def recorded(world: World) -> list[str]:
    return sorted(row["digest"] for row in world.rows("agent_versions"))


def show(world: World, name: str, digest: str) -> None:
    process = Process(id=name, machine="m", pid=1, born="b", agents={"ada": digest})
    with world.as_another_process():
        stages.show_presence(world.runtime, [process])


def test_a_run_and_its_replies_name_the_version(world):
    world.models.script = rounds_of(1)

    turn = world.submit()
    world.run_dry()

    assert digests(world, turn) == (OLD, [OLD, OLD])
    assert recorded(world) == [OLD]
    check_all(world.store)


@pytest.mark.parametrize("here", [False, True])
def test_however_it_starts(world, here):
    turn = world.submit(here=here)
    world.run_dry()

    assert digests(world, turn)[0] == OLD


def test_a_run_that_starts_in_the_place_of_another_names_the_version_too(world):
    world.budgets[Group.CHAT] = 1
    world.models.script = lambda prompt: spoken("ok")
    turns = [world.submit(thread=None) for _ in range(3)]

    world.run_dry()

    assert [digests(world, turn) for turn in turns] == [(OLD, [OLD])] * 3


def test_a_file_that_changed_just_before_such_a_start_is_not_missed(world):
    """The statement gets the digests that the process knew, and the agent is read after it."""
    world.budgets[Group.CHAT] = 1
    world.models.script = lambda prompt: spoken("ok")
    first, second = (world.submit(thread=None) for _ in range(2))
    world.models.before_reply = lambda _prompt: edit(world)

    world.run_dry()

    assert {digests(world, first)[0], digests(world, second)[0]} == {OLD, NEW}


def wait_for_a_person(world: World, agent: AgentSpec = FIRST) -> str:
    """A run waits; then the file of its agent is changed."""
    edit(world, agent)
    world.models.script, world.tools.asks = rounds_of(1), asks_once(0)
    turn = world.submit()
    world.run_dry()
    edit(world)
    return turn


def test_a_run_ends_with_the_version_it_began_with_and_new_ones_begin_with_the_newest(world):
    """Under the newest its one round would be one too many."""
    first = AgentSpec(
        name="ada", model="fake:old", instructions="Be kind.", tools=("m:old",), digest=OLD,
        limits=Limits(max_rounds=7, timeout=900), tool_mode=ToolMode.PARALLEL_BATCH,
    )  # fmt: skip
    turn = wait_for_a_person(world, first)
    edit(world, replace(SECOND, limits=Limits(max_rounds=1)))

    approve(world, world.inbox()[0])
    other = world.submit(thread=None)
    world.run_dry()

    assert digests(world, turn) == (OLD, [OLD] * 2)
    used = [agent for agent in world.models.agents if agent.digest == OLD]
    assert used == [first] * 2
    assert [prompt.system for prompt in world.models.prompts[:2]] == ["Be kind."] * 2
    assert views.turn(world.store, turn).disposition == "answered"
    assert world.row("runs", turn_id=turn)["reason"] == "natural_end"
    assert digests(world, other)[0] == NEW
    assert world.models.prompts[-1].system == "Be brief."


def test_a_file_that_changes_while_a_run_works_does_not_change_the_run(world):
    world.models.script = rounds_of(1)
    world.tools.before = lambda _order: edit(world)

    turn = world.submit()
    world.run_dry()

    assert digests(world, turn) == (OLD, [OLD, OLD])
    assert recorded(world) == [OLD]


def test_a_run_follows_a_file_that_says_so(world):
    turn = wait_for_a_person(world)
    edit(world, replace(SECOND, when_changed=WhenChanged.FOLLOW))

    approve(world, world.inbox()[0])

    began, replies = digests(world, turn)
    assert (began, replies[0], replies[-1]) == (OLD, OLD, NEW)
    assert world.models.prompts[-1].system == "Be brief."


def test_a_stored_version_is_read_once_in_each_process(world):
    wait_for_a_person(world)

    def statements() -> int:
        before = world.statements
        world.runtime.agent_of(AgentPin("ada", OLD))
        return world.statements - before

    world.runtime.pinned_agents.clear()
    assert [statements(), statements()] == [1, 0]
    edit(world, replace(SECOND, instructions="Be silent."))  # what is hidden may have another value now
    assert [statements(), statements()] == [1, 0]


def test_a_version_that_is_not_on_record_gives_way_to_the_newest(world):
    turn = wait_for_a_person(world)
    with world.store.write() as tx:
        tx.execute(schema.agent_versions.delete())
    world.runtime.pinned_agents.clear()

    approve(world, world.inbox()[0])

    began, replies = digests(world, turn)
    assert (began, replies[-1]) == (OLD, NEW)
    assert views.turn(world.store, turn).disposition == "answered"


def test_a_call_waits_while_the_version_of_its_run_cannot_be_read(world, monkeypatch):
    """A person has approved it, and it fails for no reason of ours."""
    wait_for_a_person(world)
    world.decide(approval(world.inbox()[0]))
    while not world.rows("calls", status="resuming"):
        world.deliver(world.pending.pop(0))
    world.runtime.pinned_agents.clear()  # as in a worker of tools
    read, problems = agent_versions.load, [WrongKey("no such key")]
    monkeypatch.setattr(agent_versions, "load", lambda *of: _raise(problems.pop()) if problems else read(*of))

    with pytest.raises(WrongKey):
        world.run_dry()
    assert [(call["status"], call["code"]) for call in world.rows("calls")] == [("resuming", None)]
    world.recover()

    assert [(call["status"], call["code"]) for call in world.rows("calls")] == [("succeeded", None)]


def _raise(error: Exception) -> None:
    raise error


def test_open_runs_adopt_the_newest_version_and_it_is_on_record_who_did_it(world):
    turn = wait_for_a_person(world)
    untouched = world.submit(thread=None)

    with world.as_another_process():
        assert stages.adopt_version(world.runtime, "ada", by=CLI) == {OLD: 1}
        assert stages.adopt_version(world.runtime, "ada", by=CLI) == {}
    approve(world, world.inbox()[0])
    world.run_dry()

    began, replies = digests(world, turn)
    assert (began, replies[0], replies[-1]) == (NEW, OLD, NEW)
    assert digests(world, untouched)[0] == NEW
    (entry,) = [row for row in world.rows("caller_audit") if row["action"] == "agent_adopted"]
    assert (entry["actor"], entry["about"]) == ("cli", "ada")
    assert entry["detail"] == {"to": NEW, "runs": 1, "from": [OLD]}


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_more_open_runs_adopt_a_version_than_a_statement_takes_values(world, monkeypatch):
    wait_for_a_person(world)
    (run,) = world.rows("runs")
    names = [f"r{number}" for number in range(40)]
    monkeypatch.setattr(agent_versions, "AT_ONCE", 10)
    with world.store.write() as tx:
        tx.execute(insert(schema.runs), [run | {"id": name, "thread_id": name} for name in names])
        tx.connection.dbapi_connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 30)

        assert agent_versions.adopt(tx, "ada", NEW) == {OLD: len(names) + 1}
        assert set(tx.execute(select(schema.runs.c.agent_digest)).scalars()) == {NEW}


def test_a_run_out_of_time_by_its_own_version_is_ended_by_the_sweep(world):
    """The newest has no limit."""
    edit(world, replace(FIRST, limits=Limits(timeout=60)))
    turn = world.submit()
    while not world.rows("runs", turn_id=turn, status="running"):
        world.deliver(world.pending.pop(0))
    with world.as_another_process():
        stages.note_versions(world.runtime)
    world.pending.clear()
    edit(world)
    world.agents.get("ada")  # as a worker does that looks what there is
    world.clock.pass_by(3600)

    with world.as_another_process():
        limits.sweep(world.runtime)

    assert world.row("runs", turn_id=turn)["code"] == "timeout"


def test_a_known_version_costs_no_statement(world):
    def statements(digest: str) -> int:
        edit(world, replace(FIRST, digest=digest))
        before = world.statements
        world.submit(thread=None)
        world.run_dry()
        return world.statements - before

    statements(OLD)
    known, without = statements(OLD), statements("")

    assert known == without


def test_the_row_of_a_version_is_written_once(world):
    world.submit(thread=None)
    world.run_dry()
    first = world.rows("agent_versions")
    world.clock.pass_by(60)

    other = replace(world.runtime, noted_versions=set(), worker="another")
    with world.as_another_process():
        stages.note_versions(other)

    assert world.rows("agent_versions") == first
    assert other.noted_versions == {OLD}


@pytest.mark.parametrize("commit", range(1, 9))
@pytest.mark.parametrize("before", [True, False])
def test_a_death_at_any_commit_leaves_the_version_on_record(world, commit, before):
    """Its file is changed when the first call runs."""
    world.models.script = rounds_of(1)
    world.tools.before = lambda _order: edit(world)
    turn = world.submit()
    world.die_at, world.die_before = world.commits + commit, before
    try:
        world.run_dry()
    except Died:
        world.forget_the_dead()
    world.die_at = None
    world.runtime.noted_versions.clear()  # as in a process that starts
    world.runtime.pinned_agents.clear()

    world.recover()

    began, replies = digests(world, turn)
    assert (began, set(replies)) == (OLD, {OLD})
    assert recorded(world) == [OLD]
    check_all(world.store)


def test_a_version_that_is_noted_before_its_first_turn(world):
    with world.as_another_process():
        stages.note_versions(world.runtime)

    assert recorded(world) == [OLD]


def test_a_broken_agent_is_not_noted(world):
    world.agents.broken = {"ada"}

    stages.note_versions(world.runtime)

    assert recorded(world) == []


# The report.


def waiting_on_old(world: World) -> str:
    world.models.script, world.tools.asks = rounds_of(1), asks_once(0)
    turn = world.submit()
    world.run_dry()
    edit(world)
    show(world, "w1", NEW)
    with world.as_another_process():
        stages.note_versions(world.runtime)
    return world.row("turns", id=turn)["run_id"]


def test_open_runs_are_counted_by_the_version_they_began_with(world):
    run = waiting_on_old(world)

    fleet_versions = views.fleet_versions(world.store)
    (line,) = views.agents(world.agents, {}, fleet_versions)
    view = views.agent(world.agents, world.tools, "ada", {}, store=world.store)

    assert (line.in_use, line.open_runs, line.open_runs_on_old, line.oldest_on_old) == ((NEW,), 1, 1, run)
    by_digest = {one.digest: one for one in view.versions}
    assert (by_digest[OLD].is_old, by_digest[OLD].open_runs, by_digest[OLD].oldest_run) == (True, 1, run)
    assert (by_digest[NEW].is_old, by_digest[NEW].processes, by_digest[NEW].open_runs) == (False, ("w1",), 0)
    assert (view.open_runs, view.open_runs_on_old, view.open_runs_on_unknown) == (1, 1, 0)


def test_a_version_that_some_process_still_uses_is_not_old(world):
    waiting_on_old(world)
    show(world, "w2", OLD)

    (line,) = views.agents(world.agents, {}, views.fleet_versions(world.store))

    assert (line.in_use, line.open_runs_on_old) == ((OLD, NEW), 0)


def test_runs_from_before_versions_were_recorded_are_counted_apart(world):
    edit(world, replace(FIRST, digest=""))
    world.models.script, world.tools.asks = rounds_of(1), asks_once(0)
    world.submit()
    world.run_dry()

    view = views.agent(world.agents, world.tools, "ada", {}, store=world.store)

    assert (view.open_runs, view.open_runs_on_old, view.open_runs_on_unknown) == (1, 0, 1)


def test_a_run_that_is_done_is_no_open_run(world):
    world.submit()
    world.run_dry()

    (line,) = views.agents(world.agents, {}, views.fleet_versions(world.store))

    assert (line.open_runs, line.changed_at) == (0, world.rows("agent_versions")[0]["first_seen_at"])


# The doctor.


def test_processes_that_use_different_versions_are_a_finding(world, tmp_path):
    show(world, "w1", OLD)
    show(world, "w2", NEW)
    context = context_of(world.store, tmp_path, now=world.runtime.now)
    context = replace(context, settings=context.settings.model_copy(update={"presence": 0.01}))

    (finding,) = fleet._of_agents(context, fleet._present(context))

    assert (finding.code, finding.severity, finding.where) == ("agent_versions", "warning", "ada")
    assert f"{OLD[:12]} in w1; {NEW[:12]} in w2" in finding.text
    assert finding.remedy == "chordage stop && chordage start"


def test_processes_that_use_the_same_version_are_none(world, tmp_path):
    show(world, "w1", OLD)
    show(world, "w2", OLD)
    context = context_of(world.store, tmp_path, now=world.runtime.now)

    assert list(fleet._of_agents(context, fleet._present(context))) == []


# Pruning.


def add(world: World, digest: str, days: int) -> None:
    version = AgentVersion(digest=digest, agent="ada", definition={"agent": {"name": "ada"}})
    with world.store.write() as tx:
        agent_versions.insert(tx, version, now=world.clock.now - timedelta(days=days), by="1")


def prune(world: World) -> dict[str, int]:
    kept = limits_for(world.clock.now, older_than=timedelta(days=90), keep_keys=timedelta(days=1))
    with world.as_another_process():
        return dict(stages.prune(world.runtime, kept, by=CLI).rows)


def test_prune_removes_old_versions_that_nothing_needs(world):
    world.submit()
    world.run_dry()  # its run began with OLD, at the time of the next
    with world.store.write() as tx:
        tx.execute(schema.agent_versions.delete())
    add(world, OLD, 100)
    add(world, NEW, 100)
    add(world, "c" * 32, 100)
    add(world, "d" * 32, 10)
    show(world, "w1", NEW)

    assert prune(world)["agent_versions"] == 1
    assert recorded(world) == [OLD, NEW, "d" * 32]


def test_versions_go_with_the_runs_that_began_with_them(world):
    world.submit()
    world.run_dry()
    world.clock.pass_by(100 * 86400)

    assert prune(world)["agent_versions"] == 1
    assert recorded(world) == []


def test_a_version_that_was_pruned_is_shown_without_its_definition(world):
    with world.store.write() as tx:
        tx.execute(insert(schema.processes), {"id": "w", "machine": "m", "pid": 1, "born": "b",
                                              "seen_at": world.clock.now, "agents": {"ada": NEW}})  # fmt: skip

    (version,) = views.agent_versions(world.store, "ada", views.fleet_versions(world.store))

    assert (version.digest, version.first_seen_at, version.processes) == (NEW, None, ("w",))
