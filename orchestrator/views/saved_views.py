"""What helps to search: the searches that a caller has saved or an operator shares, and names that occur."""

from __future__ import annotations

from chordage.orchestrator.core.saved_views import SavedView
from chordage.orchestrator.store import durations
from chordage.orchestrator.store import saved_views as rows
from chordage.orchestrator.store.database import Store

TOOLS = 500  # names


def saved_views(store: Store, owner: str) -> list[SavedView]:
    """By name."""
    with store.read() as tx:
        return rows.visible_to(tx, owner)


def known_tools(store: Store) -> list[str]:
    """That were called lately."""
    with store.read() as tx:
        return durations.tools(tx, TOOLS)
