"""What is around each tool call: a context manager of the team, and Django's connections where there is a Django."""

from __future__ import annotations

import sys
import threading
import types
from contextlib import contextmanager

import pytest

from chordage import Context, tool
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.channels import Outgoing, Polled
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.channels.guarding import GuardedChannel
from chordage.orchestrator.gateways.tools.attempt import NamedAround
from chordage.orchestrator.gateways.tools.declare import declared_on
from chordage.orchestrator.gateways.tools.toolbox import ToolBox
from chordage.orchestrator.system import user_code

AGENT = AgentSpec(name="tester", model="none")
SEEN: list[tuple] = []


@contextmanager
def recording(context):
    SEEN.append(("enter", context.call_id, context.attempt, threading.get_ident()))
    try:
        yield
    except BaseException as error:
        SEEN.append(("raised", type(error).__name__))
        raise
    finally:
        SEEN.append(("leave", threading.get_ident()))


@contextmanager
def swallowing(_context):
    try:
        yield
    except BaseException:
        SEEN.append(("swallowed",))


def not_a_manager(_context):
    yield


@tool(effect="pure", retries=1, retry_on=ConnectionError)
def flaky(times: list[int], ctx: Context) -> int:
    SEEN.append(("tool", threading.get_ident()))
    if ctx.attempt in times:
        raise ConnectionError("gone")
    return 1


@tool(effect="pure")
async def patient() -> int:
    SEEN.append(("tool", threading.get_ident()))
    return 2


@tool(effect="idempotent")
def asking(ctx: Context) -> str:
    ctx.suspend("May I?")


@pytest.fixture(autouse=True)
def nothing_seen():
    SEEN.clear()


@pytest.fixture
def call(bench):
    def run(function, around, **arguments):
        known = declared_on(function)
        box = ToolBox(lambda _agent: {known.name: known}, around=NamedAround(f"{__name__}:{around}"))
        return box.run(AGENT, bench.order(function, **arguments), abort=bench.calm, on_progress=bench.notes.append)

    return run


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """pytest imports this file under a name that `import` does not know."""
    here = types.ModuleType(__name__)
    for function in (recording, swallowing, not_a_manager):
        setattr(here, function.__name__, function)
    monkeypatch.setitem(sys.modules, __name__, here)


@pytest.mark.parametrize("function", [flaky, patient])
def test_it_is_entered_and_left_in_the_thread_of_the_tool(call, function) -> None:
    arguments = {"times": []} if function is flaky else {}
    assert call(function, "recording", **arguments).ok

    assert [what[0] for what in SEEN] == ["enter", "tool", "leave"]
    assert SEEN[0][1] == "call-1"
    assert len({what[-1] for what in SEEN}) == 1
    assert SEEN[0][-1] != threading.get_ident()


def test_each_try_has_one_of_its_own_which_sees_what_was_raised(call) -> None:
    assert call(flaky, "recording", times=[1]).ok

    assert [what[0] for what in SEEN] == ["enter", "tool", "raised", "leave", "enter", "tool", "leave"]
    assert [what[2] for what in SEEN if what[0] == "enter"] == [1, 2]


def test_it_sees_a_question_and_cannot_swallow_it(call) -> None:
    outcome = call(asking, "swallowing")

    assert SEEN == [("swallowed",)]
    assert outcome.question is not None


def test_a_failure_that_it_swallows_is_a_failure_all_the_same(call) -> None:
    assert not call(flaky, "swallowing", times=[1, 2]).ok


def test_return_value_that_is_no_context_manager_is_reported_and_the_tool_does_not_run(call) -> None:
    outcome = call(flaky, "not_a_manager", times=[])

    assert "must return a context manager, not generator" in outcome.content
    assert SEEN == []


def test_one_that_is_not_there_is_named() -> None:
    with pytest.raises(RoomError, match=r"setting around_tools \(nowhere:around\): there is no module nowhere"):
        NamedAround("nowhere:around").check()


class FakeDjango:
    """The modules that Django's own have the names of, as far as anything of ours may look at them."""

    def __init__(self, monkeypatch, *, configured: bool = True) -> None:
        self.closed: list[tuple[str, int]] = []
        db, conf = types.ModuleType("django.db"), types.ModuleType("django.conf")
        conf.settings = types.SimpleNamespace(configured=configured)
        db.close_old_connections = lambda: self._close("old")
        db.connections = types.SimpleNamespace(close_all=lambda: self._close("all"))
        for module in (db, conf):
            monkeypatch.setitem(sys.modules, module.__name__, module)

    def _close(self, what: str) -> None:
        self.closed.append((what, threading.get_ident()))


@tool(effect="pure")
def thread_number() -> int:
    return threading.get_ident()


def test_old_connections_of_django_are_closed_before_and_after_a_tool_in_its_thread(bench, monkeypatch) -> None:
    django = FakeDjango(monkeypatch)
    thread = int(bench.call(thread_number).content)

    assert django.closed == [("old", thread), ("old", thread)]


def test_they_are_closed_after_a_tool_that_fails_as_well(bench, monkeypatch) -> None:
    django = FakeDjango(monkeypatch)
    assert not bench.call(flaky, times=[1, 2]).ok

    assert [what for what, _ in django.closed] == ["old"] * 4  # two tries


def test_django_without_a_setup_is_left_alone(bench, monkeypatch) -> None:
    django = FakeDjango(monkeypatch, configured=False)
    assert bench.call(thread_number).ok
    assert django.closed == []


def test_a_connection_that_cannot_be_closed_costs_no_result(bench, monkeypatch, caplog) -> None:
    FakeDjango(monkeypatch)
    monkeypatch.setattr(sys.modules["django.db"], "close_old_connections", lambda: 1 / 0)

    assert bench.call(thread_number).ok
    assert "could not be closed" in caplog.text


def test_django_is_not_imported_unless_it_already_is(bench) -> None:
    assert bench.call(thread_number).ok
    assert "django.db" not in sys.modules


def test_all_connections_are_closed_behind_users_code_in_its_thread(monkeypatch) -> None:
    """Of plugins, planners and decoders."""
    django = FakeDjango(monkeypatch)
    thread = user_code.within(5, threading.get_ident, "a plugin")

    assert django.closed == [("all", thread)]


class Channel:
    def poll(self, cursor):
        return Polled(messages=(), cursor=cursor)

    def deliver(self, address, reply):
        raise ValueError("no")

    def close(self): ...


def test_all_connections_are_closed_behind_a_channel_that_polls_or_delivers(monkeypatch) -> None:
    django, channel = FakeDjango(monkeypatch), GuardedChannel("support", Channel(), ())
    channel.poll(None)
    assert {what for what, _ in django.closed} == {"all"}

    django.closed.clear()
    with pytest.raises(Exception, match="ValueError"):
        channel.deliver({}, Outgoing)
    assert {what for what, _ in django.closed} == {"all"}
