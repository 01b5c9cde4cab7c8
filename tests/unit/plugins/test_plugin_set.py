"""Who is asked, and what becomes of a plugin that does not answer as it should."""

from __future__ import annotations

import contextvars
import threading

import pytest
import structlog

from chordage.orchestrator.core.phases import Hook, Scope
from chordage.orchestrator.core.plugin_state import SetState
from chordage.orchestrator.core.verdicts import AmendResult, Block
from chordage.orchestrator.plugins.base import Plugin, PluginFailed
from chordage.orchestrator.plugins.plugin_set import PluginSet
from chordage.orchestrator.system import user_code

GATE = Hook.BEFORE_TOOL_EXECUTE
CALLER = contextvars.ContextVar("caller", default="nobody")


def plugin(answer, *, name="mine", hook=GATE):
    """One whose hook does what `answer` does."""
    return type("Mine", (Plugin,), {"id": name, hook.value: lambda _self, context: answer(context)})()


def failure(answer, moment, *, hook=GATE, seconds=5.0):
    with pytest.raises(PluginFailed) as caught:
        PluginSet([plugin(answer, hook=hook)], hook_seconds=seconds).ask(hook, moment(hook))
    assert (caught.value.plugin, caught.value.hook) == ("mine", hook)
    return str(caught.value)


def test_plugins_run_in_order_and_their_verdicts_carry_their_names(moment):
    first = plugin(lambda _: [Block("1"), Block("2")], name="first")
    second = plugin(lambda context: iter([Block(context.call.tool)]), name="second")

    assert PluginSet([first, second]).ask(GATE, moment(GATE)) == [
        ("first", Block("1")),
        ("first", Block("2")),
        ("second", Block("search")),
    ]


@pytest.mark.parametrize("nothing", [None, (), []])
def test_no_opinion_is_an_opinion(nothing, moment):
    assert PluginSet([plugin(lambda _: nothing)]).ask(GATE, moment(GATE)) == []


@pytest.mark.parametrize("hook", Hook)
def test_each_hook_runs_in_its_phase_alone(hook, moment):
    plugins = PluginSet([plugin(lambda _: [SetState(scope=Scope.RUN, key="k", value=1)], hook=hook)])

    assert [one for one in Hook if plugins.listens(one)] == [hook]
    assert [one for one in Hook if plugins.ask(one, moment(one))] == [hook]


def test_plugin_that_overrides_nothing_starts_no_thread(moment, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda *_: pytest.fail("a thread was started"))
    idle = type("Idle", (Plugin,), {"id": "idle"})()

    assert all(PluginSet(plugins).ask(hook, moment(hook)) == [] for hook in Hook for plugins in ([], [idle]))


def test_hook_inherited_from_a_custom_base_runs(moment):
    base = type(plugin(lambda _: [Block("no")]))
    heir = type("Heir", (base,), {"id": "heir"})()

    assert PluginSet([heir]).ask(GATE, moment(GATE)) == [("heir", Block("no"))]


def test_plugin_that_raises_is_reported_with_its_error(moment):
    def answer(_context):
        raise KeyError("colour")

    assert failure(answer, moment) == "plugin 'mine', hook before_tool_execute: raised KeyError: 'colour'"


def test_a_plugin_that_ends_the_program_ends_only_itself(moment):
    def answer(_context):
        raise SystemExit(3)

    assert "raised SystemExit: 3" in failure(answer, moment)


def test_generator_that_raises_on_the_way_is_reported_too(moment):
    def answer(_context):
        yield Block("no")
        raise OSError("gone")

    assert "raised OSError: gone" in failure(answer, moment)


def test_a_plugin_that_hangs_is_left_behind(moment):
    never = threading.Event()

    said = failure(lambda _: never.wait(), moment, seconds=0.02)

    never.set()
    assert "before_tool_execute: hung: no answer after 0.02 s" in said


async def answers_late(_context):
    return [Block("no")]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda _: Block("no"), "returned a single Block; return a list of verdicts"),
        (lambda _: 5, "returned 5; return a list of verdicts, or None"),
        (lambda _: "no", "returned a list with 'n' in it, which is no verdict"),
        (lambda _: [Block("no"), None], "returned a list with None in it, which is no verdict"),
        (lambda _: [Block], "which is no verdict"),
        (answers_late, "is async, and hooks are not awaited; write a plain function"),
        (lambda _: [Block(" ")], "raised ValueError: a block needs a reason"),
        (lambda _: [AmendResult("x")], "plugin 'mine' gave AmendResult in before_tool_execute, where it means nothing"),
    ],
)
def test_invalid_return_value_is_reported(answer, said, moment):
    assert said in failure(answer, moment)


def test_at_the_end_of_a_run_failures_are_logged_and_the_other_plugins_run(moment):
    def broken(_context):
        raise ValueError("oh")

    note = SetState(scope=Scope.THREAD, key="k", value=1)
    plugins = PluginSet(
        [
            plugin(broken, name="a", hook=Hook.RUN_END),
            plugin(lambda _: [Block("no")], name="b", hook=Hook.RUN_END),
            plugin(lambda _: [note], name="c", hook=Hook.RUN_END),
        ]
    )
    with structlog.testing.capture_logs() as lines:
        given = plugins.ask(Hook.RUN_END, moment(Hook.RUN_END))

    assert given == [("c", note)]
    assert [(line["plugin"], line["run"]) for line in lines] == [("a", "r"), ("b", "r")]
    assert "raised ValueError: oh" in lines[0]["error"]


def test_a_hook_sees_the_context_variables_of_its_caller(moment):
    token = CALLER.set("somebody")
    try:
        given = PluginSet([plugin(lambda _: [Block(CALLER.get())])]).ask(GATE, moment(GATE))
    finally:
        CALLER.reset(token)

    assert given == [("mine", Block("somebody"))]


def test_exception_raised_into_the_waiting_caller_is_not_the_plugins_failure(moment, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(user_code, "within", interrupted)
    with pytest.raises(KeyboardInterrupt):
        PluginSet([plugin(lambda _: None)]).ask(GATE, moment(GATE))


def test_a_set_knows_the_order_of_its_plugins():
    late = type("Late", (Plugin,), {"id": "late", "after": ("early",)})()
    early = type("Early", (Plugin,), {"id": "early"})()

    assert PluginSet([late, early]).ids == ("early", "late")
