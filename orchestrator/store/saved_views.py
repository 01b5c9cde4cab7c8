"""Saved searches of the list of runs. Each owner has a bounded number of places, which are part of the key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import delete, or_, select, update

from chordage.orchestrator.core.saved_views import PLACES, SavedView
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import saved_views
from chordage.orchestrator.store.statements import insert_or


def visible_to(tx: Tx, owner: str) -> list[SavedView]:
    """By name: its own, and those that are shared."""
    visible = select(saved_views).where(or_(saved_views.c.owner == owner, saved_views.c.shared == 1))
    rows = tx.execute(visible.order_by(saved_views.c.name, saved_views.c.owner).limit(10 * PLACES)).mappings()
    return [_from_row(row) for row in rows]


def change(tx: Tx, view: SavedView) -> bool:
    """False: its owner has none of this name."""
    known = update(saved_views).where(saved_views.c.owner == view.owner, saved_views.c.name == view.name)
    return tx.execute(known.values(query=view.query, shared=int(view.shared))).rowcount == 1


def free_place(tx: Tx, owner: str) -> int | None:
    taken = set(tx.execute(select(saved_views.c.place).where(saved_views.c.owner == owner)).scalars())
    return next((place for place in range(1, PLACES + 1) if place not in taken), None)


def add(tx: Tx, view: SavedView, place: int, now: datetime) -> bool:
    """False: another process took the place, or the name, at this moment."""
    values = {"owner": view.owner, "place": place, "name": view.name, "query": view.query, "shared": int(view.shared)}
    new = insert_or(tx.dialect.name, saved_views).values(**values, created_at=now).on_conflict_do_nothing()
    return tx.execute(new.returning(saved_views.c.place)).first() is not None


def remove(tx: Tx, owner: str, name: str) -> bool:
    gone = delete(saved_views).where(saved_views.c.owner == owner, saved_views.c.name == name)
    return tx.execute(gone).rowcount == 1


def _from_row(row: Mapping[Any, Any]) -> SavedView:
    return SavedView(owner=row["owner"], name=row["name"], query=row["query"], shared=bool(row["shared"]))
