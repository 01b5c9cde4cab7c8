"""Conformance, second part: mixed rounds, tools and cancellation.

The numbers are those of the scenarios of the run-lifecycle design this one started from; see docs/adr/0016.
"""

from __future__ import annotations

import asyncio

import pytest

from chordage import tool
from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import ToolMode
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.model import Reply, StopReason, ToolAsk, UserSays
from chordage.orchestrator.core.phases import Hook, Scope
from chordage.orchestrator.core.plugin_state import Merge, SetState
from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.orchestrator.core.transcript import AWAITING
from chordage.orchestrator.core.verdicts import Terminate
from chordage.orchestrator.gateways.tools.declare import declared_on
from chordage.orchestrator.gateways.tools.toolbox import ToolBox
from support.fakes import asking, rounds_of, spoken
from support.hooks import after_tool, before_tool, install, plugin_for
from support.invariants import check_all
from support.one_turn import change_agent, column, kinds, play, result_texts
from support.questions import ASK, GATE, approve, asks_of
from support.world import Died, Header


def test_when_the_only_call_waits_the_model_is_called_once_and_the_run_waits(world):  # 11
    world.tools.asks = asks_of(0)
    play(world, script=rounds_of(1))
    assert (len(world.models.prompts), world.row("runs")["status"], column(world, "status")) == (
        1,
        "waiting",
        ["suspended"],
    )
    assert world.inbox()[0]["call_id"] == world.row("calls")["id"]


@pytest.mark.parametrize("stream", [True, False])
def test_of_three_calls_the_middle_one_waits_and_the_others_have_results(world, stream):  # 12
    change_agent(world, stream=stream)
    world.tools.asks = asks_of(1)
    play(world, script=rounds_of(3))
    assert (len(world.models.prompts), world.row("runs")["status"]) == (2, "waiting")
    assert result_texts(world) == ["pure0", AWAITING, "pure2"]
    assert column(world, "status") == ["succeeded", "suspended", "succeeded"]


def test_every_call_of_a_round_is_checked_even_if_an_earlier_one_waits(world):  # 14
    seen = []

    def say(context):
        seen.append(context.call.arguments["n"])
        return [GATE] if context.call.arguments["n"] == 0 else None

    play(world, before_tool(say), script=rounds_of(3))
    assert (seen, [order.arguments["n"] for order in world.tools.orders]) == ([0, 1, 2], [1, 2])


def test_tool_may_suspend_itself_and_its_question_is_completed(world):  # 16
    world.tools.asks = asks_of(0)
    play(world, script=rounds_of(1))
    (row,) = world.inbox()
    found = {name: row[name] for name in ("why", "tool", "resume_mode", "on_expiry", "expires_at")}
    assert found == {
        "why": "tool", "tool": "pure", "resume_mode": "replay_tool_call", "on_expiry": "deny", "expires_at": None
    }  # fmt: skip


def test_bad_arguments_are_an_error_and_not_a_question(world):  # 17
    replies = iter([asking(("pure", {"n": "x"})), spoken("ok")])
    play(world, before_tool(GATE), script=lambda prompt: next(replies))
    assert (column(world, "code"), world.rows("suspensions")) == (["invalid_arguments"], [])


def test_end_before_inference_waits_for_an_open_question(world):  # 19
    end = Terminate(Ending(reason=Reason.BEHAVIOR_REQUESTED))
    world.tools.asks = asks_of(1)
    play(world, plugin_for(Hook.BEFORE_INFERENCE, lambda context: [end] if context.rounds else None))
    run = world.row("runs")
    assert (run["status"], run["reason"], len(world.inbox())) == ("waiting", "suspended", 1)
    world.tools.asks = lambda order: None
    approve(world, world.inbox()[0])
    assert (world.row("runs")["reason"], len(world.models.prompts)) == ("behavior_requested", 1)
    check_all(world.store)


def test_call_suspends_three_times_with_three_questions_and_then_succeeds(world):  # 21
    world.tools.asks = lambda order: ASK if len(world.tools.orders) < 4 else None
    play(world, script=rounds_of(1))
    for _ in range(3):
        approve(world, world.inbox()[0])
    assert len({row["id"] for row in world.rows("suspensions", status="settled")}) == 3
    assert (column(world, "status"), result_texts(world)) == (["succeeded"], ["pure0"])


def test_unknown_tool_is_an_error_and_the_run_continues(world):  # 74
    turn = play(world, script=rounds_of(1, tool="nobody"))
    assert (column(world, "code"), turn["disposition"]) == (["unknown_tool"], "answered")
    assert "nobody" in result_texts(world)[0]


@pytest.mark.parametrize("mode", list(ToolMode))
def test_check_sees_the_same_earlier_state_for_every_call_of_a_round(world, mode):  # 76
    change_agent(world, tool_mode=mode)
    seen = []

    def note(context):
        seen.append(context.noted(Scope.RUN, "n", 0))
        return [SetState(scope=Scope.RUN, key="n", value=1, merge=Merge.ADD)]

    play(world, before_tool(note), script=rounds_of(3, rounds=2))
    assert seen == [0, 0, 0, 3, 3, 3]


def test_sequential_call_sees_the_notes_of_those_before_it(world):  # 76
    change_agent(world, tool_mode=ToolMode.SEQUENTIAL)
    seen = []

    def note(context):
        seen.append(context.noted(Scope.RUN, "n", 0))
        return [SetState(scope=Scope.RUN, key="n", value=1, merge=Merge.ADD)]

    play(world, after_tool(note), script=rounds_of(3))
    assert seen == [0, 1, 2]


@pytest.mark.parametrize(
    ("key", "codes"), [("k{n}", [None, None]), ("k", [None, "state_conflict"])], ids=["disjoint", "one key"]
)
def test_notes_of_parallel_calls_are_all_kept_and_a_conflict_costs_the_later_call(world, key, codes):  # 77
    def note(context):
        n = context.call.arguments["n"]
        return [SetState(scope=Scope.RUN, key=key.format(n=n), value=n)]

    turn = play(world, after_tool(note))
    assert (column(world, "code"), turn["disposition"]) == (codes, "answered")
    assert {row["key"]: row["value"] for row in world.rows("plugin_state")} == (
        {"k0": 0, "k1": 1} if codes[1] is None else {"k": 0}
    )
    check_all(world.store)


def test_two_calls_of_one_tool_in_a_round_have_results_of_their_own(world):  # 79
    play(world, script=rounds_of(2))
    assert (column(world, "tool"), result_texts(world)) == (["pure", "pure"], ["pure0", "pure1"])


def test_a_tool_over_its_time_fails_with_a_mark_of_its_own(world):  # 81
    @tool(timeout=0.05, effect="pure")
    async def endless() -> None:
        await asyncio.Event().wait()

    box = ToolBox(lambda agent: {"endless": declared_on(endless)})
    object.__setattr__(world.runtime, "tools", box)
    replies = iter([asking(("endless", {})), spoken("ok")])
    turn = play(world, script=lambda prompt: next(replies))
    assert (column(world, "code"), turn["disposition"]) == (["timeout"], "answered")


def test_results_keep_the_order_of_the_calls_and_events_carry_their_ids(world):  # 82
    world.models.script = rounds_of(3)
    world.submit()
    while not any(isinstance(intent, Header) for intent in world.pending):
        world.deliver(world.pending.pop(0))
    world.pending.reverse()
    world.run_dry()
    assert [order.arguments["n"] for order in world.tools.orders] == [2, 1, 0]
    assert result_texts(world) == ["pure0", "pure1", "pure2"]
    ids = column(world, "id")
    assert [data["call"] for _, kind, data in world.events.seen if kind == "tool.settled"] == ids[::-1]
    (committed,) = world.rows("journal", kind="ToolResultsCommitted")
    assert [call["id"] for call in committed["body"]["calls"]] == ids


def test_malformed_arguments_do_not_run_and_the_model_gets_an_error(world):  # 102
    ask = ToolAsk(id="a", name="pure", arguments=None, raw='{"n": 1')
    broken = Reply(text="", asks=(ask,), stop=StopReason.TOOL_USE, model="fake")
    replies = iter([broken, spoken("ok")])
    play(world, script=lambda prompt: next(replies))
    assert (column(world, "code"), world.tools.ran.total()) == (["invalid_arguments"], 0)
    assert '{"n": 1' in result_texts(world)[0]


def test_a_result_whose_commit_fails_is_not_announced(world):  # 91
    def fail_next(context):
        world.die_at, world.die_before = world.commits + 1, True
        return [SetState(scope=Scope.CALL, key="k", value=1)]

    def settled():
        return [kind for _, kind, _ in world.events.seen if kind == "tool.settled"]

    with pytest.raises(Died):
        play(world, after_tool(fail_next), script=rounds_of(1))
    world.revive()
    assert (settled(), column(world, "status"), world.rows("plugin_state")) == ([], ["new"], [])
    install(world)
    world.forget_the_dead()
    world.recover()
    assert (settled(), result_texts(world)) == (["tool.settled"], ["pure0"])
    check_all(world.store)


def test_a_cancel_while_tools_run_keeps_the_reply_and_leaves_one_note(world):  # 84
    world.models.script = rounds_of(2)
    turn = world.submit("first")
    world.tools.before = lambda order: stages.cancel_turn(world.runtime, turn, "enough")
    world.run_dry()
    assert kinds(world) == ["UserMessage", "AssistantTurnCommitted", "RunInterrupted", "RunFinished"]
    assert column(world, "status") == ["cancelled"] * 2
    world.submit("second")
    world.run_dry()
    texts = [said.text for said in world.models.prompts[-1].said if isinstance(said, UserSays)]
    assert [text for text in texts if "enough" in text] == [texts[1]]
    check_all(world.store)


def test_a_cancel_names_a_turn_and_nothing_else(world):  # 86
    turn = world.submit()
    for other in ("t1", "nobody"):
        with pytest.raises(NotFound):
            stages.cancel_turn(world.runtime, other)
    assert [stages.cancel_turn(world.runtime, turn)[0] for _ in range(2)] == [True, False]
    assert world.row("turns")["disposition"] == "cancelled"


def test_a_reply_that_comes_after_the_end_is_not_written(world):  # 94
    turn = world.submit()
    world.models.before_reply = lambda prompt: stages.cancel_turn(world.runtime, turn, "enough")
    world.run_dry()
    assert kinds(world) == ["UserMessage", "RunInterrupted", "RunFinished"]
    assert (world.row("turns")["disposition"], world.rows("calls")) == ("cancelled", [])
    check_all(world.store)
