"""Tasks, chores and the will, as people and programs read them: rows and files put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from chordage.orchestrator.core.standing_work import Item, Kind, Row, State, named
from chordage.orchestrator.gateways.work.room_work import Look
from chordage.orchestrator.store import pulse
from chordage.orchestrator.store.database import Store

NEW = "new"  # the pulse has not seen it yet
PAUSED = "paused"


@dataclass(frozen=True, kw_only=True, slots=True)
class StandingItem:
    name: str | None  # what `chordage pulse run` takes; None: a task that gets its id at the next tick
    kind: Kind
    path: str
    title: str | None  # None: its file cannot be read
    state: str  # new, live, paused, done or gone
    schedule: str | None
    next_due: datetime | None
    last_slot: datetime | None
    turns: int
    turn_id: str | None  # the newest
    under_way: bool
    started_at: datetime | None
    ended_at: datetime | None
    disposition: str | None
    run_id: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StandingWork:
    items: list[StandingItem]
    faults: list[str]


def shown(store: Store, look: Look, faults: Sequence[str], nameless: Sequence[str] = ()) -> StandingWork:
    """`nameless` are the paths of tasks that have no id yet, so that nothing else knows of them."""
    with store.read() as tx:
        rows = {(row.kind, row.key): row for row in pulse.load_every(tx)}
        ends = {(row.kind, row.key): row for _open, row in pulse.ended(tx, len(rows) + 1)}
    names = sorted({*look.items, *rows}, key=lambda name: (list(Kind).index(name[0]), name[1]))
    items = [_item(name, look.items.get(name), (rows | ends).get(name)) for name in names]
    return StandingWork(items=items + [_nameless(path) for path in nameless], faults=list(faults))


def _nameless(path: str) -> StandingItem:
    return StandingItem(
        name=None, kind=Kind.TASK, path=path, title=None, state=NEW, schedule=None, next_due=None, last_slot=None,
        turns=0, turn_id=None, under_way=False, started_at=None, ended_at=None, disposition=None, run_id=None,
    )  # fmt: skip


def _item(name: tuple[Kind, str], item: Item | None, row: Row | None) -> StandingItem:
    kind, key = name
    return StandingItem(
        name=named(kind, key),
        kind=kind,
        path=item.path if item else row.path if row else "",
        title=item.title if item else None,
        state=_state(item, row),
        schedule=(item.schedule_words or None) if item else row.schedule if row else None,
        next_due=row.next_due if row and row.state is State.LIVE and not row.paused else None,
        last_slot=row.last_slot if row else None,
        turns=row.count if row else 0,
        turn_id=row.turn_id if row else None,
        under_way=row.open if row else False,
        started_at=row.started_at if row else None,
        ended_at=row.ended_at if row else None,
        disposition=row.disposition if row else None,
        run_id=row.run_id if row else None,
    )


def _state(item: Item | None, row: Row | None) -> str:
    if row is None:
        return PAUSED if item and item.paused else NEW
    return PAUSED if row.paused and row.state is State.LIVE else row.state.value
