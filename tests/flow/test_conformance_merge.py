"""Behaviours of other systems that are kept: what a message must have; one piece of work runs once at a time."""

from __future__ import annotations

from collections import Counter

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from support.fakes import spoken
from support.invariants import check_all
from support.world import World

CHORE = {"origin": Origin.CHORE, "sender": Sender.SELF}


def send(world: World, **fields: object) -> str:
    usual = {"origin": Origin.CHAT, "channel": "telegram", "sender": Sender.PEER, "thread_id": None, "text": "hi"}
    admitted, intents = stages.admit(world.runtime, TurnRequest(message=Message(**{**usual, **fields})))
    world.pending += intents
    return admitted.thread_id


def refused(world: World, **fields: object) -> str:
    with pytest.raises(InvalidMessage) as caught:
        send(world, **fields)
    assert world.rows("turns") == world.rows("threads") == world.rows("runs") == []
    return caught.value.field


@pytest.mark.parametrize("channel", [None, "", "  "])
def test_1_a_chat_with_a_blank_channel_is_refused(world: World, channel: str | None) -> None:
    assert refused(world, channel=channel) == "channel"


@pytest.mark.parametrize("blank", ["", "   ", "\t"])
def test_2_a_blank_thread_or_blank_text_is_refused(world: World, blank: str) -> None:
    assert refused(world, thread_id=blank) == "thread_id"
    assert refused(world, text=blank) == "text"


def test_19_chat_without_a_thread_gets_one(world: World) -> None:
    first, second = send(world), send(world)

    assert first != second
    assert {thread["id"] for thread in world.rows("threads")} == {first, second}


def test_47_different_chores_run_at_once_and_one_never_does(world: World) -> None:
    world.models.script = lambda prompt: spoken("ok")
    open_at_once: list[Counter[str]] = []

    def look(_prompt: object) -> None:
        open_at_once.append(Counter(run["thread_id"] for run in world.rows("runs", status="running")))

    world.models.before_reply = look
    for key in ("a", "b"):
        world.submit(thread=f"chore:{key}", **CHORE)
    for _ in range(2):  # both start
        world.deliver(world.pending.pop(0))
    for key in ("a", "b"):
        world.submit(thread=f"chore:{key}", **CHORE)
    world.run_dry()

    assert open_at_once[0] == {"chore:a": 1, "chore:b": 1}
    assert all(set(seen.values()) == {1} for seen in open_at_once)
    assert len(world.rows("runs")) == 4
    check_all(world.store)


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": ""},
        {"thread_id": "x" * 201},
        {"origin": Origin.TASK, "channel": None, "sender": Sender.SELF},
        {"origin": Origin.WILL, "channel": None, "sender": Sender.SELF, "thread_id": "will:somebody-else"},
        {"text": "x" * (256 * 1024 + 1)},
    ],
    ids=["text", "long thread", "task without a thread", "will of another", "too large"],
)
def test_94_invalid_input_is_refused_before_anything_exists(world: World, wrong: dict) -> None:
    assert refused(world, **wrong) in {"text", "thread_id"}
