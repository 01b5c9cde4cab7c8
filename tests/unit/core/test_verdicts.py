"""Many verdicts become one outcome, in any order of the plugins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core import verdicts as verdicts_
from chordage.orchestrator.core.phases import Scope
from chordage.orchestrator.core.plugin_state import SetState
from chordage.orchestrator.core.reasons import stopped
from chordage.orchestrator.core.verdicts import (
    AddContextMessage,
    AddMessage,
    Aftermath,
    AmendArguments,
    AmendResult,
    Block,
    Exclude,
    Gate,
    GateCode,
    IncludeOnly,
    Inference,
    MisplacedVerdict,
    OverrideModel,
    OverrideParams,
    SupplyResult,
    SuspendCall,
    Terminate,
)

ORDER = ("c", "a", "b")

plugins = st.sampled_from(ORDER)
words = st.sampled_from(["x", "y", "z"])
tools = st.frozensets(words)
amends = st.builds(AmendArguments, st.dictionaries(words, st.integers(0, 2), min_size=1))
blocks = st.builds(Block, words)
asks = st.builds(SuspendCall, prompt=words)
results = st.builds(SupplyResult, words)
params = st.builds(OverrideParams, st.dictionaries(words, st.integers(0, 2)))
notes = st.builds(AddContextMessage, key=words, text=words)
filters = st.one_of(st.builds(IncludeOnly, tools), st.builds(Exclude, tools))
ends = st.builds(Terminate, st.builds(stopped, words))
changes = st.one_of(filters, params, notes, ends, st.builds(OverrideModel, words))


def all_of(*verdicts):
    return st.lists(st.tuples(plugins, st.one_of(*verdicts)), max_size=6)


def shuffled(lists):
    return lists.flatmap(lambda given: st.tuples(st.just(given), st.permutations(given)))


@given(shuffled(all_of(amends, blocks, asks, results)))
def test_combined_verdict_is_the_same_in_any_order(both):
    one, other = both
    assert verdicts_.gate(one) == verdicts_.gate(other)


@given(shuffled(all_of(changes)))
def test_an_inference_is_the_same_in_any_order(both):
    one, other = both
    assert verdicts_.inference(one, ORDER) == verdicts_.inference(other, ORDER)


@given(shuffled(all_of(st.builds(AmendResult, words), st.builds(AddMessage, words))))
def test_an_aftermath_is_the_same_in_any_order(both):
    one, other = both
    assert verdicts_.aftermath(one, ORDER) == verdicts_.aftermath(other, ORDER)


@given(all_of(amends, blocks, asks, results))
def test_the_strictest_verdict_holds(verdicts):
    gate = verdicts_.gate(verdicts)
    kinds = [type(verdict) for _, verdict in verdicts]
    strictest = next((kind for kind in (Block, SuspendCall, SupplyResult) if kind in kinds), type(None))

    assert isinstance(gate.verdict, strictest) or gate.code is GateCode.AMENDS_CONFLICT
    assert (gate.code is not None) == isinstance(gate.verdict, Block)


@given(all_of(blocks, asks, results), blocks)
def test_block_cannot_be_softened(verdicts, block):
    assert isinstance(verdicts_.gate([("a", block), *verdicts]).verdict, Block)


def test_call_without_a_verdict_runs_unchanged():
    assert verdicts_.gate([]) == Gate()
    assert verdicts_.gate([]).arguments({"q": 1}) == {"q": 1}


def test_of_two_equal_verdicts_the_alphabetically_first_plugin_counts():
    given = [("b", Block("because of b")), ("a", Block("because of a")), ("c", SuspendCall(prompt="?"))]

    assert verdicts_.gate(given) == Gate(verdict=Block("because of a"), plugin="a", code=GateCode.BLOCKED)


def test_amendments_of_several_plugins_are_put_together():
    gate = verdicts_.gate([("b", AmendArguments({"y": 2, "z": 3})), ("a", AmendArguments({"x": 1, "z": 3}))])

    assert gate.verdict is None
    assert gate.arguments({"x": 0, "w": 0}) == {"w": 0, "x": 1, "y": 2, "z": 3}


def test_amendments_that_contradict_each_other_fail_the_call():
    gate = verdicts_.gate([("b", AmendArguments({"x": True})), ("a", AmendArguments({"x": 1})), ("c", a_question())])

    assert gate.code is GateCode.AMENDS_CONFLICT
    assert gate.verdict == Block("plugins a and b set the argument 'x' to different values")
    assert gate.amended == {}


def a_question():
    return SuspendCall(prompt="may it?")


def test_what_waits_for_a_decision_waits_with_its_amended_arguments():
    gate = verdicts_.gate([("a", AmendArguments({"x": 1})), ("b", a_question())])

    assert gate == Gate(verdict=a_question(), plugin="b", amended={"x": 1})


@given(st.lists(st.tuples(plugins, filters), max_size=6), words)
def test_a_tool_is_offered_when_no_plugin_objects(verdicts, tool):
    lists = [v.tools for _, v in verdicts if isinstance(v, IncludeOnly)]
    hidden = [v.tools for _, v in verdicts if isinstance(v, Exclude)]
    wanted = all(tool in names for names in lists) and not any(tool in names for names in hidden)

    assert verdicts_.inference(verdicts, ORDER).offers(tool) == wanted


def test_an_empty_list_of_tools_is_no_tools():
    assert not verdicts_.inference([("a", IncludeOnly([]))], ORDER).offers("x")
    assert verdicts_.inference([], ORDER) == Inference()


def test_of_overrides_the_last_plugin_in_the_declared_order_wins_field_by_field():
    changed = verdicts_.inference(
        [
            ("b", OverrideParams({"temperature": 1})),
            ("c", OverrideParams({"temperature": 0, "seed": 7})),
            ("c", OverrideModel("small")),
            ("a", OverrideModel("big")),
        ],
        ORDER,
    )

    assert changed.params == {"temperature": 1, "seed": 7}
    assert changed.model == "big"


def test_one_plugin_is_enough_to_end_a_run():
    given = [("b", OverrideModel("m")), ("b", Terminate(stopped("second"))), ("a", Terminate(stopped("first")))]

    assert verdicts_.inference(given, ORDER).ending == stopped("first")
    assert verdicts_.after_inference([("b", Terminate(stopped("enough")))]) == stopped("enough")
    assert verdicts_.after_inference([]) is None


def test_results_are_amended_by_the_last_and_added_to_by_all():
    given = [("a", AddMessage("from a")), ("b", AmendResult("b's")), ("c", AmendResult("c's")), ("c", AddMessage("c"))]

    assert verdicts_.aftermath(given, ORDER) == Aftermath(content="b's", messages=("c", "from a"))
    assert verdicts_.aftermath([], ORDER) == Aftermath()


def test_notes_come_in_the_declared_order():
    def note(value):
        return SetState(scope=Scope.RUN, key="k", value=value)

    updates = verdicts_.updates([("a", note(1)), ("b", note(2)), ("c", note(0)), ("a", Block("no"))], ORDER)

    assert [update.value for update in updates] == [0, 1, 2]


@pytest.mark.parametrize(
    "fold",
    [
        verdicts_.gate,
        verdicts_.after_inference,
        lambda given: verdicts_.inference(given, ORDER),
    ],
)
def test_a_verdict_of_another_phase_is_no_verdict(fold):
    with pytest.raises(MisplacedVerdict, match="plugin 'a' gave AmendResult in "):
        fold([("a", AmendResult("x"))])


def test_a_block_comes_too_late_when_the_tool_has_run():
    with pytest.raises(MisplacedVerdict, match="after_tool_execute takes AddMessage, AmendResult, SetState"):
        verdicts_.aftermath([("a", Block("no"))], ORDER)
