"""docs/reference/lifecycle.md shows the tables of the code."""

from __future__ import annotations

import re
import runpy

import pytest

from support.repository import ROOT

PAGE = ROOT / "docs" / "reference" / "lifecycle.md"
DRAWING = runpy.run_path(str(ROOT / "docs" / "draw_lifecycle.py"))
REDRAW = "run `.venv/bin/python docs/draw_lifecycle.py` and commit the page"


def test_the_page_is_drawn_from_the_tables():
    page = PAGE.read_text()

    assert page == DRAWING["redrawn"](page), REDRAW


def test_every_part_is_on_the_page_once():
    assert sorted(re.findall(r"<!-- drawn: (\w+) -->", PAGE.read_text())) == sorted(DRAWING["PARTS"])


@pytest.mark.parametrize("name", ["turn", "run", "call"])
def test_a_changed_page_is_noticed(name):
    arrow = next(line for line in DRAWING["PARTS"][name]().splitlines() if "-->" in line)
    page = PAGE.read_text().replace(f"{arrow}\n", "", 1)

    assert page != DRAWING["redrawn"](page)
