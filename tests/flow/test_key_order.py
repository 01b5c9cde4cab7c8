"""The order in which a model wrote the keys of a call's arguments, wherever they come to."""

from __future__ import annotations

import json

from chordage.orchestrator import views
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.model import AssistantSays
from support.driving import in_turn
from support.fakes import asking, spoken
from support.invariants import check_all
from support.questions import ASK

WRITTEN = {"zeta": 1, "n": 2, "m": {"y": 1, "b": [{"d": 1, "c": 2}]}, "aa": 3}
EDITED = {"q": 1, "n": 9, "bb": {"z": 1, "a": 2}}


def in_order(value):
    return json.dumps(value)


def test_tools_and_the_next_prompt_get_arguments_in_the_order_the_model_wrote(world):
    world.models.script = in_turn(asking(("pure", WRITTEN)), spoken("done"))

    turn = world.submit()
    world.run_dry()

    assert [in_order(order.arguments) for order in world.tools.orders] == [in_order(WRITTEN)]
    said = [one for one in world.models.prompts[-1].said if isinstance(one, AssistantSays)]
    assert [in_order(ask.arguments) for one in said for ask in one.asks] == [in_order(WRITTEN)]
    shown = views.run(world.store, views.turn(world.store, turn).run_id).steps
    calls = [call for step in shown for call in getattr(step, "calls", ())]
    assert [in_order(call.arguments) for call in calls] == [in_order(WRITTEN)]
    check_all(world.store)


def test_what_a_person_decides_keeps_its_order_too(world):
    world.models.script = in_turn(asking(("pure", WRITTEN)), spoken("done"))
    world.tools.asks = lambda order: ASK
    world.submit()
    world.run_dry()
    world.tools.asks = lambda order: None

    world.decide(
        DecisionRequest(
            target=world.inbox()[0]["id"], action=Action.RESUME, payload=dict(WRITTEN), edited_args=dict(EDITED)
        )
    )
    world.run_dry()

    assert in_order(world.tools.orders[-1].arguments) == in_order(EDITED)
    assert in_order(world.rows("decisions")[0]["payload"]) == in_order(WRITTEN)
    check_all(world.store)
