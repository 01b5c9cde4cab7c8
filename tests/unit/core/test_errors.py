"""The tree of errors, as its module draws it."""

from __future__ import annotations

import inspect
import re

from chordage.orchestrator.core import errors
from chordage.orchestrator.core.errors import (
    ChordageError,
    InvalidMessage,
    LostRace,
    ModelFailed,
    UserError,
    WrongSchema,
)
from chordage.orchestrator.core.model import Attempt, Fault

CLASSES = [thing for thing in vars(errors).values() if inspect.isclass(thing) and issubclass(thing, ChordageError)]


def drawn():
    """Each name in the drawing, with its parent."""
    parents, above = {}, []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"([│├└─\s]*)([A-Z]\w+)", line):
            depth = len(found[1]) // 4
            del above[depth:]
            parents[found[2]] = above[-1] if above else None
            above.append(found[2])
    del parents["The"]
    return parents


def test_the_drawing_is_the_tree():
    assert drawn() == {kind.__name__: kind.__base__.__name__ if kind is not ChordageError else None for kind in CLASSES}


def test_error_without_a_text_shows_its_docstring():
    assert str(LostRace()) == "Another process was first. The transaction is rolled back, and nothing is wrong."
    assert all(kind.__doc__ for kind in CLASSES)


def test_text_of_an_error_is_shown():
    assert str(WrongSchema("at 0001, needs 0002")) == "at 0001, needs 0002"


def test_an_invalid_message_names_its_field():
    error = InvalidMessage("text is blank", field="text")

    assert isinstance(error, UserError)
    assert (str(error), error.field, error.too_large) == ("text is blank", "text", False)


def test_a_failed_model_call_carries_its_attempts():
    attempt = Attempt(model="openai:x", seconds=1.0, fault=Fault.AUTH)

    error = ModelFailed("no model answered", fault=Fault.AUTH, attempts=(attempt,))

    assert not isinstance(error, UserError)
    assert (error.fault, error.attempts) == (Fault.AUTH, (attempt,))
