"""Messages by name that lie too deep in themselves are refused, whatever Celery has made of them."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.errors import InvalidDecision, InvalidMessage
from chordage.tasks.schema import decisions_from, request_from, verb_from


def nested(depth):
    value = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("depth", [101, 900])
def test_a_message_that_is_too_deep_is_refused_with_its_field(depth):
    with pytest.raises(InvalidMessage, match="meta: lists and tables are nested more than 100 deep") as refused:
        request_from({"text": "hi", "meta": nested(depth)}, source="test", space=None)
    assert refused.value.field == "meta"
    with pytest.raises(InvalidMessage, match="args: lists and tables are nested more than 100 deep"):
        verb_from({"turn": "t", "verb": "messages", "args": {"messages": [nested(depth)]}}, space=None)
    with pytest.raises(InvalidDecision, match="decisions: lists and tables are nested more than 100 deep"):
        decisions_from([{"target": "c", "action": "resume", "payload": nested(depth)}])


def test_a_message_within_the_bounds_is_taken():
    assert request_from({"text": "hi", "meta": nested(90)}, source="test", space=None).message.meta == nested(90)
