"""A search that was saved under a name."""

from __future__ import annotations

from dataclasses import dataclass

from chordage.orchestrator.core.errors import InvalidMessage

PLACES = 30  # of one owner
NAME_MAX = 60
QUERY_MAX = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedView:
    """`owner`: the id of a caller. `shared`: every caller sees it."""

    owner: str
    name: str
    query: str
    shared: bool = False


def check_view(view: SavedView) -> None:
    if not view.name or len(view.name) > NAME_MAX or not view.name.isprintable():
        raise InvalidMessage(f"name: give one line of 1 to {NAME_MAX} characters", field="name")
    if not view.query or len(view.query) > QUERY_MAX or "\x00" in view.query:
        raise InvalidMessage(f"query: give a search of 1 to {QUERY_MAX} characters", field="query")
