"""Whole results on the terminal, where the model was shown only the beginning."""

from __future__ import annotations

import json

import pytest

from support import client_room

TOOLS = """
from chordage import tool


@tool(effect="pure", result_limit=20)
def report() -> str:
    \"\"\"A long report.\"\"\"
    return "begin " + "x" * 3000 + " end"
"""
LONG = "begin " + "x" * 3000 + " end"


@pytest.fixture
def turn(chordage, room):
    module = f"long_report_{next(client_room.MODULES)}"
    (room / f"{module}.py").write_text(TOOLS)
    (room / "long.yaml").write_text("- {when: {turn: 1}, tool_calls: [{name: report}]}\n- text: done\n")
    (room / "agents" / "long.toml").write_text(f'model = "scripted:long.yaml"\ntools = ["{module}"]\n')
    return json.loads(chordage("invoke", "go", "--agent", "long", "--json").stdout)["turn_id"]


def call_of(chordage, turn):
    steps = json.loads(chordage("show", turn, "--json").stdout)["run"]["steps"]
    return next(step["calls"][0]["id"] for step in steps if step.get("calls"))


def test_full_adds_the_whole_results_to_a_turn(chordage, turn):
    plain, full = chordage("show", turn).stdout, chordage("show", turn, "--full").stdout
    assert LONG not in plain
    assert f"({len(LONG)} characters):\n{LONG}\n" in full
    (found,) = json.loads(chordage("show", turn, "--full", "--json").stdout)["results"]
    assert (found["text"], found["total"], found["next_offset"]) == (LONG, len(LONG), None)


@pytest.mark.parametrize("form", ["{}", "call:{}"])
def test_a_call_is_shown_with_its_whole_result(chordage, turn, form):
    call = call_of(chordage, turn)
    shown = chordage("show", form.format(call))
    assert shown.stdout == f"result of report, call {call} ({len(LONG)} characters):\n{LONG}\n"
    assert json.loads(chordage("show", form.format(call), "--json").stdout)["result"]["text"] == LONG


def test_missing_call_is_reported(chordage, turn):
    shown = chordage("show", "call:nothing")
    assert shown.exit_code == 1
    assert "call 'nothing' is not there" in shown.stderr
