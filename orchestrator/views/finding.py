"""Which message somebody means: by its turn or run, its thread, its dedupe key, or how one of these ids begins."""

from __future__ import annotations

from chordage.orchestrator.core.errors import Conflict, NotFound
from chordage.orchestrator.store import runs, trace_reads
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.views.subjects import Subject, beginning


def turn_meant(store: Store, given: str, *, agent: str | None = None, source: str | None = None) -> str:
    """The id of its turn. With `agent` or `source` it is a dedupe key. Raises NotFound, or Conflict for several."""
    with store.read() as tx:
        found = None if agent or source else _by_id(tx, given)
        found = found or _by_key(tx, given, agent, source)
        if found is None and not (agent or source):
            found = _by_beginning(tx, given)
    if found is None:
        raise NotFound(_unknown(given, agent, source))
    return found


def _by_id(tx: Tx, given: str) -> str | None:
    if trace_reads.turn_row(tx, given) is not None:
        return given
    run = runs.load(tx, given)
    return run.turn_id if run else trace_reads.latest_on(tx, given)


def _by_key(tx: Tx, key: str, agent: str | None, source: str | None) -> str | None:
    found = trace_reads.with_dedupe_key(tx, key, agent=agent, source=source)
    if len(found) > 1:
        which = "; ".join(f"--agent {one['agent']} --source {one['source']}" for one in found)
        raise Conflict(f"several messages have the dedupe key {key!r}; say which with {which}")
    return found[0]["id"] if found else None


def _by_beginning(tx: Tx, start: str) -> str | None:
    found = beginning(tx, start, *Subject)
    if found is None:
        return None
    match found.subject:
        case Subject.TURN:
            return found.id
        case Subject.RUN:
            return found.of
        case Subject.THREAD:
            return trace_reads.latest_on(tx, found.id)


def _unknown(given: str, agent: str | None, source: str | None) -> str:
    scope = "".join(f" of {what} {name!r}" for what, name in (("agent", agent), ("source", source)) if name)
    what = f"message with the dedupe key {given!r}{scope}" if scope else f"turn, run, thread or dedupe key {given!r}"
    return (
        f"there is no {what}; `chordage turns` lists what there is. A message that was refused (it broke a rule, its "
        "thread was busy, or its queue full) was not stored: the error that its sender got is its account"
    )
