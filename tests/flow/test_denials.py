"""A denial says no to one call. What it cannot say is refused, and nothing of it is stored."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.errors import InvalidDecision
from support.driving import asks, consume, text
from support.fakes import rounds_of
from support.one_turn import play
from support.questions import asks_once
from support.world import World

REMEMBER = {"remember": True}


def a_question(world: World) -> dict[str, object]:
    world.tools.asks = asks_once(0)
    play(world, script=rounds_of(1))
    (question,) = world.inbox()
    return question


@pytest.mark.parametrize("payload", [REMEMBER, False, "no"])
def test_a_denial_that_is_to_be_remembered_is_refused_with_what_to_do(world: World, payload: object) -> None:
    question = a_question(world)

    with pytest.raises(InvalidDecision, match=r"takes no payload.*\[permission\] deny") as refused:
        world.decide(DecisionRequest(target=str(question["id"]), action=Action.CANCEL, payload=payload))

    assert refused.value.field == "payload"
    assert (world.inbox(), world.rows("decisions")) == ([question], [])


def test_denial_with_a_reason_is_kept(world: World) -> None:
    question = a_question(world)

    world.decide(DecisionRequest(target=str(question["id"]), action=Action.CANCEL, reason="too dear"))
    world.run_dry()

    assert world.row("calls")["status"] == "cancelled"
    assert "too dear" in str(world.row("calls")["content"])


def test_consumer_of_a_stepped_turn_sees_the_same(world: World) -> None:
    world.tools.asks = asks_once(0)
    it = consume(world, asks("a"), text("done"))
    it.next()
    it.do("tool_response")

    with pytest.raises(InvalidDecision, match="takes no payload"):
        world.step(it.turn, "decide", ask_id="a", allow=False, payload=REMEMBER)

    assert world.rows("decisions") == []
