"""Intents are values: small, comparable, and made of ids, so that losing or doubling one loses or doubles nothing."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, is_dataclass
from types import NoneType
from typing import get_args, get_type_hints

import pytest

from chordage.orchestrator.core import intents
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import (
    Advance,
    CallTools,
    CancelTurn,
    ContinueBulk,
    Deliver,
    Dispatch,
    Intent,
    Project,
)

KINDS = get_args(Intent)
SMALL = {str, int, Group, NoneType}


def carried(hint):
    """The plain types a field is made of."""
    if parts := get_args(hint):
        return set().union(*(carried(part) for part in parts if part is not ...))
    if inner := getattr(hint, "_fields", None):
        return set().union(*(carried(get_type_hints(hint)[name]) for name in inner))
    return {hint}


def test_every_intent_of_the_module_is_one_of_the_union():
    here = [thing for thing in vars(intents).values() if getattr(thing, "__module__", "") == intents.__name__]
    declared = {thing for thing in here if isinstance(thing, type) and is_dataclass(thing)}

    assert declared == set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_intent_carries_ids_and_numbers_and_no_facts(kind):
    hints = get_type_hints(kind)

    in_the_message = [field for field in fields(kind) if field.compare]  # what is seen in the process stays there
    assert set().union(*(carried(hints[field.name]) for field in in_the_message)) <= SMALL


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_intent_knows_the_group_whose_queue_it_goes_to(kind):
    of_the_fleet = {CancelTurn, ContinueBulk, Deliver, Project}  # by the system's queue, and that of deliveries
    assert kind in of_the_fleet or get_type_hints(kind)["group"] is Group


def test_the_same_intent_twice_is_the_same_value():
    once, again = (Advance(run_id="r", group=Group.CHAT) for _ in range(2))

    assert {once, again} == {once}
    assert once != Advance(run_id="r", group=Group.TASK)


def test_an_intent_cannot_be_changed_on_its_way():
    with pytest.raises(FrozenInstanceError):
        Dispatch(group=Group.CHAT).group = Group.WILL  # type: ignore[misc]


def test_a_fan_out_can_be_hashed_with_its_batches():
    fan = CallTools(run_id="r", step=2, batches=(("a", "c"), ("b",)), group=Group.CHORE)

    assert {fan: "sent"}[fan] == "sent"
