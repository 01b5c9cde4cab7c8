"""Small fleets under virtual time, whose waits can be worked out by hand."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from chordage.orchestrator.core.agent import Effect, Placement
from chordage.orchestrator.core.errors import Conflict
from chordage.orchestrator.core.groups import Group
from chordage.workers.cli import main
from chordage.workers.simulate.command import run_simulation
from chordage.workers.simulate.scenario import DatabaseSpeed, FleetSize, MessageSource, Scenario

SPREADS = ["exponential", "fixed"]


def simulate(*sources, database=None, **given):
    plan = Scenario(**{"sources": sources, "seconds": 10, "database": DatabaseSpeed(commit_ms=1), **given})
    return run_simulation(plan, database=database, progress=lambda _now, _done: None)


def burst(size, **given):
    """All at once, at the start; each one model call of a second."""
    usual = {"name": "a", "group": "task", "pattern": "burst", "rounds": 0, "model_seconds": 1, "spread": "fixed"}
    return MessageSource(**{**usual, "burst": size, "per_second": size / 10, **given})


def test_budget_bounds_running_turns_and_the_others_wait_their_turn():
    found = simulate(burst(40), budgets={Group.TASK: 10})

    (task,) = found.groups
    assert task.ways == {"answered": 40}
    assert task.until_started.longest == pytest.approx(3.0, abs=0.1)
    assert task.until_done.longest == pytest.approx(4.0, abs=0.1)


def test_slots_bound_what_runs_however_large_the_budget():
    found = simulate(burst(40), budgets={Group.TASK: 100}, fleet=FleetSize(turn_slots=10, tool_slots=10))

    assert found.groups[0].until_asked.longest == pytest.approx(3.0, abs=0.1)


def test_round_of_tools_releases_the_slot_and_waits_for_tool_slots():
    found = simulate(burst(2, rounds=1, calls=4, tool_seconds=1), fleet=FleetSize(turn_slots=2, tool_slots=4))

    assert found.groups[0].until_done.longest == pytest.approx(4.0, abs=0.1), "1 + two rounds of four, one after + 1"


@pytest.mark.parametrize("group", ["chat", "chore"])
@pytest.mark.parametrize(
    ("placement", "seconds", "placed", "messages", "longest"),
    [
        ("spread", 0.01, {"spread": 8}, 8, 2.01),
        ("together", 0.01, {"together": 8}, 2, 2.04),
        ("here", 0.01, {"here": 8}, 0, 2.04),
        ("here", 0.03, {"here": 8}, 4, 2.08),
        ("here", 1.0, {"here": 8}, 6, 3.05),
    ],
    ids=["spread", "together", "here", "here: two are sent after 50 ms", "here: three are sent while one runs"],
)
def test_calls_run_where_they_are_placed(group, placement, seconds, placed, messages, longest):
    """Two turns of two model calls of a second, with four tools between them."""
    found = simulate(
        burst(2, group=group, rounds=1, calls=4, tool_seconds=seconds, placement=placement, effect="idempotent")
    )

    (of,) = found.groups
    assert {place: count for place, count in of.placed.items() if count} == placed
    assert of.messages == messages
    assert of.until_done.longest == pytest.approx(longest, abs=0.02)
    assert of.ways == {"answered": 2}


@pytest.mark.parametrize(
    ("effect", "seconds", "places"),
    [
        ("pure", 0.001, {"spread", "here"}),
        ("idempotent", 0.001, {"spread", "here"}),
        ("unsafe", 0.001, {"spread"}),
        ("pure", 0.5, {"spread", "together"}),
    ],
)
def test_auto_keeps_calls_that_are_short_and_may_run_again_once_they_are_measured(effect, seconds, places):
    found = simulate(burst(2, rounds=3, tool_seconds=seconds, effect=effect))

    assert {place for place, count in found.groups[0].placed.items() if count} == places


def test_tool_slots_do_not_bound_calls_that_stay():
    common = {"rounds": 1, "calls": 1, "tool_seconds": 0.04, "effect": "pure", "model_seconds": 0.1}
    fleet = FleetSize(turn_slots=40, tool_slots=1)
    budgets = {Group.TASK: 40}
    stay = simulate(burst(40, placement="here", **common), fleet=fleet, budgets=budgets)
    leave = simulate(burst(40, placement="spread", **common), fleet=fleet, budgets=budgets)

    assert stay.groups[0].until_done.longest < 0.5
    assert leave.groups[0].until_done.longest > 40 * 0.04


@settings(deadline=None, max_examples=25)
@given(
    placement=st.sampled_from(list(Placement)), effect=st.sampled_from(list(Effect)), rounds=st.integers(0, 3),
    calls=st.integers(1, 6), tool_seconds=st.sampled_from([0.0, 0.001, 0.03, 0.5]), spread=st.sampled_from(SPREADS),
    size=st.integers(1, 8), group=st.sampled_from(list(Group)),
)  # fmt: skip
def test_every_simulated_turn_ends_and_no_slot_is_lost_wherever_its_calls_run(size, group, **given):
    """Two slots of each kind: what is not given back would be missing."""
    found = simulate(burst(size, group=group, **given), fleet=FleetSize(turn_slots=2, tool_slots=2))

    (of,) = found.groups
    assert of.ways == {"answered": size}
    assert sum(of.placed.values()) == size * given["rounds"] * given["calls"]


def test_chat_passes_a_backlog_and_with_a_reserve_it_never_waits():
    background = burst(400, name="b")
    chat = MessageSource(
        name="c", group="chat", pattern="steady", per_second=1, rounds=0, model_seconds=0.1, spread="fixed"
    )
    common = {"budgets": {Group.TASK: 400}, "seconds": 20}

    without = simulate(background, chat, fleet=FleetSize(turn_slots=20, tool_slots=20), **common)
    reserved = simulate(background, chat, fleet=FleetSize(turn_slots=20, tool_slots=20, reserve=1), **common)

    assert without.groups[0].until_asked.longest <= 1.1, "one model call of the background, no more"
    assert reserved.groups[0].until_asked.longest < 0.1
    assert [of.ways for of in reserved.groups] == [{"answered": 20}, {"answered": 800}]


def test_starts_of_one_group_go_one_by_one_and_that_row_is_named():
    found = simulate(burst(100), budgets={Group.TASK: 100}, database=None)
    slow = run_simulation(
        Scenario(sources=(burst(100),), seconds=10, budgets={Group.TASK: 100}, database=DatabaseSpeed(commit_ms=50)),
        database=None,
        progress=lambda _now, _done: None,
    )

    assert found.groups[0].until_started.longest == pytest.approx(0.1, abs=0.05)
    assert slow.groups[0].until_started.longest == pytest.approx(5.0, abs=0.3)
    assert slow.hot_rows[0].row == "groups task"
    assert slow.hot_rows[0].busy == 1.0


def test_unfinished_work_is_left_and_reported():
    found = simulate(burst(30), budgets={Group.TASK: 1}, drain=0)

    assert found.groups[0].ways["queued"] + found.groups[0].ways["active"] == pytest.approx(20, abs=1)


def test_the_same_scenario_comes_out_the_same():
    sources = (burst(30), MessageSource(name="c", group="chat", per_second=3, threads=5))
    first, second = simulate(*sources), simulate(*sources)

    assert first.groups == second.groups


def test_a_database_in_use_is_not_filled_with_made_up_turns(tmp_path):
    url = f"sqlite:///{tmp_path / 'one.db'}"
    simulate(burst(1), database=url)

    with pytest.raises(Conflict, match="has turns in it"):
        simulate(burst(1), database=url)


def test_the_command_prints_tables_and_json(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('seconds = 5\n[[sources]]\nname = "a"\ngroup = "chat"\n')

    text = CliRunner().invoke(main, ["simulate", str(plan)])
    as_json = CliRunner().invoke(main, ["simulate", str(plan), "--seconds", "2", "--json"])

    assert text.exit_code == 0
    assert "Hottest rows" in text.output
    assert json.loads(as_json.stdout)["groups"][0]["group"] == "chat"
