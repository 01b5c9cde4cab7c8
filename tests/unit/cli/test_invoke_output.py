"""Structured output at the command line: the value in --json, what was refused in `show`, and what is broken."""

from __future__ import annotations

import itertools
import json

import pytest

MODULES = itertools.count()
MODEL = """
from pydantic import BaseModel, field_validator

class Total(BaseModel):
    cents: int

    @field_validator("cents")
    @classmethod
    def paid(cls, cents):
        if cents < 0:
            raise ValueError("nobody is paid back here")
        return cents
"""
SCRIPT = """
- when: twice
  text: "That will be {cents}."
- when: twice
  text: '{"cents": -5}'
- text: "I think it is -5."
- text: '{"cents": 5}'
"""


@pytest.fixture
def till(room):
    """An agent that owes a Total; its model has to be asked again."""
    module = f"till_{next(MODULES)}"
    (room / f"{module}.py").write_text(MODEL)
    (room / "till.yaml").write_text(SCRIPT)
    (room / "agents" / "till.toml").write_text(f'model = "scripted:till.yaml"\noutput = "{module}:Total"\n')
    return module


def test_the_value_is_in_the_turn_and_the_refusal_in_its_steps(chordage, till):
    done = chordage("invoke", "how much?", "--agent", "till", "--json")
    turn = json.loads(done.stdout)
    assert (done.exit_code, turn["output"], turn["answer"]) == (0, {"cents": 5}, '{"cents": 5}')

    shown = json.loads(chordage("show", turn["turn_id"], "--json").stdout)
    assert shown["turn"]["output"] == {"cents": 5}
    assert [step["refused"] is None for step in shown["run"]["steps"]] == [False, True]
    lines = chordage("show", turn["turn_id"]).stdout
    assert "     I think it is -5.\n     refused as output: it is not one JSON value" in lines


def test_answer_that_never_fits_is_an_error_with_the_reason(chordage, till):
    done = chordage("invoke", "twice", "--agent", "till")

    assert (done.exit_code, done.stdout) == (3, "")
    assert "failed (output_invalid: the answer is not the demanded output, also after one repair: " in done.stderr
    assert "$.cents: Value error, nobody is paid back here)" in done.stderr


def test_missing_model_is_reported_before_a_turn_is_stored(chordage, room, till):
    (room / "agents" / "till.toml").write_text(f'model = "scripted:till.yaml"\noutput = "{till}:Totl"\n')
    done = chordage("invoke", "how much?", "--agent", "till")

    assert done.exit_code == 1
    assert f"agents/till.toml:2: output: '{till}:Totl': module {till} has no 'Totl'; did you mean Total?" in done.stderr
    assert not (room / "execution.db").exists()
