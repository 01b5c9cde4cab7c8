"""Views made of rows and records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pytest

from chordage.orchestrator.views.conversion import view_of


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Paint:
    name: str
    colour: Colour | None
    litres: int = 1


@dataclass(frozen=True, kw_only=True)
class PaintRecord:
    name: str
    colour: Colour


def test_fields_come_from_columns_or_attributes_of_their_names():
    row = {"name": "barn", "colour": "red", "more": 1}
    view = view_of(Paint, row)

    assert (view.name, view.colour, view.litres) == ("barn", Colour.RED, 1)
    assert isinstance(view.colour, Colour)
    assert view_of(Paint, PaintRecord(name="barn", colour=Colour.RED)) == view


def test_a_value_that_is_passed_comes_before_that_of_the_row():
    assert view_of(Paint, {"name": "barn", "colour": None}, name="shed") == Paint(name="shed", colour=None)


def test_a_word_of_a_newer_version_stays_as_it_is():
    assert view_of(Paint, {"name": "barn", "colour": "teal"}).colour == "teal"


def test_without_a_source_fields_have_their_defaults():
    assert view_of(Paint, None, name="barn", colour=None).litres == 1


def test_a_field_without_a_default_is_needed():
    with pytest.raises(TypeError, match="colour"):
        view_of(Paint, {"name": "barn"})
