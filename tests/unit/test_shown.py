"""What a caller without the scope `payloads` sees of a view."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from chordage.orchestrator.api.shown import HIDDEN, LEFT_OUT, PAYLOADS, PROPERTIES, model_of, show
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.runs import RunView
from chordage.orchestrator.views.stepped import SteppedView
from chordage.orchestrator.views.trace import TraceView
from chordage.orchestrator.views.turns import TurnLine, TurnView

READER = Caller(id="r", scopes=frozenset({KeyScope.READ}))
# Texts that say what happened or who did it, and nothing of what was said.
NAMES = {
    "turn_id", "thread_id", "run_id", "id", "ask_id", "call_id", "agent", "tenant", "channel", "source", "strategy",
    "decided_by", "code", "tool", "name", "model", "worker", "path", "parent_run", "parent_call", "root_run",
    "root_thread", "placed", "dedupe_key", "coalesce_key", "into_turn", "open_run", "plugin", "holder", "to", "key",
    "sender", "ends", "schedule", "steered_into", "merged_into", "reason", "state", "last_turn", "disposition",
    "fault", "options", "fork_of", "answered_from", "sent_by", "asked_by", "paused_by", "words",
    "agent_digest",
}  # fmt: skip


def parts_of(hint):
    yield get_origin(hint) or hint
    for part in get_args(hint):
        yield from parts_of(part)


@pytest.mark.parametrize("view", HIDDEN, ids=lambda view: view.__name__)
def test_hidden_fields_exist(view):
    assert HIDDEN[view] <= {field.name for field in dataclasses.fields(view)}


@pytest.mark.parametrize("view", HIDDEN, ids=lambda view: view.__name__)
def test_every_text_of_a_view_is_hidden_or_known_to_be_a_name(view):
    """A field that is added to a view is shown to all callers only if it is named here."""
    may_hold_words = {name for name, hint in get_type_hints(view).items() if {str, dict, Any} & set(parts_of(hint))}

    assert may_hold_words - HIDDEN[view] - NAMES - LEFT_OUT.get(view, frozenset()) == set()


@pytest.mark.parametrize("view", [TurnView, TurnLine, RunView, CallView, SteppedView, TraceView])
def test_the_model_lets_every_hidden_field_be_null(view):
    hints = get_type_hints(model_of(view))

    assert hints[PAYLOADS] is bool
    for name in (*HIDDEN[view], *PROPERTIES.get(view, ())):
        assert {type(None), Any} & set(parts_of(hints[name])), name


def test_a_view_without_texts_is_its_own_model():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Plain:
        number: int

    assert model_of(Plain) is Plain
    assert show(Plain(number=1), READER) == {"number": 1}
