"""Plugins in the engine: called in their phases, obeyed, and unable to break more than their run."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace

import pytest

from chordage.orchestrator.core.agent import ToolMode
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.errors import InvalidDecision, ModelFailed, UnknownAgent
from chordage.orchestrator.core.model import Fault, ToolSays
from chordage.orchestrator.core.phases import Hook, Scope
from chordage.orchestrator.core.plugin_state import Merge, SetState
from chordage.orchestrator.core.reasons import Ending, Reason, stopped
from chordage.orchestrator.core.transcript import AWAITING
from chordage.orchestrator.core.verdicts import (
    AddContextMessage,
    AddMessage,
    AmendArguments,
    AmendResult,
    Block,
    Exclude,
    OverrideModel,
    OverrideParams,
    SupplyResult,
    SuspendCall,
    Terminate,
)
from chordage.orchestrator.plugins.base import Plugin
from chordage.orchestrator.plugins.permission import Permission
from chordage.orchestrator.plugins.plugin_set import PluginSet
from chordage.orchestrator.plugins.stops import Stops
from support.fakes import rounds_of
from support.invariants import check_all
from support.world import Died


def install(world, *plugins, **more):
    made = PluginSet(plugins, **more)
    object.__setattr__(world.runtime, "plugin_sets", lambda agent: made)


def saying(hook: Hook, *verdicts, name="tested", when=lambda context: True):
    def answer(self, context):
        return list(verdicts) if when(context) else None

    return type("Tested", (Plugin,), {"id": name, hook.value: answer})()


def play(world, script=None) -> dict:
    world.models.script = script or rounds_of(2)
    world.submit()
    world.run_dry()
    return world.row("turns")


def result_texts(prompt) -> list[str]:
    return [said.content for said in prompt.said if isinstance(said, ToolSays)]


def answer(world, payload=True, action=Action.RESUME):
    (row,) = world.inbox()
    world.decide(DecisionRequest(target=row["id"], action=action, payload=payload))
    world.run_dry()


def test_every_phase_runs_in_its_order(world):
    heard = []

    def listener(hook):
        return lambda self, context: heard.append(hook.value)

    plugin = type("Ear", (Plugin,), {"id": "ear", **{hook.value: listener(hook) for hook in Hook}})
    install(world, plugin())
    play(world, rounds_of(1))

    step = ["step_start", "before_inference", "after_inference", "step_end"]
    assert heard == ["run_start", *step, "before_tool_execute", "after_tool_execute", *step, "run_end"]


def test_blocked_call_is_an_error_for_the_model_and_the_run_continues(world):
    install(world, saying(Hook.BEFORE_TOOL_EXECUTE, Block("not on Sundays"), when=lambda c: c.call.arguments["n"] == 0))
    assert play(world)["disposition"] == "answered"

    assert result_texts(world.models.prompts[-1]) == ["not on Sundays", "pure1"]
    assert [call["code"] for call in world.rows("calls")] == ["blocked", None]
    check_all(world.store)


def test_a_supplied_result_spares_the_tool(world):
    install(world, saying(Hook.BEFORE_TOOL_EXECUTE, SupplyResult("from the cache")))
    play(world)

    assert result_texts(world.models.prompts[-1]) == ["from the cache", "from the cache"]
    assert world.tools.ran.total() == 0


def test_amended_arguments_are_what_the_tool_runs_with(world):
    install(world, saying(Hook.BEFORE_TOOL_EXECUTE, AmendArguments({"n": 9})))
    play(world)
    assert result_texts(world.models.prompts[-1]) == ["pure9", "pure9"]


def test_bad_arguments_beat_approval(world):
    install(
        world,
        saying(Hook.BEFORE_TOOL_EXECUTE, SuspendCall(prompt="?")),
        saying(Hook.BEFORE_TOOL_EXECUTE, AmendArguments({"n": "x"}), name="b"),
    )
    play(world)
    assert [call["code"] for call in world.rows("calls")] == ["invalid_arguments"] * 2
    assert world.rows("suspensions") == []


def test_check_may_ask_a_person_and_the_call_does_not_run_before(world):
    install(
        world,
        saying(
            Hook.BEFORE_TOOL_EXECUTE,
            SuspendCall(prompt="Really?"),
            when=lambda c: not c.call.resumed and c.call.arguments["n"] == 1,
        ),
    )
    play(world)

    assert result_texts(world.models.prompts[-1]) == ["pure0", AWAITING]
    assert world.tools.ran.total() == 1
    assert world.inbox()[0]["prompt"] == "Really?"
    answer(world)
    assert result_texts(world.models.prompts[-1]) == ["pure0", "pure1"]
    check_all(world.store)


def test_in_sequence_nothing_behind_a_gated_call_starts(world):
    world.agents.agents["ada"] = replace(world.agents.agents["ada"], tool_mode=ToolMode.SEQUENTIAL)
    install(
        world,
        saying(
            Hook.BEFORE_TOOL_EXECUTE,
            SuspendCall(prompt="?"),
            when=lambda c: not c.call.resumed and c.call.arguments["n"] == 0,
        ),
    )
    play(world)
    assert (world.tools.ran.total(), world.row("runs")["status"]) == (0, "waiting")

    answer(world)
    assert [order.arguments["n"] for order in world.tools.orders] == [0, 1]
    check_all(world.store)


def test_what_became_forbidden_meanwhile_stays_forbidden_though_approved(world):
    rules = {"ask": ["pure"]}
    install(world, Permission(**rules))
    play(world, rounds_of(1))
    install(world, Permission(deny=["pure"]))
    answer(world)

    assert [call["code"] for call in world.rows("calls")] == ["blocked"]
    assert world.tools.ran.total() == 0
    check_all(world.store)


def test_an_agent_that_is_missing_when_its_call_is_taken_runs_no_tool_past_its_plugins(world):
    """Its file was moved away and back: the tool would have run by an agent whose plugins nobody had asked."""
    install(world, Permission(ask=["pure"]))
    play(world, rounds_of(1))
    install(world, Permission(deny=["pure"]))
    load, looks = world.agents.get, []

    def missing_once(name):
        if sys._getframe(2).f_globals["__name__"].endswith("tool_call") and not looks:
            looks.append(name)
            raise UnknownAgent(f"no agent {name!r}")
        return load(name)

    world.agents.get = missing_once
    answer(world)

    assert looks == ["ada"]
    assert world.tools.ran.total() == 0
    assert [call["code"] for call in world.rows("calls")] == ["tool_unavailable"]
    check_all(world.store)


def test_answer_to_another_question_runs_no_call(world):
    install(world, Permission(ask=["pure"]))
    play(world, rounds_of(1))

    with pytest.raises(InvalidDecision, match="amount"):
        answer(world, {"amount": 5})
    assert world.tools.ran.total() == 0


def test_remembered_approval_is_not_requested_again_on_this_thread(world):
    install(world, Permission(ask=["pure"]))
    play(world, rounds_of(1))
    answer(world, {"remember": True})
    assert world.row("turns")["disposition"] == "answered"

    world.submit("again")
    world.run_dry()
    assert len(world.rows("suspensions")) == 1
    assert [turn["disposition"] for turn in world.rows("turns")] == ["answered", "answered"]


def test_tools_that_are_kept_from_the_model_are_refused_all_the_same(world):
    install(world, saying(Hook.BEFORE_INFERENCE, Exclude(["pure"])))
    play(world)

    assert "pure" not in {offer.name for offer in world.models.prompts[0].offers}
    assert {call["code"] for call in world.rows("calls")} == {"out_of_scope"}


def test_context_messages_and_overrides_reach_the_model(world):
    seen = []
    world.models.before_reply = seen.append
    install(
        world,
        saying(
            Hook.BEFORE_INFERENCE,
            AddContextMessage(key="k", text="It is noon.", cooldown=10),
            OverrideModel("other"),
            OverrideParams({"t": 1}),
        ),
    )
    play(world)

    assert ["It is noon." in prompt.system for prompt in seen] == [True, False]
    assert seen[0].params == {"t": 1}


def test_plugin_may_end_the_run_before_the_model_call(world):
    install(world, saying(Hook.BEFORE_INFERENCE, Terminate(Ending(reason=Reason.BEHAVIOR_REQUESTED, detail="enough"))))
    assert play(world)["disposition"] == "answered"
    assert (world.models.prompts, world.row("runs")["reason"]) == ([], "behavior_requested")
    check_all(world.store)


def test_stop_after_inference_finishes_the_round_first(world):
    install(world, saying(Hook.AFTER_INFERENCE, Terminate(stopped("mine", "that was it"))))
    play(world)

    run = world.row("runs")
    assert (run["reason"], run["code"], run["detail"]) == ("stopped", "mine", "that was it")
    assert [call["status"] for call in world.rows("calls")] == ["succeeded", "succeeded"]
    assert len(world.models.prompts) == 1
    check_all(world.store)


def test_any_other_end_after_inference_comes_before_the_tools(world):
    install(world, saying(Hook.AFTER_INFERENCE, Terminate(Ending(reason=Reason.BEHAVIOR_REQUESTED))))
    play(world)
    assert [call["code"] for call in world.rows("calls")] == ["not_run", "not_run"]
    assert world.tools.ran.total() == 0
    check_all(world.store)


def test_a_stop_while_something_waits_applies_after_it(world):
    install(
        world,
        saying(Hook.AFTER_INFERENCE, Terminate(stopped("mine"))),
        saying(
            Hook.BEFORE_TOOL_EXECUTE,
            SuspendCall(prompt="?"),
            name="b",
            when=lambda c: not c.call.resumed and c.call.arguments["n"] == 0,
        ),
    )
    play(world)
    assert world.row("runs")["status"] == "waiting"
    rounds = world.row("runs")["rounds"]

    answer(world)
    run = world.row("runs")
    assert (run["status"], run["reason"], run["code"], run["rounds"]) == ("done", "stopped", "mine", rounds)
    assert [call["status"] for call in world.rows("calls")] == ["succeeded", "succeeded"]
    assert len(world.models.prompts) == 1
    check_all(world.store)


def test_counters_continue_after_a_suspension(world):
    install(
        world,
        Stops(max_rounds=2),
        saying(
            Hook.BEFORE_TOOL_EXECUTE,
            SuspendCall(prompt="?"),
            name="b",
            when=lambda c: not c.call.resumed and c.rounds == 0,
        ),
    )
    play(world, rounds_of(1, rounds=5))
    answer(world)

    run = world.row("runs")
    assert (run["code"], run["rounds"]) == ("max_rounds", 2)
    check_all(world.store)


def test_results_are_amended_and_added_to(world):
    install(world, saying(Hook.AFTER_TOOL_EXECUTE, AmendResult("***"), AddMessage("Mind the gap.")))
    play(world, rounds_of(1))
    assert result_texts(world.models.prompts[-1]) == ["***\n\nMind the gap."]


@pytest.mark.parametrize(
    "hook",
    [Hook.RUN_START, Hook.BEFORE_INFERENCE, Hook.AFTER_INFERENCE, Hook.BEFORE_TOOL_EXECUTE, Hook.AFTER_TOOL_EXECUTE],
)
def test_a_plugin_that_raises_ends_the_run_with_an_error_that_names_it(world, hook):
    def explode(self, context):
        raise ZeroDivisionError

    install(world, type("Broken", (Plugin,), {"id": "broken", hook.value: explode})())
    assert play(world, rounds_of(1))["disposition"] == "failed"

    run = world.row("runs")
    assert (run["reason"], run["code"]) == ("error", "plugin")
    assert "'broken'" in run["detail"]
    check_all(world.store)


def test_a_plugin_that_hangs_ends_the_run_as_well(world):
    from threading import Event

    never = Event()
    install(
        world,
        type("Slow", (Plugin,), {"id": "slow", "before_inference": lambda self, context: never.wait(20)})(),
        hook_seconds=0.1,
    )
    play(world)
    never.set()
    assert "hung" in world.row("runs")["detail"]


def test_what_goes_wrong_at_the_end_of_a_run_changes_nothing(world):
    def explode(self, context):
        raise ZeroDivisionError

    install(world, type("Broken", (Plugin,), {"id": "broken", "run_end": explode})())
    assert play(world)["disposition"] == "answered"


def test_state_is_kept_for_the_thread_the_run_and_the_call(world):
    seen = []

    def count(self, context):
        seen.append((context.noted(Scope.THREAD, "n", 0), context.noted(Scope.RUN, "n", 0)))
        return [SetState(scope=scope, key="n", value=1, merge=Merge.ADD) for scope in (Scope.THREAD, Scope.RUN)]

    install(world, type("Counts", (Plugin,), {"id": "counts", "before_inference": count})())
    play(world, rounds_of(1))
    world.submit("again")
    world.run_dry()

    assert seen == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_sums_of_parallel_calls_add_up_and_an_exclusive_conflict_costs_only_the_later_call(world):
    def note(self, context):
        mine = SetState(scope=Scope.RUN, key="last", value=context.call.arguments["n"])
        return [
            SetState(scope=Scope.RUN, key="sum", value=1, merge=Merge.ADD),
            *([mine] if context.call.arguments["n"] else []),
        ]

    install(world, type("Notes", (Plugin,), {"id": "notes", "after_tool_execute": note})())
    assert play(world, rounds_of(3))["disposition"] == "answered"

    assert [call["code"] for call in world.rows("calls")] == [None, None, "state_conflict"]
    assert {row["key"]: row["value"] for row in world.rows("plugin_state")} == {"sum": 2, "last": 1}
    check_all(world.store)


def test_what_was_noted_is_kept_though_there_is_no_reply(world):
    noted = SetState(scope=Scope.THREAD, key="n", value=1, merge=Merge.ADD)
    install(world, saying(Hook.BEFORE_INFERENCE, noted, Terminate(Ending(reason=Reason.BEHAVIOR_REQUESTED))))
    play(world)
    install(world, saying(Hook.AFTER_INFERENCE, noted))

    def down(prompt):
        raise ModelFailed("down", fault=Fault.SERVER, attempts=())

    world.models.script = down
    world.submit()
    world.run_dry()
    assert [row["value"] for row in world.rows("plugin_state")] == [2]


def test_after_a_call_its_plugins_see_the_arguments_it_was_amended_to(world):
    seen = []

    class Sees(Plugin):
        id = "sees"

        def before_tool_execute(self, context, /):
            return [AmendArguments({"n": 9}), SupplyResult("x")]

        def after_tool_execute(self, context, /):
            seen.append(context.call.arguments)

    install(world, Sees())
    play(world, rounds_of(1))
    assert seen == [{"n": 9}]


@pytest.mark.parametrize("death", range(1, 7))
def test_call_suspends_again_and_the_notes_of_its_plugins_are_recorded_with_it(world, death):
    noted = SetState(scope=Scope.RUN, key="n", value=1)
    again = SuspendCall(prompt="Sure?")
    install(
        world, Permission(ask=["pure"]), saying(Hook.BEFORE_TOOL_EXECUTE, noted, again, when=lambda c: c.call.resumed)
    )
    play(world, rounds_of(1))
    world.die_at = world.commits + death
    with suppress(Died):
        answer(world)

    world.revive()
    questions = world.rows("suspensions")
    assert [row["value"] for row in world.rows("plugin_state") if row["key"] == "n"] == [1] * (len(questions) - 1)


def test_notes_of_a_check_and_notes_after_another_call_of_the_round_conflict(world):
    def noted(number):
        return SetState(scope=Scope.RUN, key="k", value=number)

    at_the_gate = saying(Hook.BEFORE_TOOL_EXECUTE, noted(0), name="a", when=lambda c: c.call.arguments["n"] == 0)
    after = saying(Hook.AFTER_TOOL_EXECUTE, noted(1), name="b", when=lambda c: c.call.arguments["n"] == 1)
    install(world, at_the_gate, after)
    play(world)

    assert [call["code"] for call in world.rows("calls")] == [None, "state_conflict"]
    assert [row["value"] for row in world.rows("plugin_state")] == [0]


def test_of_two_notes_under_one_key_the_later_wins(world):
    noted = [SetState(scope=Scope.RUN, key="k", value=value) for value in ("before the reply", "at the gate")]
    install(
        world,
        saying(Hook.BEFORE_INFERENCE, noted[0], name="a", when=lambda c: c.rounds == 0),
        saying(Hook.BEFORE_TOOL_EXECUTE, noted[1], name="b"),
    )
    play(world, rounds_of(1))

    assert [row["value"] for row in world.rows("plugin_state")] == ["at the gate"]


@pytest.mark.parametrize("value", ["a\x00b", "half \ud800", ["\x00"], {"k": "\x00"}, ("\x00",)])
def test_what_no_database_keeps_of_a_note_is_replaced(world, value):
    install(world, saying(Hook.BEFORE_INFERENCE, SetState(scope=Scope.RUN, key="k", value=value)))
    turn = play(world, rounds_of(1))

    assert turn["disposition"] == "answered"
    assert "\x00" not in str(world.row("plugin_state")["value"])


@pytest.mark.parametrize("key", ["k" * 201, "a\x00", " "])
def test_a_note_needs_a_key_that_can_be_kept(key):
    with pytest.raises(ValueError, match="key"):
        SetState(scope=Scope.RUN, key=key, value=1)
