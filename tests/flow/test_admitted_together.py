"""Messages that come at the same moment share a commit, as far as none can come to wait for another's thread."""

from __future__ import annotations

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest


def a_request(text, thread=None, key=None, group=None):
    message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id=thread, text=text)
    return TurnRequest(message=message, source="hook:x", dedupe_key=key, group=group)


def test_messages_without_a_thread_share_one_commit_though_one_was_there_before(world):
    ((first, _),) = stages.admit_all(world.runtime, [a_request("a", key="k1")])
    before = world.commits

    found = stages.admit_all(
        world.runtime, [a_request("b", key="k3"), a_request("a", key="k1"), a_request("c", key="k2")]
    )

    assert world.commits == before + 1
    assert [one.duplicate for one, _ in found] == [False, True, False]
    assert found[1][0].turn_id == first.turn_id
    assert sorted(turn.text for turn in views.turns(world.store)) == ["a", "b", "c"]


def test_each_thread_and_each_group_has_a_commit_of_its_own(world):
    requests = [
        a_request("a", "t"),
        a_request("b", "u"),
        a_request("c", "t"),
        a_request("d"),
        a_request("e", group=Group.TASK),
    ]

    found = stages.admit_all(world.runtime, requests)

    assert world.commits == 4
    assert [one.thread_id for one, _ in found[:3]] == ["t", "u", "t"]
    assert [turn.text for turn in reversed(views.turns(world.store, thread_id="t"))] == ["a", "c"]
