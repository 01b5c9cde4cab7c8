"""Why scheduled work has no turn now, and why a channel is not read now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from chordage.orchestrator.core.pulse import PulseRow, WorkKind, named
from chordage.orchestrator.core.why import reasons
from chordage.orchestrator.core.why.reasons import (
    CLOCK,
    PERSON,
    Finding,
    OwnerKind,
    Remedy,
    RowKey,
    RowKind,
    WaitCause,
    WaitClock,
    WaitOwner,
    WaitReason,
    at,
    first_match,
    is_past,
    one_line,
)

CHANNELS = Remedy(command="chordage channels", http="GET /channels")
NOT_POLLED = Remedy(command="chordage poll")


# tasks, chores and the will


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveWork:
    row: PulseRow
    since: datetime  # the end of its last turn, or when its schedule was first read


def _of_work(
    work: LiveWork,
    cause: WaitCause,
    owner: WaitOwner,
    text: str,
    *,
    until: datetime | None = None,
    remedy: Remedy | None = None,
    next_row: RowKey | None = None,
) -> Finding:
    row = work.row
    name = named(row.kind, row.key)
    run_now = Remedy(command=f"chordage pulse run {name}", http=f"POST /pulse/{name}/run")
    reason = WaitReason(
        kind=RowKind.PULSE, id=name, cause=cause, owner=owner, since=work.since, until=until, remedy=remedy or run_now,
        text=text,
    )  # fmt: skip
    return Finding(reason=reason, next=next_row)


def _turn_open(work: LiveWork, _clock: WaitClock) -> Finding | None:
    row = work.row
    if not row.open or row.turn_id is None:
        return None
    owner, text = WaitOwner(kind=OwnerKind.TURN, id=row.turn_id), f"Its turn {row.turn_id} has not ended."
    next_row = RowKey(RowKind.TURN, row.turn_id)
    return _of_work(work, WaitCause.TURN_OPEN, owner, text, remedy=reasons.cancel(row.turn_id), next_row=next_row)


def _paused(work: LiveWork, _clock: WaitClock) -> Finding | None:
    if not work.row.paused:
        return None
    if work.row.paused_by is not None:
        name = named(work.row.kind, work.row.key)
        remedy = Remedy(command=f"chordage pulse resume {name}", http=f"POST /pulse/{name}/resume")
        text = f"It was paused by {work.row.paused_by}, until it is resumed."
        return _of_work(work, WaitCause.PAUSED, PERSON, text, remedy=remedy)
    text = f"It is paused in {work.row.path}, until that line is removed."
    return _of_work(work, WaitCause.PAUSED, WaitOwner(kind=OwnerKind.FILE, id=work.row.path), text)


def _due_now(work: LiveWork, clock: WaitClock) -> Finding | None:
    if not is_past(work.row.next_due, clock):
        return None
    text = "It is due, and the next look at the schedules, which beat sends for, gives it a turn."
    return _of_work(work, WaitCause.DUE_NOW, CLOCK, text, remedy=reasons.STATUS)


def _due_later(work: LiveWork, _clock: WaitClock) -> Finding | None:
    due = work.row.next_due
    if due is None:
        return None
    words = f" ({work.row.schedule})" if work.row.schedule else ""
    return _of_work(work, WaitCause.DUE_LATER, CLOCK, f"It is next due at {at(due)}{words}.", until=due)


def _unchanged(work: LiveWork, _clock: WaitClock) -> Finding:
    what = "task" if work.row.kind is WorkKind.TASK else "file"
    text = f"Its {what} {work.row.path} has not changed since its last turn."
    return _of_work(work, WaitCause.UNCHANGED, PERSON, text)


WORK_TESTS = (_turn_open, _paused, _due_now, _due_later, _unchanged)


def of_work(work: LiveWork, clock: WaitClock) -> Finding:
    return first_match(WORK_TESTS, work, clock)


# polled channels


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelLook:
    """How a polled channel was last read."""

    name: str
    holder: str | None
    lease_until: datetime | None
    looked_at: datetime | None
    failures: int
    error: str | None
    next_look: datetime | None


def _of_channel(
    look: ChannelLook, clock: WaitClock, cause: WaitCause, owner: WaitOwner, text: str, until: datetime | None = None
) -> Finding:
    reason = WaitReason(
        kind=RowKind.CHANNEL, id=look.name, cause=cause, owner=owner, since=look.looked_at or clock.now, until=until,
        remedy=NOT_POLLED if cause is WaitCause.NOT_POLLED else CHANNELS, text=text,
    )  # fmt: skip
    return Finding(reason=reason)


def _not_polled(look: ChannelLook, clock: WaitClock) -> Finding | None:
    if look.holder is not None and not is_past(look.lease_until, clock):
        return None
    text = "No process polls it; the role `poll` does, which `chordage run` and `chordage poll` start."
    return _of_channel(look, clock, WaitCause.NOT_POLLED, WaitOwner(kind=OwnerKind.CHANNEL, id=look.name), text)


def _backs_off(look: ChannelLook, clock: WaitClock) -> Finding | None:
    if not look.failures:
        return None
    tried = f"{look.failures} times in a row" if look.failures > 1 else "once"
    error = one_line(look.error or "it is not known what failed")
    text = f"It failed {tried}, and is polled again later; the last error: {error}"
    owner = WaitOwner(kind=OwnerKind.CHANNEL, id=look.name)
    return _of_channel(look, clock, WaitCause.POLL_BACKOFF, owner, text, look.next_look)


def _queue_full(look: ChannelLook, clock: WaitClock) -> Finding | None:
    if look.next_look is None or is_past(look.next_look, clock):
        return None
    text = f"There is no room for its messages: {one_line(look.error or 'a queue is full')}"
    owner = WaitOwner(kind=OwnerKind.CHANNEL, id=look.name)
    return _of_channel(look, clock, WaitCause.QUEUE_FULL, owner, text, look.next_look)


def _polled(look: ChannelLook, clock: WaitClock) -> Finding:
    owner, text = WaitOwner(kind=OwnerKind.PROCESS, id=look.holder), f"Process {look.holder} polls it."
    return _of_channel(look, clock, WaitCause.POLLED, owner, text, look.lease_until)


CHANNEL_TESTS = (_not_polled, _backs_off, _queue_full, _polled)


def of_channel(look: ChannelLook, clock: WaitClock) -> Finding:
    return first_match(CHANNEL_TESTS, look, clock)
