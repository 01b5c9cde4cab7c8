"""Tasks, chores and the will: the rows of the pulse and the files of the room, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice

from chordage.orchestrator.core.pulse import PulseRow, PulseState, WorkItem, WorkKind, named
from chordage.orchestrator.gateways.schedules import files
from chordage.orchestrator.gateways.schedules.room_work import RoomWork, WorkSnapshot
from chordage.orchestrator.gateways.schedules.words import in_words
from chordage.orchestrator.store import pulse
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views.conversion import view_of

NEW = "new"  # the pulse has not read its file yet
PAUSED = "paused"
LATER = 2  # times behind the next


@dataclass(frozen=True, kw_only=True, slots=True)
class StandingItem:
    name: str | None  # as `chordage pulse run` takes it; None: a task that gets its id at the next tick
    kind: WorkKind
    path: str
    title: str | None  # None: its file cannot be read
    state: str  # new, live, paused, done or gone
    schedule: str | None  # as it is written
    words: str | None = None  # of the schedule, where there are any
    next_due: datetime | None
    later: tuple[datetime, ...] = ()  # the times behind it
    paused_by: str | None = None  # a person, besides the file
    last_slot: datetime | None = None
    turns: int
    merged: int = 0  # times that had no turn of their own: one turn was for all of them
    missed: int = 0  # times inside a pause
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


def standing_now(store: Store, work: RoomWork) -> StandingWork:
    """As the files of the room are now. Nothing is written."""
    snapshot = work.read()
    known = {item.path for item in snapshot.items.values()} | set(snapshot.faults)
    nameless = [path for path in files.find(work.room).stamps if path not in known]
    return standing_work(store, snapshot, [str(fault) for _, fault in sorted(snapshot.faults.items())], nameless)


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
    next_due = row.next_due if row and row.state is PulseState.LIVE and not row.paused else None
    schedule = item.schedule if item else None
    later: tuple[datetime, ...] = ()
    if schedule is not None and next_due is not None and row is not None and row.anchor is not None:
        later = tuple(islice(schedule.after(row.anchor, next_due), LATER))
    return view_of(
        StandingItem,
        row,
        name=name,
        kind=kind,
        path=item.path if item else row.path if row else "",
        title=item.title if item else None,
        state=_state(item, row),
        schedule=(item.schedule_words or None) if item else row.schedule if row else None,
        words=None if schedule is None else in_words(schedule),
        next_due=next_due,
        later=later,
        turns=row.count if row else 0,
        under_way=row.open if row else False,
    )


def _state(item: WorkItem | None, row: PulseRow | None) -> str:
    if row is None:
        return PAUSED if item and item.paused else NEW
    return PAUSED if row.paused and row.state is PulseState.LIVE else row.state.value
