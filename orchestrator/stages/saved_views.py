"""Not in the line of a turn: searches are saved under names, for a caller or for all."""

from __future__ import annotations

from chordage.orchestrator.core.errors import Conflict, NotFound
from chordage.orchestrator.core.saved_views import PLACES, SavedView, check_view
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import saved_views

TRIES = 8  # that may be lost to others


def save_view(rt: Runtime, view: SavedView) -> None:
    """Over the one of this owner that has the name."""
    check_view(view)
    for _ in range(TRIES):
        with Unit(rt) as unit:
            if saved_views.change(unit.tx, view):
                return
            place = saved_views.free_place(unit.tx, view.owner)
            if place is None:
                raise Conflict(f"{PLACES} searches are saved, and that is the most: delete one first")
            if saved_views.add(unit.tx, view, place, unit.now):
                return
    raise Conflict("others save searches at the same moment: try again")


def delete_view(rt: Runtime, owner: str, name: str) -> None:
    with Unit(rt) as unit:
        if not saved_views.remove(unit.tx, owner, name):
            raise NotFound(f"you have saved no search {name!r:.80}")
