"""Why a row waits: one reason, who holds it, since when, until when, and what changes it.

The words are those of core/why; the facts are read in views/wait_facts.py. What a row waits for has a reason of its
own, which is given with it, down to the one that has no other behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from chordage.orchestrator.core import message
from chordage.orchestrator.core.errors import Conflict, NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.pulse import named
from chordage.orchestrator.core.why.reasons import Finding, RowKey, RowKind, WaitCause, WaitReason
from chordage.orchestrator.store import approvals, calls, id_prefix, outbox, polls, runs, turns, waits
from chordage.orchestrator.store import pulse as pulse_rows
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.views.ids import LISTED, SHORTEST_PREFIX, IdKind, identify
from chordage.orchestrator.views.wait_facts import WaitSources, findings, work_key

DEEPEST = 12  # reasons behind one another
MOST = 500  # rows of a list
LONGEST_NUMBER = 18  # digits of the id of a delivery
_PREFIXES = {RowKind.PULSE: "pulse:", RowKind.CHANNEL: "channel:"}
_LISTS = {
    RowKind.PULSE: "there is no task, chore or will {!r} on record; `chordage pulse` lists their names",
    RowKind.CHANNEL: "there is no polled channel {!r} on record; `chordage channels` lists their names",
}
_KINDS = {IdKind.TURN: RowKind.TURN, IdKind.RUN: RowKind.RUN, IdKind.THREAD: RowKind.THREAD}


@dataclass(frozen=True, kw_only=True, slots=True)
class WhyView:
    """`reason` is null for what does not wait; `text` then says how it ended."""

    kind: RowKind
    id: str
    reason: WaitReason | None
    text: str


def why(sources: WaitSources, some_id: str) -> WhyView:
    """Of a turn, a run, a thread, a call, a suspension or a delivery, whose first letters are enough; for operators
    also of scheduled work, as `pulse:NAME`, and of a channel, as `channel:NAME`.
    """
    space = sources.space
    key = _find(sources, some_id)
    with sources.store.read() as tx:
        row = _read(tx, key)
    if row is None or (space is not None and (row.home is None or not message.holds(space, row.home))):
        raise _not_found(some_id)
    reason = whys(sources, [row.key]).get(row.key)
    text = reason.text if reason else f"{key.kind.value.capitalize()} {key.id} does not wait: {row.state}."
    return WhyView(kind=key.kind, id=key.id, reason=reason, text=text)


def whys(sources: WaitSources, keys: Collection[RowKey]) -> dict[RowKey, WaitReason]:
    """The reasons of those of these rows that wait. A list costs as many statements as one row."""
    found: dict[RowKey, Finding] = {}
    wanted = set(keys)
    for _ in range(DEEPEST):
        level = wanted - found.keys()
        if not level:
            break
        of_level = findings(sources, level)
        found |= of_level
        wanted = {finding.next for finding in of_level.values() if finding.next is not None}
    return {key: _with_causes(found, key, {key}) for key in keys if key in found}


def _with_causes(found: Mapping[RowKey, Finding], key: RowKey, before: set[RowKey]) -> WaitReason:
    finding = found[key]
    behind = finding.next
    if behind is None or behind in before or behind not in found:
        return finding.reason
    return replace(finding.reason, because=_with_causes(found, behind, {*before, behind}))


def waiting(sources: WaitSources, *, limit: int = 50) -> list[WaitReason]:
    """What waits, oldest first: open turns and deliveries; for operators also scheduled work that is due and channels
    that are not read.
    """
    limit, space = min(limit, MOST), sources.space
    with sources.store.read() as tx:
        turn_ids = {
            *(turn_id for group in Group for turn_id in waits.oldest_queued(tx, group, limit, space=space)),
            *waits.oldest_waiting(tx, limit, space=space),
            *waits.oldest_running(tx, limit, space=space),
        }
        keys = [RowKey(RowKind.TURN, turn_id) for turn_id in sorted(turn_ids)]
        keys += [RowKey(RowKind.DELIVERY, str(number)) for number in waits.oldest_unsent(tx, limit, space=space)]
        if space is None:
            keys += [RowKey(RowKind.PULSE, named(row.kind, row.key)) for row in pulse_rows.due(tx, sources.now, limit)]
            keys += [RowKey(RowKind.CHANNEL, row["name"]) for row in polls.load_all(tx)]
    reasons = [reason for reason in whys(sources, keys).values() if reason.cause is not WaitCause.POLLED]
    return sorted(reasons, key=lambda reason: (reason.since, reason.kind, reason.id))[:limit]


# what an id names


def _find(sources: WaitSources, some_id: str) -> RowKey:
    for outside, prefix in _PREFIXES.items():
        if some_id.startswith(prefix):
            return RowKey(outside, some_id.removeprefix(prefix))
    try:
        kind, full_id = identify(sources.store, some_id)
    except Conflict:
        if sources.space is None:
            raise
        raise _not_found(some_id) from None  # the ids of others are not told
    except NotFound:
        with sources.store.read() as tx:
            key = _with_id(tx, some_id) or _beginning(tx, some_id, sources.space)
        if key is None:
            raise _not_found(some_id) from None
        return key
    return RowKey(_KINDS[kind], full_id)


def _with_id(tx: Tx, some_id: str) -> RowKey | None:
    if waits.calls_of(tx, [some_id]):
        return RowKey(RowKind.CALL, some_id)
    if waits.questions_of(tx, [some_id]):
        return RowKey(RowKind.SUSPENSION, some_id)
    is_number = some_id.isascii() and some_id.isdecimal() and len(some_id) <= LONGEST_NUMBER
    return RowKey(RowKind.DELIVERY, str(int(some_id))) if is_number and outbox.load(tx, int(some_id)) else None


def _beginning(tx: Tx, prefix: str, space: str | None) -> RowKey | None:
    if len(prefix) < SHORTEST_PREFIX or space is not None:
        return None
    keys = [RowKey(RowKind.CALL, match.id) for match in id_prefix.calls_beginning(tx, prefix)]
    keys += [RowKey(RowKind.SUSPENSION, match.id) for match in id_prefix.suspensions_beginning(tx, prefix)]
    if len(keys) > 1:
        listed = ", ".join(f"{key.kind} {key.id}" for key in keys[:LISTED])
        raise Conflict(f"several ids begin with {prefix!r}, such as {listed}; give more of it")
    return keys[0] if keys else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _AskedRow:
    """`key`: whose reason is given. `home`: the thread of its conversation; None: it has none. `state`: in words, for
    what does not wait.
    """

    key: RowKey
    home: str | None
    state: str


def _read(tx: Tx, key: RowKey) -> _AskedRow | None:
    """None: there is no such row."""
    match key.kind:
        case RowKind.THREAD:
            turn_id = waits.latest_on(tx, key.id)
            if turn_id is None:
                return _AskedRow(key=key, home=key.id, state="nothing is open or queued on it")
            return _read(tx, RowKey(RowKind.TURN, turn_id))
        case RowKind.TURN:
            if (turn := turns.load(tx, key.id)) is None:
                return None
            return _AskedRow(key=key, home=turn.home_thread, state=(turn.disposition or turn.status).value)
        case RowKind.RUN:
            return _of_run(tx, key, key.id, "")
        case RowKind.CALL:
            call = calls.load(tx, key.id)
            return _of_run(tx, key, call.run_id, call.code or call.status.value) if call else None
        case RowKind.SUSPENSION:
            asked = approvals.load(tx, key.id)
            return _of_run(tx, key, asked.run_id, asked.status.value) if asked else None
        case RowKind.DELIVERY:
            delivery = outbox.load(tx, int(key.id))
            return _AskedRow(key=key, home=delivery.thread_id, state=delivery.status.value) if delivery else None
        case RowKind.PULSE:
            name = work_key(key.id)
            work = pulse_rows.load(tx, *name) if name else None
            return _AskedRow(key=key, home=None, state=work.state.value) if work else None
        case RowKind.CHANNEL:
            look = polls.load(tx, key.id)
            return _AskedRow(key=key, home=None, state="it is polled") if look else None


def _of_run(tx: Tx, key: RowKey, run_id: str, state: str) -> _AskedRow | None:
    if (run := runs.load(tx, run_id)) is None:
        return None
    return _AskedRow(key=key, home=run.home_thread, state=state or (run.code or run.reason or run.status))


def _not_found(some_id: str) -> NotFound:
    for kind, prefix in _PREFIXES.items():
        if some_id.startswith(prefix):
            return NotFound(_LISTS[kind].format(some_id.removeprefix(prefix)))
    return NotFound(
        f"there is no turn, run, thread, call, suspension or delivery {some_id!r}; `chordage why` lists what waits"
    )
