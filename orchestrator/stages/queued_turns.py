"""Not in the line of a turn: change a turn that is queued, to a lower group or to a later deadline.

The change is decided on the turn as it was read, and written only if it is still queued and as it was then. A start
locks the row of the turn, so one of the two waits for the other: either the turn starts as it was and the change is
refused, or it is changed and starts at a place of its new group. The journal row, the record of who did it and the
change are one transaction. The wake-up for the new group may be lost: rescue sends it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from chordage.orchestrator.core import message
from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, LostRace, NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Dispatch, Intent
from chordage.orchestrator.core.records import Checkpoint, Turn
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.run.unit import Unit, insist
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import audit, journal, turns

TRIES = 8


def change_queued_turn(
    rt: Runtime,
    turn_id: str,
    *,
    by: Actor,
    group: Group | None = None,
    deadline: datetime | None = None,
    space: str | None = None,
    check: Callable[[Turn], None] = lambda _: None,
) -> list[Intent]:
    """None: that stays. Its place in the line of its thread stays too, and the bound of the new group does not count.

    `space`: of a caller, who may change its own turns. `check` raises if the turn is not the one that was expected.
    """
    for _ in range(TRIES):
        with rt.store.read() as tx:
            turn = turns.load(tx, turn_id)
        if turn is None or not message.holds(space, turn.home_thread):
            raise NotFound(f"there is no turn {turn_id!r}; `chordage turns` lists them")
        check(turn)
        _check(turn, group, deadline, rt.now())
        to = (group or turn.group, deadline or turn.deadline)
        if to == (turn.group, turn.deadline):
            return []
        try:
            _, intents = insist(rt, lambda unit: _change(unit, turn, *to, by))  # noqa: B023 - called at once
        except LostRace:
            continue
        return intents
    raise Conflict(f"turn {turn_id!r} changes too fast to be changed: look at it, and try again")


def _check(turn: Turn, group: Group | None, deadline: datetime | None, now: datetime) -> None:
    if turn.status is not TurnStatus.QUEUED:
        state = "has started" if turn.status is TurnStatus.ACTIVE else "is done"
        raise Conflict(f"turn {turn.id} {state}: its group and its deadline can be changed only while it is queued")
    if turn.kin is not None:
        raise Conflict(f"turn {turn.id} is of a sub-agent, and waits in the group of the run that asked it")
    if turn.deadline is not None and turn.deadline <= now:
        raise Conflict(f"the deadline of turn {turn.id} has passed: send its message again")
    if group is not None and group.rank < turn.group.rank:
        problem = f"group {group.value!r} ranks above {turn.group.value!r}: a turn that waits can only be moved down"
        raise InvalidMessage(problem, field="group")
    if deadline is None:
        return
    if turn.deadline is None:
        raise Conflict(f"turn {turn.id} has no deadline to extend: it waits as long as it must")
    if deadline < turn.deadline:
        problem = f"turn {turn.id} has until {turn.deadline.isoformat()}: give a later time, or cancel it"
        raise InvalidMessage(problem, field="deadline")


def _change(unit: Unit, turn: Turn, group: Group, deadline: datetime | None, by: Actor) -> None:
    try:
        is_changed = turns.change_queued(unit.tx, turn, group=group, deadline=deadline, now=unit.now)
    except LostRace as same_work:
        problem = f"group {group.value!r} has a turn for the same work already: cancel one of the two"
        raise Conflict(problem) from same_work
    if not is_changed:
        raise LostRace
    body: dict[str, Any] = {"turn": turn.id, "group": group.value, "was_group": turn.group.value, "by": by.id}
    if deadline != turn.deadline:
        body |= {"deadline": _written(deadline), "was_deadline": _written(turn.deadline)}
    number = journal.count_notes(unit.tx, turn.id, Checkpoint.TURN_CHANGED)  # the row of the turn is locked by now
    row = journal.entry(turn.thread_id, turn.id, number, Checkpoint.TURN_CHANGED, body, unit.now)
    journal.append(unit.tx, [row])
    detail = {name: value for name, value in body.items() if name not in {"turn", "by"}}
    audit.record(unit.tx, by, Audited.TURN_CHANGED, turn.id, now=unit.now, detail=detail)
    if group is not turn.group:
        unit.follow(Dispatch(group=group))


def _written(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
