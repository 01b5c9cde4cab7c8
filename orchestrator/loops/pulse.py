"""The pulse: tasks, chores and the will of a room become turns when they are new, changed or due.

A tick reads the files, compares them with their rows, and moves each item on in a transaction of its own. Ticks may be
lost, doubled, cut short or late. Where an item calls for a turn, the turn is stored in the transaction that moves its
row, guarded by the version of the row that was read. A process that dies before that commit has done nothing; one that
dies behind it has left out the wake-up alone, which rescue sends. Of several processes that move one item at once, one
commits, and the others find the row moved. The file is read again after its row: a change that the agent's own tools
have made since is either in that row, or has moved it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import structlog

from chordage.orchestrator.core.agent import AgentSpec, WhenBusy, WhileWaiting
from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.errors import Conflict, LostRace, NotFound, QueueFull, RoomError, UserError
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.pulse import PulseRow, PulseState, PulseStep, WorkItem, WorkKind, by_hand, next_step
from chordage.orchestrator.gateways.schedules.room_work import Name, RoomWork, WorkSnapshot
from chordage.orchestrator.run import arrivals
from chordage.orchestrator.run.arrivals import Admitted, check_request
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import audit, pulse, turns
from chordage.orchestrator.views import pulse as view

log = structlog.get_logger()

SOURCE = "pulse"
BATCH = 500  # turns of one tick; the rest comes with the next
TRIES = 8
REFUSALS = 10  # of one kind in a row, by its full queue: then the others of that kind are tried in a later tick
VERIFY = timedelta(minutes=5)  # between two comparisons of all rows
KEPT = timedelta(days=7)  # a row whose file is gone: a folder that was away for a while repeats nothing


def tick(rt: Runtime) -> list[Intent]:
    """Start what is due. Nothing, where another thread of this process is in a tick."""
    work = rt.work
    if work is None or not work.busy.acquire(blocking=False):
        return []
    try:
        return _Tick(rt, work).run()
    finally:
        work.busy.release()


def run_now(rt: Runtime, wanted: str, *, by: Actor | None = None) -> tuple[Admitted, list[Intent]]:
    """A turn on request. The schedule stays as it is. `wanted`: a name, key or path. `by`: who
    wants it, for the record.
    """
    assert rt.work is not None
    item = _item_called(rt.work, wanted)
    with rt.store.read() as tx:
        row = pulse.load(tx, item.kind, item.key)
        turn = turns.load(tx, row.turn_id) if row and row.open and row.turn_id else None
    if turn is not None and turn.done_at is None:
        raise Conflict(f"{item.name} has turn {turn.id}, which is {turn.status.value}: wait for its end, or cancel it")
    if item.closed:
        raise Conflict(f"{item.path} is done or cancelled: set its status to todo, and it runs by itself")
    now = rt.now()
    agent, request = _request(rt, item, f"{item.name}:by-hand:{rt.new_id()}", now)
    if by is not None:
        request = replace(request, by=by, audited=Audited.WORK_RUN)
    is_paused = item.paused or (row is not None and row.paused_by is not None)
    stored = _store(rt, agent, request, replace(by_hand(item, row, now), paused=is_paused), row)
    if stored is None:
        raise Conflict(f"{item.name} was moved by the pulse at this moment: see `chordage pulse`, and try again")
    return stored


def pause(rt: Runtime, wanted: str, by: Actor) -> None:
    """Until it is resumed, whatever its file says. A turn that is under way ends as usual."""
    assert rt.work is not None
    item = _item_called(rt.work, wanted)
    for _ in range(TRIES):
        with rt.store.read() as tx:
            row = pulse.load(tx, item.kind, item.key)
        if row is not None and row.paused_by is not None:
            return
        paused = replace(next_step(replace(item, paused=True), row, rt.now()).row, paused=True, paused_by=by.id)
        if _put_noted(rt, item, paused, row, by, Audited.WORK_PAUSED):
            return
    raise _moving(item)


def resume(rt: Runtime, wanted: str, by: Actor) -> list[Intent]:
    """Times inside the pause are missed; a task that was changed in it gets its turn now. The row is free with the
    first commit. A process that dies before the second one leaves the rest to the next comparison of all rows.
    """
    work = rt.work
    assert work is not None
    item = _item_called(work, wanted)
    for _ in range(TRIES):
        with rt.store.read() as tx:
            row = pulse.load(tx, item.kind, item.key)
        if row is None or row.paused_by is None:
            if item.paused:
                raise Conflict(f"{item.name} is paused in {item.path}: remove that line")
            return []
        if _put_noted(rt, item, replace(row, paused_by=None), row, by, Audited.WORK_RESUMED):
            return _move_resumed(rt, work, item)
    raise _moving(item)


def _put_noted(rt: Runtime, item: WorkItem, row: PulseRow, seen: PulseRow | None, by: Actor, action: Audited) -> bool:
    with Unit(rt) as unit:
        is_put = pulse.put(unit.tx, row, seen=seen)
        if is_put:
            audit.record(unit.tx, by, action, item.name, now=unit.now, detail={"path": item.path})
    return is_put


def _move_resumed(rt: Runtime, work: RoomWork, item: WorkItem) -> list[Intent]:
    """What a tick would do, at once: no tick looks at a row for which nothing is due."""
    with rt.store.read() as tx:
        row = pulse.load(tx, item.kind, item.key)
    try:
        outcome = move_on(rt, work, item, row)
    except QueueFull as error:
        log.info("postponed until there is room", item=item.name, why=str(error))
        return []
    if outcome.put is not None:
        with Unit(rt) as unit:
            pulse.put(unit.tx, outcome.put.row, seen=row)
    return outcome.intents


def _moving(item: WorkItem) -> Conflict:
    return Conflict(f"{item.name} is moved by the pulse all the time: see `chordage pulse`, and try again")


def _item_called(work: RoomWork, wanted: str) -> WorkItem:
    snapshot = work.read(give_ids=True)
    items = [item for item in snapshot.items.values() if wanted in {item.name, item.key, item.path}]
    items = [item for item in items if wanted in {item.name, item.path}] or items
    if len(items) == 1:
        return items[0]
    if items:
        raise NotFound(f"{wanted!r} may be {' or '.join(item.name for item in items)}: say which")
    if wanted in snapshot.faults:
        raise snapshot.faults[wanted]
    known = ", ".join(sorted(item.name for item in snapshot.items.values())[:20]) or "none"
    raise NotFound(f"there is no task, chore or will {wanted!r} in {work.room}; there are: {known}")


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveOutcome:
    """What came of moving one item on."""

    settled: bool = False  # nothing to do until the file changes or its time comes
    moved: bool = False
    put: PulseStep | None = None  # its row moves on without a turn, and is not written yet
    intents: list[Intent] = field(default_factory=list)
    fault: RoomError | None = None
    postponed: bool = False  # it calls for a turn, and none was tried


def move_on(
    rt: Runtime, work: RoomWork, item: WorkItem, row: PulseRow | None, *, may_start: bool = True
) -> MoveOutcome:
    """Raises QueueFull when its group takes no more: then nothing has moved, and the next tick tries again.
    `may_start`: whether a turn is to be tried; a row that needs none moves on in any case.
    """
    now = rt.now()
    step = next_step(item, row, now)
    if step.dedupe_key is not None and not may_start:
        return MoveOutcome(postponed=True)
    if step.dedupe_key is not None or (row is not None and step.row != row):
        fresh = work.again(item)
        if fresh is None:
            return MoveOutcome()
        item, step = fresh, next_step(fresh, row, now)
    if step.dedupe_key is None:
        return MoveOutcome(settled=not step.waits) if step.row == row else MoveOutcome(put=step)
    if not may_start:
        return MoveOutcome(postponed=True)
    try:
        agent, request = _request(rt, item, step.dedupe_key, now)
    except UserError as error:
        return MoveOutcome(fault=RoomError(f"{item.path}:1: {error}"))
    try:
        stored = _store(rt, agent, request, step.row, row)
    except LostRace:
        return MoveOutcome(moved=_skip_old_turn(rt, agent, step, step.dedupe_key, row))
    return MoveOutcome(settled=True, moved=True, intents=stored[1]) if stored else MoveOutcome()


def _request(rt: Runtime, item: WorkItem, dedupe_key: str, now: datetime) -> tuple[AgentSpec, TurnRequest]:
    agent = rt.agents.get(item.agent)
    thread = f"will:{agent.name}" if item.kind is WorkKind.WILL else item.name
    message = Message(
        origin=Origin(item.kind.value), channel=None, sender=Sender.SELF, thread_id=thread, text=item.text,
        meta={"path": item.path},
    )  # fmt: skip
    request = TurnRequest(
        message=message, agent=agent.name, source=SOURCE, dedupe_key=dedupe_key, when_busy=WhenBusy.ENQUEUE,
        while_waiting=WhileWaiting.HOLD,
    )  # fmt: skip
    return check_request(rt, request, now), request


def _store(
    rt: Runtime, agent: AgentSpec, request: TurnRequest, row: PulseRow, seen: PulseRow | None
) -> tuple[Admitted, list[Intent]] | None:
    """None where another process has moved the row first. Raises QueueFull for a will that has to wait for others."""
    arrivals.defer_will(rt, request, agent.name)
    with Unit(rt) as unit:
        if not pulse.put(unit.tx, replace(row, open=False), seen=seen):
            return None
        admitted = arrivals.admit(unit, agent, request, [])
        pulse.note_turn(unit.tx, row, admitted.turn_id)
    log.info("pulse", thread=admitted.thread_id, turn=admitted.turn_id, slot=request.dedupe_key)
    return admitted, unit.intents


def _skip_old_turn(rt: Runtime, agent: AgentSpec, step: PulseStep, dedupe_key: str, seen: PulseRow | None) -> bool:
    """There is a turn under this key from before the file was away for long. A slot is not filled twice; a task that
    is there again gets the next number.
    """
    with Unit(rt) as unit:
        turn_id = turns.by_dedupe_key(unit.tx, agent.name, SOURCE, dedupe_key)
        if turn_id is None:
            return False
        if step.row.kind is WorkKind.TASK:
            row = replace(seen or replace(step.row, seen=None, own=None), open=False, count=step.row.count)
            return pulse.put(unit.tx, row, seen=seen)
        moved = pulse.put(unit.tx, replace(step.row, open=False), seen=seen)
        if moved:
            pulse.note_turn(unit.tx, step.row, turn_id)
    return moved


@dataclass(slots=True)
class _Tick:
    rt: Runtime
    work: RoomWork
    intents: list[Intent] = field(default_factory=list)
    faults: dict[str, RoomError] = field(default_factory=dict)
    moved: bool = False
    turns: int = 0
    to_put: list[tuple[WorkItem, PulseRow | None, PulseStep]] = field(default_factory=list)

    def run(self) -> list[Intent]:
        memory, now = self.work.memory, self.rt.now()
        snapshot = self.work.read(give_ids=True)
        self.faults.update(snapshot.faults)
        is_full = memory.verified_at is None or abs(now.timestamp() - memory.verified_at) >= VERIFY.total_seconds()
        if snapshot.items or memory.known or is_full:
            self._note_ends()
            self._compare_all(snapshot, now) if is_full else self._compare_changed(snapshot, now)
        if is_full:
            memory.verified_at = now.timestamp()
        self._report(is_full)
        return self.intents

    def _note_ends(self) -> None:
        with self.rt.store.read() as tx:
            rows = pulse.ended(tx, BATCH)
        for row, after in rows:
            with Unit(self.rt) as unit:
                self.moved |= pulse.put(unit.tx, after, seen=row)

    def _compare_all(self, snapshot: WorkSnapshot, now: datetime) -> None:
        with self.rt.store.read() as tx:
            rows = {(row.kind, row.key): row for row in pulse.load_every(tx)}
        self.work.memory.known = bool(rows or snapshot.items)
        self._mark_gone((row for name, row in rows.items() if name not in snapshot.items), snapshot, now)
        with Unit(self.rt) as unit:
            pulse.forget_gone(unit.tx, now - KEPT)
        self.work.memory.postponed.keep(snapshot.items)
        self._move_on(snapshot.items.values(), rows)

    def _compare_changed(self, snapshot: WorkSnapshot, now: datetime) -> None:
        settled = self.work.memory.settled
        changed = [name for name, item in snapshot.items.items() if settled.get(name) is not item]
        missing = [name for name in settled if name not in snapshot.items]
        with self.rt.store.read() as tx:
            known = pulse.load_all(tx, [*changed, *missing])
            due = pulse.due(tx, now, BATCH + len(self.work.memory.logged))
        rows = {(row.kind, row.key): row for row in [*known, *due]}
        for name in missing:
            settled.pop(name, None)
        self._mark_gone((rows[name] for name in missing if name in rows), snapshot, now)
        names = dict.fromkeys([*changed, *((row.kind, row.key) for row in due)])
        self._move_on((snapshot.items[name] for name in names if name in snapshot.items), rows)

    def _mark_gone(self, rows: Iterable[PulseRow], snapshot: WorkSnapshot, now: datetime) -> None:
        """Their files are not there. The row of a file that cannot be read stays as it is."""
        for row in rows:
            if row.state is not PulseState.GONE and not snapshot.may_be_there(row.path):
                with Unit(self.rt) as unit:
                    self.moved |= pulse.put(unit.tx, replace(row, state=PulseState.GONE, gone_at=now), seen=row)

    def _move_on(self, items: Iterable[WorkItem], rows: dict[Name, PulseRow]) -> None:
        """A full queue refuses one item and may take the next, which replaces what is queued of the same work."""
        postponed = self.work.memory.postponed
        refused: list[Name] = []
        in_a_row: Counter[WorkKind] = Counter()
        for item in postponed.in_turn(items):
            name = (item.kind, item.key)
            may_start = self.turns < BATCH and in_a_row[item.kind] < REFUSALS
            try:
                outcome = move_on(self.rt, self.work, item, rows.get(name), may_start=may_start)
            except QueueFull as error:
                in_a_row[item.kind] += 1
                refused.append(name)
                self.work.memory.settled.pop(name, None)
                if postponed.refused(name):
                    log.info("postponed until there is room", item=item.name, why=str(error))
            else:
                self._note(item, rows.get(name), outcome)
                if outcome.intents:
                    in_a_row[item.kind] = 0
        postponed.to_the_end(refused)
        self._put_the_rest()

    def _note(self, item: WorkItem, row: PulseRow | None, outcome: MoveOutcome) -> None:
        name, memory = (item.kind, item.key), self.work.memory
        if outcome.put is not None:
            self.to_put.append((item, row, outcome.put))
        self.intents += outcome.intents
        self.turns += bool(outcome.intents)
        self.moved |= outcome.moved
        if outcome.fault is not None:
            self.faults[item.path] = outcome.fault
        if outcome.settled:
            memory.settled[name] = item
        else:
            memory.settled.pop(name, None)
        memory.postponed.not_tried(name) if outcome.postponed else memory.postponed.done(name)

    def _put_the_rest(self) -> None:
        """Rows that move without a turn, many in one transaction, always in the order of their keys."""
        rest = sorted(self.to_put, key=lambda put: (put[0].kind.value, put[0].key))
        for start in range(0, len(rest), BATCH):
            lot = rest[start : start + BATCH]
            with Unit(self.rt) as unit:
                moved = [pulse.put(unit.tx, step.row, seen=row) for _item, row, step in lot]
            self.moved |= any(moved)
            for (item, _row, step), is_moved in zip(lot, moved, strict=True):
                if is_moved and not step.waits:
                    self.work.memory.settled[item.kind, item.key] = item

    def _report(self, is_full: bool) -> None:
        """Log new faults, and write pulse.json where something has changed."""
        faults = {path: str(error) for path, error in self.faults.items()}
        before = self.work.memory.logged
        for path, why in faults.items():
            if before.get(path) != why:
                log.warning("a file of the room is skipped", fault=why)
        self.work.memory.logged = faults
        if self.moved or is_full or faults != before:
            self.work.mirror(view.standing_work(self.rt.store, self.work.snapshot, list(faults.values())))
