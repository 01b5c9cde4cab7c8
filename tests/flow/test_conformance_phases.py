"""Conformance, third part: messages that come meanwhile, phases, gates and stops.

The numbers are those of the scenarios of the run-lifecycle design this one started from; see docs/adr/0016.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.phases import Hook, Scope
from chordage.orchestrator.core.plugin_state import Merge, SetState
from chordage.orchestrator.core.transcript import AWAITING
from chordage.orchestrator.core.verdicts import (
    AddContextMessage,
    Block,
    Exclude,
    SupplyResult,
)
from chordage.orchestrator.plugins.base import OptionRefused, Plugin
from chordage.orchestrator.plugins.plugin_set import PluginSet
from chordage.orchestrator.plugins.stops import Stops
from support.fakes import asking, rounds_of, spoken
from support.hooks import before_tool, plugin_for
from support.one_turn import column, kinds, play, result_texts
from support.questions import GATE, approve, asks_of


def test_a_message_keeps_what_the_round_before_has_finished_and_runs_nothing_again(world):  # 56
    world.tools.asks = asks_of(1)
    play(world)
    runs = {order.call_id for order in world.tools.orders}
    play(world, script=rounds_of(0, rounds=0), text="never mind")
    assert (result_texts(world)[0], AWAITING in result_texts(world)) == ("pure0", False)
    assert (world.inbox(), {order.call_id for order in world.tools.orders}) == ([], runs)
    assert column(world, "status") == ["succeeded", "cancelled"]


def test_what_was_noted_for_a_call_is_not_there_in_the_next_run(world):  # 57
    seen = []

    def note(context):
        seen.append(context.noted(Scope.CALL, "k"))
        return [SetState(scope=Scope.CALL, key="k", value=1)]

    play(world, before_tool(note), script=rounds_of(1))
    play(world, text="again", script=rounds_of(1))
    assert seen == [None, None]


@pytest.mark.parametrize(("key", "turns"), [("k", 1), (None, 2)])
def test_message_with_a_key_is_one_turn_and_one_without_is_announced_once(world, key, turns):  # 59
    world.models.script = rounds_of(0, rounds=0)
    for _ in range(2):
        world.submit(dedupe_key=key)
        world.run_dry()
    assert (len(world.rows("turns")), kinds(world).count("UserMessage")) == (turns, turns)


def test_phases_come_in_their_order_and_a_run_begins_and_ends_once_though_it_waited(world):  # 61
    seen = []

    def listener(hook):
        return lambda self, context: seen.append(hook.value)

    ear = {hook.value: listener(hook) for hook in Hook}
    world.tools.asks = asks_of(0)
    play(world, type("Ear", (Plugin,), {"id": "ear", **ear})(), script=rounds_of(1))
    world.tools.asks = lambda order: None
    approve(world, world.inbox()[0])
    step = ["step_start", "before_inference", "after_inference", "step_end"]
    tools = ["before_tool_execute", "before_tool_execute", "after_tool_execute"]
    assert seen == ["run_start", *step, *tools, *step, "run_end"]


def test_plugins_run_in_declared_order_and_else_as_listed(world):  # 62
    seen = []

    def noting_plugin(name, **declared):
        return plugin_for(Hook.RUN_START, lambda context: seen.append(name), name, **declared)

    play(
        world,
        noting_plugin("d", after=("b",)),
        noting_plugin("c"),
        noting_plugin("b"),
        noting_plugin("a", before=("c",)),
    )
    assert seen == ["b", "d", "a", "c"]


@pytest.mark.parametrize(("names", "why"), [("ab", "circle"), ("aa", "2 times")])
def test_a_circle_of_plugins_and_one_id_twice_are_refused(names, why):  # 62
    with pytest.raises(RoomError, match=why):
        PluginSet([plugin_for(Hook.RUN_START, GATE, name, before=tuple(set("ab") - {name})) for name in names])


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_block_beats_suspend_beats_a_supplied_result_in_any_order(world, order):  # 64
    said = [Block("no"), GATE, SupplyResult("cached")]
    play(world, *(before_tool(said[place], f"p{place}") for place in order), script=rounds_of(1))
    assert (column(world, "code"), world.inbox(), result_texts(world)) == (["blocked"], [], ["no"])
    play(world, *(before_tool(said[place], f"p{place}") for place in order if place), script=rounds_of(1), text="again")
    assert len(world.inbox()) == 1


def test_of_two_equal_verdicts_the_same_is_kept_in_any_order(world):  # 64
    play(world, before_tool(Block("of b"), "b"), before_tool(Block("of a"), "a"), script=rounds_of(1))
    assert result_texts(world) == ["of a"]


def test_approved_call_is_checked_again_with_the_current_state(world):  # 66
    def judge(context):
        if context.call.resumed is None:
            return [GATE]
        if context.noted(Scope.RUN, "spent"):
            return [Block("all spent")]
        return [SetState(scope=Scope.RUN, key="spent", value=1)]

    both = asking(("pure", {"n": 0}), ("pure", {"n": 1}))
    play(world, before_tool(judge), script=lambda prompt: spoken("ok") if prompt.said[1:] else both)
    for row in world.inbox():
        approve(world, row)
    assert (column(world, "code"), result_texts(world)) == ([None, "blocked"], ["pure0", "all spent"])
    assert world.tools.ran.total() == 1


@pytest.mark.parametrize(
    ("cooldown", "changes", "shown"),
    [(0, False, [1, 1, 1]), (2, False, [1, 0, 1]), (9, False, [1, 0, 0]), (9, True, [1, 1, 1])],
)
def test_context_message_keeps_its_cooldown_unless_its_text_changes(world, cooldown, changes, shown):  # 67
    def say(context):
        return [AddContextMessage(key="k", text=f"note {context.rounds if changes else ''}", cooldown=cooldown)]

    play(world, plugin_for(Hook.BEFORE_INFERENCE, say), script=rounds_of(1, rounds=2))
    assert [prompt.system.count("note") for prompt in world.models.prompts] == shown


def test_context_messages_of_several_plugins_add_up(world):  # 67
    said = [plugin_for(Hook.BEFORE_INFERENCE, AddContextMessage(key="k", text=f"of {name}"), name) for name in "ab"]
    play(world, *said)
    assert world.models.prompts[0].system == "of a\n\nof b"


def test_what_is_noted_in_one_step_is_there_in_the_next(world):  # 69
    seen = []

    def count(context):
        seen.append(context.noted(Scope.RUN, "n", 0))
        return [SetState(scope=Scope.RUN, key="n", value=seen[-1] + 1)]

    play(world, plugin_for(Hook.BEFORE_INFERENCE, count), script=rounds_of(1, rounds=2))
    assert seen == [0, 1, 2]


def test_tool_withheld_from_the_model_is_refused_when_it_is_called(world):  # 71
    play(world, plugin_for(Hook.BEFORE_INFERENCE, Exclude(["pure"])), script=rounds_of(1))
    assert "pure" not in {offer.name for offer in world.models.prompts[0].offers}
    assert (column(world, "code"), world.tools.ran.total()) == (["out_of_scope"], 0)


@pytest.mark.parametrize(("merge", "stands"), [(Merge.ADD, 3), (Merge.EXCLUSIVE, 2)])
def test_what_two_plugins_note_under_one_key_is_summed_or_that_of_the_later_one(world, merge, stands):  # 72
    notes = {name: SetState(scope=Scope.RUN, key="n", value=value, merge=merge) for name, value in [("z", 1), ("a", 2)]}
    said = [plugin_for(Hook.BEFORE_INFERENCE, note, name) for name, note in notes.items()]
    play(world, *said, script=rounds_of(0, rounds=0))
    assert world.row("plugin_state")["value"] == stands


@pytest.mark.parametrize(
    ("stops", "code", "replies"),
    [
        ({"max_rounds": 2}, "max_rounds", 2),
        ({"token_budget": 18}, "token_budget", 2),  # a reply that asks costs 9
        ({"token_budget": 19}, "token_budget", 3),
        ({"loop_detection": 3}, "loop_detection", 3),
        ({"stop_on_tool": "pure"}, "stop_on_tool", 1),
        ({"content_match": "done"}, "content_match", 5),
        ({"stop_on_tool": "pure", "max_rounds": 1}, "max_rounds", 1),  # the first that holds
        ({}, None, 5),
    ],
    ids=str,
)
def test_each_stop_holds_at_its_boundary_and_is_off_where_it_is_left_out(world, stops, code, replies):  # 97
    world.models.before_reply = lambda prompt: world.clock.pass_by(5)
    play(world, Stops(**stops), script=rounds_of(1, rounds=4))
    assert (world.row("runs")["code"], len(world.models.prompts)) == (code, replies)


def test_rounds_of_nothing_but_errors_stop_the_run(world):  # 97
    play(world, Stops(consecutive_errors=2), script=rounds_of(1, rounds=4, tool="nobody"))
    assert (world.row("runs")["code"], len(world.models.prompts)) == ("consecutive_errors", 3)


def test_stops_count_each_run_from_zero(world):  # 97
    stops = Stops(max_rounds=2, token_budget=18, loop_detection=3)
    for text in ("one", "two"):
        assert play(world, stops, script=rounds_of(1, rounds=1), text=text)["disposition"] == "answered"
    assert [run["reason"] for run in world.rows("runs")] == ["natural_end"] * 2


@pytest.mark.parametrize("name", ["max_rounds", "timeout", "token_budget", "consecutive_errors", "loop_detection"])
def test_a_stop_of_zero_is_refused_rather_than_off(name):  # 97
    with pytest.raises(OptionRefused, match="leave it out"):
        Stops(**{name: 0})
