"""`submit --wait` while a person is waited for, and what its help and the lists beside it tell."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.strategies import loading
from chordage.workers.cli import main, message, submit
from chordage.workers.simulate.command import progress


def turn(status, reason=None):
    return SimpleNamespace(
        turn_id="T", run_id="R", status=status, reason=reason, disposition=Disposition.ANSWERED, answer="ok", code=None,
        fate="answered",
    )  # fmt: skip


ACTIVE, DONE = TurnStatus.ACTIVE, TurnStatus.DONE


@pytest.fixture
def waited(monkeypatch, capsys):
    def wait(*turns, timeout=None):
        states = list(turns)
        monkeypatch.setattr("chordage.workers.turn_waiter.waiter_for", lambda _settings: None)
        monkeypatch.setattr(
            "chordage.workers.turn_waiter.wait_for_answer",
            lambda *_given: states.pop(0) if len(states) > 1 else states[0],
        )
        code = submit._wait(None, None, "T", timeout, as_json=False)
        return code, capsys.readouterr()

    return wait


def test_submit_prints_once_what_to_do_and_keeps_waiting(waited):
    suspended = turn(ACTIVE, Reason.SUSPENDED)
    code, said = waited(turn(ACTIVE), suspended, suspended, turn(ACTIVE), turn(DONE))
    assert (code, said.out) == (message.ANSWERED, "ok\n")
    assert said.err.startswith("chordage: turn T waits for a decision: `chordage inbox --run R` shows which, and")
    assert said.err.endswith("`chordage approve ID` or `chordage deny ID` decides\n")
    assert said.err.count("\n") == 1


def test_submit_prints_it_again_for_a_second_question(waited):
    suspended = turn(ACTIVE, Reason.SUSPENDED)
    _code, said = waited(suspended, turn(ACTIVE), suspended, turn(DONE))
    assert said.err.count("waits for a decision") == 2


def test_the_time_is_up_all_the_same(waited):
    code, said = waited(turn(ACTIVE, Reason.SUSPENDED), timeout=0.01)
    assert code == submit.TIMED_OUT
    assert "waits for a decision" in said.err
    assert "is not done after 0.01 s" in said.err


@pytest.mark.parametrize("name", ["submit", "invoke"])
def test_help_names_all_strategies_including_those_of_packages(monkeypatch, name):
    monkeypatch.setattr(loading, "names", lambda: ["direct", "plan_execute", "react", "ours_by_entry_point"])
    told = " ".join(CliRunner().invoke(main, [name, "--help"]).stdout.split())
    assert "direct, plan_execute, react, ours_by_entry_point" in told


def test_turns_in_json_have_channel_and_sender(chordage):
    chordage("invoke", "hello")
    (line,) = json.loads(chordage("turns", "--json").stdout)
    assert (line["channel"], line["sender"]) == (None, "owner")


def test_simulation_prints_its_progress_and_its_duration():
    assert progress(900, 3600, 1234, 60) == "15 min of 60 min (25%), 1,234 turns done, 60 s so far, about 3 min to go"
    assert progress(1, 3600, 0, 0.5) == "1.0 s of 60 min (0%), 0 turns done, 0.5 s so far"
    assert (
        progress(3700, 3600, 9, 90) == "62 min of 60 min (100%), 9 turns done, 90 s so far; what is left is worked off"
    )
