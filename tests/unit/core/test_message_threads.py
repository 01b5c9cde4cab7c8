"""Each kind of standing work has threads of its own, named after it."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core import arrivals
from chordage.orchestrator.core.agent import Limits, WhenBusy
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.limits import TurnLimits, check_within
from chordage.orchestrator.core.message import Bounds, Origin, Sender, check, thread_of
from support.builders import NOON, a_request

OWN = {"sender": Sender.SELF}
CHORE = {"origin": Origin.CHORE, "thread_id": "chore:backup", **OWN}


def refused(**given):
    with pytest.raises(InvalidMessage) as caught:
        check(a_request(**given), Bounds(), NOON)
        arrivals.check_work(a_request(**given), "ada")
    return caught.value


def accepted(**given):
    check(a_request(**given), Bounds(), NOON)
    arrivals.check_work(a_request(**given), "ada")
    return True


@pytest.mark.parametrize(
    ("origin", "thread_id"), [("task", "task:7"), ("task", "task:a:b"), ("chore", "chore:backup"), ("will", "will:ada")]
)
def test_standing_work_has_a_thread_of_its_name(origin, thread_id):
    assert accepted(origin=Origin(origin), thread_id=thread_id, **OWN)


@pytest.mark.parametrize("origin", ["task", "chore"])
@pytest.mark.parametrize("thread_id", [None, "t1", "task:", "chore: ", "will:ada", "Task:1"])
def test_tasks_and_chores_need_the_thread_of_their_work(origin, thread_id):
    error = refused(origin=Origin(origin), thread_id=thread_id, **OWN)

    assert error.field == "thread_id"
    assert f"'{origin}:<" in str(error)


def test_a_will_has_the_thread_of_its_agent_and_no_other():
    assert accepted(origin=Origin.WILL, thread_id=None, **OWN)
    for other in ("will:bob", "t1", "will:"):
        error = refused(origin=Origin.WILL, thread_id=other, **OWN)
        assert (error.field, "will:" in str(error)) == ("thread_id", True)


def test_a_message_without_a_thread_gets_one():
    assert thread_of(a_request(origin=Origin.CHAT, channel="api").message, "ada", "u1") == "chat:u1"
    assert thread_of(a_request().message, "ada", "u1") == "invoke:u1"
    assert thread_of(a_request(origin=Origin.WILL, **OWN).message, "ada", "u1") == "will:ada"
    assert thread_of(a_request(thread_id="telegram:42:topic").message, "ada", "u1") == "telegram:42:topic"


def test_work_is_the_same_by_its_thread_or_by_its_key():
    assert arrivals.key_of(a_request(), "t1") is None
    assert arrivals.key_of(a_request(coalesce_key="k"), "t1") == "k"
    assert arrivals.key_of(a_request(**CHORE), "chore:backup") == "chore:backup"
    assert arrivals.key_of(a_request(**CHORE, coalesce_key="k"), "chore:backup") == "k"
    assert arrivals.key_of(a_request(origin=Origin.WILL, **OWN), "will:ada") == "will:ada"


@pytest.mark.parametrize("key", ["chore:backup", "task:1", "will:ada"])
def test_agents_own_work_is_never_replaced(key):
    error = refused(coalesce_key=key, thread_id=key)

    assert error.field == "coalesce_key"
    assert f"{key!r} names work of the agent's own" in str(error)


def test_a_chore_may_name_its_own_key_and_no_other_chores():
    assert accepted(**CHORE, coalesce_key="chore:backup")
    assert refused(**CHORE, coalesce_key="chore:other").field == "coalesce_key"


@pytest.mark.parametrize("key", ["", "k" * 201, "a\nb", "  "])
def test_a_coalesce_key_can_be_a_key(key):
    assert refused(coalesce_key=key).field == "coalesce_key"


def test_a_will_is_one_and_ends_nothing():
    will = {"origin": Origin.WILL, **OWN}

    assert refused(**will, coalesce_key="k").field == "coalesce_key"
    assert refused(**will, when_busy=WhenBusy.INTERRUPT).field == "when_busy"
    assert accepted(**will, when_busy=WhenBusy.ENQUEUE)


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"max_rounds": 0}, "limits.max_rounds"),
        ({"max_rounds": 2**31}, "limits.max_rounds"),
        ({"timeout": 0.0}, "limits.timeout"),
        ({"timeout": float("nan")}, "limits.timeout"),
        ({"timeout": float("inf")}, "limits.timeout"),
    ],
)
def test_limits_are_numbers_that_mean_something(limits, field):
    assert refused(limits=TurnLimits(**limits)).field == field


def test_limits_of_a_turn_only_tighten_those_of_its_agent():
    of_agent = Limits(max_rounds=5, timeout=60.0)

    check_within(TurnLimits(max_rounds=5, timeout=60.0), of_agent, "ada")
    check_within(TurnLimits(max_rounds=99, timeout=1e6), Limits(max_rounds=None), "ada")
    for wider, field in ((TurnLimits(max_rounds=6), "limits.max_rounds"), (TurnLimits(timeout=61.0), "limits.timeout")):
        with pytest.raises(InvalidMessage, match=r"agent 'ada' allows \d+: a turn may only tighten it") as caught:
            check_within(wider, of_agent, "ada")
        assert caught.value.field == field
