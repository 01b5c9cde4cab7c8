"""What an id names, also when only its first letters, a dedupe key or a thread is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from chordage.orchestrator.core import message
from chordage.orchestrator.core.errors import Conflict, NotFound
from chordage.orchestrator.store import id_prefix, runs, threads, trace_reads, turns
from chordage.orchestrator.store.database import Store, Tx

SHORTEST_PREFIX = 4  # letters
LISTED = 3  # of several ids with the same prefix


class IdKind(StrEnum):
    TURN = "turn"
    RUN = "run"
    THREAD = "thread"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Match:
    kind: IdKind
    id: str
    of: str  # of a turn its thread, of a run its turn, of a thread itself


_WITH_PREFIX = {
    IdKind.TURN: id_prefix.turns_beginning,
    IdKind.RUN: id_prefix.runs_beginning,
    IdKind.THREAD: id_prefix.threads_beginning,
}


def identify(store: Store, some_id: str, *, space: str | None = None) -> tuple[IdKind, str]:
    """The kind of an id, and the id in full. Raises NotFound, or Conflict if several ids have that prefix.

    A caller with a `space` learns nothing of what is outside it, not even that it is there.
    """
    with store.read() as tx:
        kind = next((kind for kind in IdKind if _is_there(tx, kind, some_id, space)), None)
        match = None if kind is not None else _only_match(tx, some_id, *IdKind, space=space)
    if kind is not None:
        return kind, some_id
    if match is None:
        raise NotFound(
            f"there is no turn, run or thread {some_id!r}; `chordage turns` and `chordage threads` list what there is"
        )
    return match.kind, match.id


def full_id(store: Store, kind: IdKind, prefix: str) -> str:
    """The id with that prefix. An unknown one is returned unchanged: the read that uses it reports it as missing."""
    with store.read() as tx:
        match = None if _is_there(tx, kind, prefix, None) else _only_match(tx, prefix, kind)
    return match.id if match else prefix


def find_turn(store: Store, some_id: str, *, agent: str | None = None, source: str | None = None) -> str:
    """The turn of a message: by its own id, its run, its thread (the latest turn there) or its dedupe key. With `agent`
    or `source`, `some_id` is a dedupe key. Raises NotFound, or Conflict if there are several.
    """
    is_key = bool(agent or source)
    with store.read() as tx:
        turn_id = None if is_key else _turn_by_id(tx, some_id)
        turn_id = turn_id or _turn_by_key(tx, some_id, agent, source)
        if turn_id is None and not is_key:
            turn_id = _turn_by_prefix(tx, some_id)
    if turn_id is not None:
        return turn_id
    scope = "".join(f" of {what} {name!r}" for what, name in (("agent", agent), ("source", source)) if name)
    what = (
        f"message with the dedupe key {some_id!r}{scope}" if scope else f"turn, run, thread or dedupe key {some_id!r}"
    )
    raise NotFound(
        f"there is no {what}; `chordage turns` lists the turns. A message that was refused (it broke a rule, its "
        "thread was busy, or its queue was full) was not stored: its sender got the reason as an error"
    )


def _turn_by_id(tx: Tx, some_id: str) -> str | None:
    if trace_reads.turn_row(tx, some_id) is not None:
        return some_id
    run = runs.load(tx, some_id)
    return run.turn_id if run else trace_reads.latest_on(tx, some_id)


def _turn_by_key(tx: Tx, key: str, agent: str | None, source: str | None) -> str | None:
    rows = trace_reads.with_dedupe_key(tx, key, agent=agent, source=source)
    if len(rows) > 1:
        which = "; ".join(f"--agent {row['agent']} --source {row['source']}" for row in rows)
        raise Conflict(f"several messages have the dedupe key {key!r}; say which with {which}")
    return rows[0]["id"] if rows else None


def _turn_by_prefix(tx: Tx, prefix: str) -> str | None:
    if (match := _only_match(tx, prefix, *IdKind)) is None:
        return None
    if match.kind is IdKind.THREAD:
        return trace_reads.latest_on(tx, match.id)
    return match.of if match.kind is IdKind.RUN else match.id


def _only_match(tx: Tx, prefix: str, *kinds: IdKind, space: str | None = None) -> _Match | None:
    """The only id with that prefix."""
    if len(prefix) < SHORTEST_PREFIX:
        return None
    matches = [match for match in _matches(tx, prefix, kinds) if _is_there(tx, match.kind, match.id, space)]
    if len(matches) > 1:
        listed = ", ".join(f"{match.kind} {match.id}" for match in matches[:LISTED])
        raise Conflict(f"several ids begin with {prefix!r}, such as {listed}; give more of it")
    return matches[0] if matches else None


def _matches(tx: Tx, prefix: str, kinds: tuple[IdKind, ...]) -> Iterator[_Match]:
    """A turn, its run and its thread are made together and have nearly the same id: the turn is named for all three."""
    covered: set[str] = set()
    for kind in kinds:
        for row in _WITH_PREFIX[kind](tx, prefix):
            if kind is IdKind.TURN or row.of not in covered:
                yield _Match(kind=kind, id=row.id, of=row.of)
            covered |= {row.id, row.of}


def _is_there(tx: Tx, kind: IdKind, some_id: str, space: str | None) -> bool:
    """Whether there is such a row, whose conversation is in the space."""
    home: str | None = None
    match kind:
        case IdKind.TURN:
            if space is None:  # the record with its key is all that is needed
                return turns.is_done(tx, some_id) is not None
            turn = turns.load(tx, some_id)
            home = None if turn is None else turn.home_thread
        case IdKind.RUN:
            run = runs.load(tx, some_id)
            home = None if run is None else run.home_thread
        case IdKind.THREAD:
            home = turns.home_of_thread(tx, some_id) if threads.exists(tx, some_id) else None
    return home is not None and message.holds(space, home)
