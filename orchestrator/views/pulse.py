"""Tasks, chores and the will: the rows of the pulse and the files of the room, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from chordage.orchestrator.core.pulse import PulseRow, PulseState, WorkItem, WorkKind, named
from chordage.orchestrator.gateways.schedules.room_work import WorkSnapshot
from chordage.orchestrator.store import pulse
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views.conversion import view_of

NEW = "new"  # the pulse has not read its file yet
PAUSED = "paused"


@dataclass(frozen=True, kw_only=True, slots=True)
class StandingItem:
    name: str | None  # as `chordage pulse run` takes it; None: a task that gets its id at the next tick
    kind: WorkKind
    path: str
    title: str | None  # None: its file cannot be read
    state: str  # new, live, paused, done or gone
    schedule: str | None
    next_due: datetime | None
    last_slot: datetime | None = None
    turns: int
    turn_id: str | None = None  # the newest
    under_way: bool
    started_at: datetime | None = None
    ended_at: datetime | None = None
    disposition: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StandingWork:
    items: list[StandingItem]
    faults: list[str]


def standing_work(
    store: Store, snapshot: WorkSnapshot, faults: Sequence[str], nameless: Sequence[str] = ()
) -> StandingWork:
    """`nameless`: the paths of tasks that have no id yet, so that no row and no item names them."""
    with store.read() as tx:
        rows = {(row.kind, row.key): row for row in pulse.load_every(tx)}
        rows |= {(row.kind, row.key): row for _open, row in pulse.ended(tx, len(rows) + 1)}
    names = sorted({*snapshot.items, *rows}, key=lambda name: (list(WorkKind).index(name[0]), name[1]))
    items = [
        _item(kind, named(kind, key), snapshot.items.get((kind, key)), rows.get((kind, key))) for kind, key in names
    ]
    items += [replace(_item(WorkKind.TASK, None, None, None), path=path) for path in nameless]
    return StandingWork(items=items, faults=list(faults))


def _item(kind: WorkKind, name: str | None, item: WorkItem | None, row: PulseRow | None) -> StandingItem:
    return view_of(
        StandingItem,
        row,
        name=name,
        kind=kind,
        path=item.path if item else row.path if row else "",
        title=item.title if item else None,
        state=_state(item, row),
        schedule=(item.schedule_words or None) if item else row.schedule if row else None,
        next_due=row.next_due if row and row.state is PulseState.LIVE and not row.paused else None,
        turns=row.count if row else 0,
        under_way=row.open if row else False,
    )


def _state(item: WorkItem | None, row: PulseRow | None) -> str:
    if row is None:
        return PAUSED if item and item.paused else NEW
    return PAUSED if row.paused and row.state is PulseState.LIVE else row.state.value
