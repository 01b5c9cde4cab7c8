"""Beside the line: what stands in the room as work becomes turns, when it is new, changed or due.

Three beats, as often as somebody ticks: the files are read, the rows are looked at, and each item that is due is moved
in a transaction of its own. A tick keeps nothing that is needed: it may be lost, doubled, cut short or late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from chordage.orchestrator import pulsing
from chordage.orchestrator.core.errors import QueueFull, RoomError
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.standing_work import Item, Kind, Row, State, Step
from chordage.orchestrator.gateways.work.room_work import Look, Name, RoomWork
from chordage.orchestrator.run.arrivals import Admitted
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import pulse
from chordage.orchestrator.views import standing_work

log = structlog.get_logger()
BATCH = 500  # turns of one tick; the rest comes with the next
REFUSALS = 10  # of one kind in a row, by its full queue: then the others of that kind are tried in a later tick
VERIFY = timedelta(minutes=5)  # between two looks at every row
KEPT = timedelta(days=7)  # a row whose file is gone: a folder that was away for a while repeats nothing


def tick(rt: Runtime) -> list[Intent]:
    """What is due, and the wake-ups for it. Nothing, where this process is at it already."""
    work = rt.work
    if work is None or not work.busy.acquire(blocking=False):
        return []
    try:
        return _Tick(rt, work).done()
    finally:
        work.busy.release()


def run_now(rt: Runtime, wanted: str) -> tuple[Admitted, list[Intent]]:
    assert rt.work is not None
    return pulsing.run_now(rt, rt.work, wanted)


@dataclass(slots=True)
class _Tick:
    rt: Runtime
    work: RoomWork
    intents: list[Intent] = field(default_factory=list)
    faults: dict[str, RoomError] = field(default_factory=dict)
    moved: bool = False
    turns: int = 0
    to_put: list[tuple[Item, Row | None, Step]] = field(default_factory=list)

    def done(self) -> list[Intent]:
        memory, now = self.work.memory, self.rt.now()
        look = self.work.look(give_ids=True)
        self.faults.update(look.faults)
        all_of_them = memory.verified_at is None or abs(now.timestamp() - memory.verified_at) >= VERIFY.total_seconds()
        if look.items or memory.known or all_of_them:
            self._note_ends()
            self._see_to_all(look, now) if all_of_them else self._see_to_some(look, now)
        if all_of_them:
            memory.verified_at = now.timestamp()
        self._tell(all_of_them)
        return self.intents

    def _note_ends(self) -> None:
        with self.rt.store.read() as tx:
            over = pulse.ended(tx, BATCH)
        for row, after in over:
            with self.rt.store.write() as tx:
                self.moved |= pulse.put(tx, after, seen=row)

    def _see_to_all(self, look: Look, now: datetime) -> None:
        with self.rt.store.read() as tx:
            rows = {(row.kind, row.key): row for row in pulse.load_every(tx)}
        self.work.memory.known = bool(rows or look.items)
        self._miss((row for name, row in rows.items() if name not in look.items), look, now)
        with self.rt.store.write() as tx:
            pulse.forget_gone(tx, now - KEPT)
        self.work.memory.put_off.keep(look.items)
        self._see_to(look.items.values(), rows)

    def _see_to_some(self, look: Look, now: datetime) -> None:
        settled = self.work.memory.settled
        changed = [name for name, item in look.items.items() if settled.get(name) is not item]
        missing = [name for name in settled if name not in look.items]
        with self.rt.store.read() as tx:
            found = pulse.load_all(tx, [*changed, *missing])
            due = pulse.due(tx, now, BATCH + len(self.work.memory.told))
        rows = {(row.kind, row.key): row for row in [*found, *due]}
        for name in missing:
            settled.pop(name, None)
        self._miss((rows[name] for name in missing if name in rows), look, now)
        named = dict.fromkeys([*changed, *((row.kind, row.key) for row in due)])
        self._see_to((look.items[name] for name in named if name in look.items), rows)

    def _miss(self, rows: Iterable[Row], look: Look, now: datetime) -> None:
        """Their files are not there. A file that cannot be read may say anything: its row stays as it is."""
        for row in rows:
            if row.state is not State.GONE and not look.may_be_there(row.path):
                with self.rt.store.write() as tx:
                    self.moved |= pulse.put(tx, pulsing.taken_away(row, now), seen=row)

    def _see_to(self, items: Iterable[Item], rows: dict[Name, Row]) -> None:
        """A full queue refuses one and may take the next, which replaces what is queued of the same work."""
        refused: list[Name] = []
        in_a_row: Counter[Kind] = Counter()
        for item in self.work.memory.put_off.in_turn(items):
            room = self.turns < BATCH and in_a_row[item.kind] < REFUSALS
            try:
                tried = self._see_to_one(item, rows.get((item.kind, item.key)), room=room)
            except QueueFull as error:
                in_a_row[item.kind] += 1
                refused.append((item.kind, item.key))
                self._put_off(item, error)
            else:
                in_a_row[item.kind] *= not tried
        self.work.memory.put_off.to_the_end(refused)
        self._put_the_rest()

    def _put_off(self, item: Item, error: QueueFull) -> None:
        self.work.memory.settled.pop((item.kind, item.key), None)
        if self.work.memory.put_off.refused((item.kind, item.key)):
            log.info("put off until there is room", item=item.name, why=str(error))

    def _put_the_rest(self) -> None:
        """Rows that move without a turn, many in one transaction, always in the order of their keys."""
        rest = sorted(self.to_put, key=lambda put: (put[0].kind.value, put[0].key))
        for start in range(0, len(rest), BATCH):
            lot = rest[start : start + BATCH]
            with self.rt.store.write() as tx:
                done = [pulse.put(tx, step.row, seen=row) for _item, row, step in lot]
            self.moved |= any(done)
            settled = [item for (item, _row, step), moved in zip(lot, done, strict=True) if moved and not step.waits]
            self.work.memory.settled.update({(item.kind, item.key): item for item in settled})

    def _see_to_one(self, item: Item, row: Row | None, *, room: bool) -> bool:
        """Whether it has become a turn."""
        name, memory = (item.kind, item.key), self.work.memory
        seen = pulsing.see_to(self.rt, self.work, item, row, turns=room)
        if seen.put is not None:
            self.to_put.append((item, row, seen.put))
        self.intents += seen.intents
        self.turns += bool(seen.intents)
        self.moved |= seen.moved
        if seen.fault is not None:
            self.faults[item.path] = seen.fault
        if seen.settled:
            memory.settled[name] = item
        else:
            memory.settled.pop(name, None)
        memory.put_off.not_tried(name) if seen.put_off else memory.put_off.done(name)
        return bool(seen.intents)

    def _tell(self, anyway: bool) -> None:
        told = {path: str(error) for path, error in self.faults.items()}
        before = self.work.memory.told
        for path, why in told.items():
            if before.get(path) != why:
                log.warning("a file of the room is skipped", fault=why)
        self.work.memory.told = told
        if self.moved or anyway or told != before:
            shown = standing_work(self.rt.store, self.work.snapshot, list(told.values()))
            self.work.mirror(shown)
