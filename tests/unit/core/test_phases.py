"""Verdicts of plugins: which of them can be built, and where each has a meaning."""

from __future__ import annotations

from typing import get_args

import pytest

from chordage.orchestrator.core import verdicts
from chordage.orchestrator.core.approvals import OnExpiry, Question, ResumeMode, Why
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import UserSays
from chordage.orchestrator.core.phases import Hook, RunStart, Scope
from chordage.orchestrator.core.plugin_state import Merge, SetState
from chordage.orchestrator.core.reasons import NATURAL_END, Ending, Reason, cancelled, failed, stopped
from chordage.orchestrator.core.verdicts import ALLOWED, MisplacedVerdict, check_place

ONE_OF_EACH = [
    verdicts.AddContextMessage(key="k", text="t"),
    verdicts.IncludeOnly(["a"]),
    verdicts.Exclude(["a"]),
    verdicts.OverrideModel("m"),
    verdicts.OverrideParams({"temperature": 0}),
    verdicts.Terminate(stopped("enough")),
    verdicts.Block("no"),
    verdicts.SuspendCall(prompt="may it?"),
    verdicts.SupplyResult("42"),
    verdicts.AmendArguments({"a": 1}),
    verdicts.AddMessage("by the way"),
    verdicts.AmendResult("43"),
    SetState(scope=Scope.RUN, key="k", value=1),
]
HERE_ONLY = {
    Hook.BEFORE_INFERENCE: {
        verdicts.AddContextMessage,
        verdicts.IncludeOnly,
        verdicts.Exclude,
        verdicts.OverrideModel,
        verdicts.OverrideParams,
        verdicts.Terminate,
    },
    Hook.AFTER_INFERENCE: {verdicts.Terminate},
    Hook.BEFORE_TOOL_EXECUTE: {verdicts.Block, verdicts.SuspendCall, verdicts.SupplyResult, verdicts.AmendArguments},
    Hook.AFTER_TOOL_EXECUTE: {verdicts.AddMessage, verdicts.AmendResult},
}


def test_every_phase_has_a_row_in_the_table():
    assert set(ALLOWED) == set(Hook)
    assert len(Hook) == 8


@pytest.mark.parametrize("hook", Hook)
@pytest.mark.parametrize("verdict", ONE_OF_EACH, ids=lambda verdict: type(verdict).__name__)
def test_a_verdict_is_taken_exactly_where_it_means_something(hook, verdict):
    if isinstance(verdict, SetState) or type(verdict) in HERE_ONLY.get(hook, ()):
        check_place(hook, "p", verdict)
    else:
        with pytest.raises(MisplacedVerdict, match=f"plugin 'p' gave {type(verdict).__name__} in {hook}, where"):
            check_place(hook, "p", verdict)


def test_a_note_for_a_call_needs_a_phase_that_is_about_one():
    note = SetState(scope=Scope.CALL, key="k", value=1)

    check_place(Hook.AFTER_TOOL_EXECUTE, "p", note)
    with pytest.raises(MisplacedVerdict, match="noted 'k' for a call in step_end, which is about no call"):
        check_place(Hook.STEP_END, "p", note)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: verdicts.AddContextMessage(key=" ", text="t"), "the key of a context message is blank"),
        (lambda: verdicts.AddContextMessage(key="k", text=""), "the context message 'k' is blank"),
        (lambda: verdicts.AddContextMessage(key="k", text="t", cooldown=-1), "0 or more; got -1"),
        (lambda: verdicts.IncludeOnly("search"), "list of names; got the text 'search'"),
        (lambda: verdicts.Exclude("search"), "list of names; got the text 'search'"),
        (lambda: verdicts.OverrideModel(" "), "name of the model is blank"),
        (lambda: verdicts.OverrideParams({"a": object()}), "params must be something JSON has"),
        (lambda: verdicts.Terminate(NATURAL_END), "not as natural_end"),
        (lambda: verdicts.Terminate(failed("x", "y")), "not as error"),
        (lambda: verdicts.Terminate(cancelled()), "not as cancelled"),
        (lambda: verdicts.Block(" "), "a block needs a reason"),
        (lambda: verdicts.SuspendCall(prompt=""), "the prompt is blank"),
        (
            lambda: verdicts.SuspendCall(prompt="?", resume_mode="later"),
            "resume_mode must be one of replay_tool_call, .*'later'",
        ),
        (lambda: verdicts.SuspendCall(prompt="?", on_expiry="shrug"), "on_expiry must be one of deny, .*'shrug'"),
        (
            lambda: verdicts.SuspendCall(prompt="?", expires_in=0),
            "more than 0 seconds and at most 31622400, or left out; got 0",
        ),
        (lambda: verdicts.SuspendCall(prompt="?", expires_in=float("inf")), "more than 0 seconds"),
        (lambda: verdicts.SuspendCall(prompt="?", default={1}), "the default must be something JSON has"),
        (lambda: verdicts.SuspendCall(prompt="?", schema={"a": {1}}), "the schema must be something JSON has"),
        (lambda: verdicts.AmendArguments({"a": float("nan")}), "the arguments must be something JSON has"),
        (lambda: verdicts.AddMessage("\n"), "the message is blank"),
        (lambda: SetState(scope="planet", key="k", value=1), "scope must be one of thread, run, call; got 'planet'"),
        (lambda: SetState(scope="run", key="", value=1), "needs a key that is not blank"),
        (lambda: SetState(scope="run", key="k", value=1, merge="mix"), "merge must be one of exclusive, add, union"),
        (lambda: SetState(scope="run", key="k", value="a", merge="add"), "k: only numbers can be added; got 'a'"),
        (lambda: SetState(scope="run", key="k", value=True, merge="add"), "k: only numbers can be added; got True"),
        (lambda: SetState(scope="run", key="k", value="a", merge="union"), "k: only lists and sets can be joined"),
        (lambda: SetState(scope="run", key="k", value=[object()], merge="union"), "k must be something JSON has"),
        (lambda: SetState(scope="run", key="k", value=object()), "k must be something JSON has"),
    ],
)
def test_a_verdict_that_could_not_be_carried_out_cannot_be_built(build, why):
    with pytest.raises(ValueError, match=why):
        build()


def test_a_plugin_may_end_a_run_as_its_behaviour():
    assert verdicts.Terminate(Ending(reason=Reason.BEHAVIOR_REQUESTED)).ending.reason is Reason.BEHAVIOR_REQUESTED


def test_strings_become_members_of_their_enums():
    note = SetState(scope="thread", key="k", value={"b", "a"}, merge="union")
    asked = verdicts.SuspendCall(prompt="?", resume_mode="pass_decision_to_tool", on_expiry="escalate")

    assert (note.scope, note.merge, note.value) == (Scope.THREAD, Merge.UNION, ["a", "b"])
    assert (asked.resume_mode, asked.on_expiry) == (ResumeMode.PASS_TO_TOOL, OnExpiry.ESCALATE)


def test_suspended_call_has_the_question_of_its_check():
    asked = verdicts.SuspendCall(
        prompt="may it?", schema={"type": "null"}, expires_in=60, on_expiry="default", default={"a": 1}
    )

    assert asked.question == Question(
        why=Why.GATE,
        prompt="may it?",
        schema={"type": "null"},
        resume_mode=ResumeMode.REPLAY,
        expires_in=60,
        on_expiry=OnExpiry.DEFAULT,
        default={"a": 1},
    )


def test_context_has_the_data_and_notes_of_its_run():
    said = (UserSays(text="before"), UserSays(text="now"))
    state = {Scope.RUN: {"mine.count": 3}}
    seen = RunStart(run_id="r", thread_id="t", agent="a", group=Group.CHAT, said=said, said_before=1, state=state)

    assert seen.said_in_run == (UserSays(text="now"),)
    assert seen.noted(Scope.RUN, "mine.count") == 3
    assert seen.noted(Scope.THREAD, "mine.count", 0) == 0


def test_notes_are_empty_and_read_only_by_default():
    seen = RunStart(run_id="r", thread_id="t", agent="a", group=Group.CHAT)

    assert seen.noted(Scope.RUN, "x") is None
    with pytest.raises(TypeError):
        seen.state[Scope.RUN]["x"] = 1


def test_every_kind_of_verdict_is_tried_above():
    assert {type(verdict) for verdict in ONE_OF_EACH} == set(get_args(verdicts.Verdict))
