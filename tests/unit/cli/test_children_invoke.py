"""Sub-agents without a fleet: one process carries the whole tree out."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def asker(room):
    (room / "agents").mkdir(exist_ok=True)
    (room / "agents" / "lead.toml").write_text('model = "scripted:lead.yaml"\nagents = ["helper"]\n')
    (room / "agents" / "helper.toml").write_text('model = "scripted:helper.yaml"\n')
    ask = "{name: ask_helper, arguments: {message: help me}}"
    (room / "lead.yaml").write_text(f'- {{tool_calls: [{ask}, {ask}]}}\n- {{text: "{{results}}"}}\n')
    (room / "helper.yaml").write_text('- {text: "gladly"}\n')


@pytest.mark.usefixtures("asker")
def test_the_sub_agents_of_a_turn_are_carried_out_with_it(chordage):
    done = chordage("invoke", "please", "--agent", "lead")

    assert (done.exit_code, done.stdout, done.stderr) == (0, "gladly\ngladly\n", "")


@pytest.mark.usefixtures("asker")
def test_turn_shows_its_sub_agents_and_they_show_their_parent(chordage):
    chordage("invoke", "please", "--agent", "lead")
    lines = json.loads(chordage("turns", "--json").stdout)
    root = next(line for line in lines if line["agent"] == "lead")
    child = next(line for line in lines if line["agent"] == "helper")

    assert "agent  helper: answered, turn " in chordage("show", root["turn_id"]).stdout
    shown = chordage("show", child["turn_id"]).stdout
    assert f"asked by  run {root['run_id']}, lead/helper" in shown
    assert (child["parent_run"], child["path"]) == (root["run_id"], "lead/helper")
