"""What of a decision can never be stored is refused with words before anything of it is."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.approvals import Action, DecisionRequest, Question, Why
from chordage.orchestrator.core.errors import InvalidDecision
from support.fakes import rounds_of

BROKEN = {
    "NUL in payload": ({"payload": {"a": ["\0"]}}, "payload", "remove from payload"),
    "half a surrogate": ({"payload": "\ud800"}, "payload", "remove from payload"),
    "NUL in a key": ({"edited_args": {"\0": 1}}, "edited_args", "remove from edited_args"),
    "NUL in reason": ({"reason": "\0"}, "reason", "remove from reason"),
    "NUL in decision_key": ({"key": "\0"}, "decision_key", "remove from decision_key"),
    "NaN": ({"payload": float("nan")}, "payload", ""),
    "infinite": ({"payload": [float("inf")]}, "payload", "give payload as JSON"),
    "no JSON": ({"payload": object()}, "payload", "give payload as JSON"),
    "too long": ({"reason": "x" * 262_144}, "reason", "give a shorter reason: it has 262146 bytes"),
    "long key": ({"key": "k" * 201}, "decision_key", "give a decision_key of 1 to 200 characters; it has 201"),
    "NUL in target": ({"target": "a\0b"}, "target", "remove from target what is no text"),
    "empty key": ({"key": ""}, "decision_key", "give a decision_key of 1 to 200 characters; it has 0"),
}


@pytest.mark.parametrize(("fields", "field", "told"), BROKEN.values(), ids=BROKEN)
def test_what_no_database_keeps_is_refused(world, fields, field, told):
    world.models.script = rounds_of(1)
    world.tools.asks = lambda order: Question(why=Why.TOOL, prompt="May I?")
    world.submit()
    world.run_dry()
    (row,) = world.inbox()

    with pytest.raises(InvalidDecision) as raised:
        world.decide(DecisionRequest(**{"target": row["id"], "action": Action.RESUME, **fields}))

    assert str(raised.value).startswith(told)
    assert raised.value.field == field
    assert (world.inbox(), world.rows("decisions")) == ([row], [])
