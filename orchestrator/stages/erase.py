"""Not in the line of a turn: delete all that is stored of a thread, or of a sender, whatever still needs it.

What is open is cancelled first. Each thread is a transaction of its own, those of sub-agents and forks before the
thread that they came of. A process that dies has erased some of them whole; the same call erases the rest. The record
has an entry before the first and another behind the last, with a digest of what was named: a name may be an address.
By that entry a call is known whose threads are all gone, and whose process died before it came to the other stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, LostRace, NotFound
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.run import cancelling
from chordage.orchestrator.run.unit import Unit, insist
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import audit, erasure
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.erasure import ErasedNames

TRIES = 20
REASON = "its thread is erased"


@dataclass(frozen=True, kw_only=True, slots=True)
class ErasureSubject:
    """What is to be erased: threads, in the order in which they go, and names that other rows may mention."""

    threads: tuple[str, ...]
    name: str  # as it was given

    @property
    def digest(self) -> str:
        return erasure.digest_of(self.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Erased:
    """`rows`: by table. `is_overwritten`: False where a process reads an SQLite database at this moment, whose log
    keeps pages until that is over.
    """

    names: ErasedNames
    rows: Counter[str]
    is_overwritten: bool


def thread_to_erase(rt: Runtime, thread_id: str) -> ErasureSubject:
    """Raises NotFound, and Conflict for a thread that is not erased by itself."""
    with rt.store.read() as tx:
        if not (found := _family(tx, thread_id)) and not erasure.is_recorded(tx, thread_id):
            raise NotFound(f"there is no thread {thread_id!r}; `chordage threads` lists them")
    return ErasureSubject(threads=tuple(found), name=thread_id)


def sender_to_erase(rt: Runtime, sender: str, *, shared: bool) -> ErasureSubject:
    """All threads on which this sender has written. `shared`: also those on which others have. Raises NotFound, and
    Conflict where there are such threads and `shared` was not given.
    """
    if not sender.strip():
        raise InvalidMessage("a sender has a name: give a key, a user or an address of a channel", field="sender")
    with rt.store.read() as tx:
        own, others = erasure.threads_of(tx, sender)
        if not own and not others and not erasure.is_recorded(tx, sender):
            raise NotFound(f"no turn was sent by {sender!r}; `chordage show TURN` says who sent one")
        if others and not shared:
            listed = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
            raise Conflict(
                f"others have written on {listed}: these threads hold what {sender!r} wrote and the answers to it; "
                "give --shared to erase them whole"
            )
        found = [thread for one in [*own, *others] for thread in _family(tx, one)]
    return ErasureSubject(threads=tuple(dict.fromkeys(found)), name=sender)


def _family(tx: Tx, thread_id: str) -> list[str]:
    if (root := erasure.parent_of(tx, thread_id)) is not None:
        raise Conflict(
            f"thread {thread_id!r} is that of a sub-agent, whose answer is on thread {root!r}: erase that one"
        )
    if erasure.is_own_work(tx, thread_id):
        raise Conflict(
            f"thread {thread_id!r} is that of a file of the room: remove the file, and `chordage prune` the rest"
        )
    return erasure.family(tx, thread_id)


def count_erasure(rt: Runtime, subject: ErasureSubject) -> Counter[str]:
    """The rows that would be deleted, by table."""
    with rt.store.read() as tx:
        return sum((erasure.count(tx, thread_id) for thread_id in subject.threads), Counter())


def erase(rt: Runtime, subject: ErasureSubject, *, by: Actor) -> tuple[Erased, list[Intent]]:
    """Raises Conflict where messages keep coming."""
    _record(rt, subject, by, {})
    intents = [intent for thread_id in reversed(subject.threads) for intent in _cancel(rt, thread_id)]
    names, rows = ErasedNames(), Counter[str]()
    for thread_id in subject.threads:
        gone, deleted, more = _erase_thread(rt, thread_id)
        names, rows, intents = names | gone, rows + deleted, [*intents, *more]
    with Unit(rt) as unit:
        erasure.overwrite_deleted(unit.tx)
        rows += erasure.remove_mentions(unit.tx, {subject.name, *names.threads})
    _record(rt, subject, by, +rows)
    with rt.store.read() as tx:
        is_overwritten = erasure.fold_log_in(tx)
    return Erased(names=names, rows=+rows, is_overwritten=is_overwritten), intents


def _erase_thread(
    rt: Runtime, thread_id: str, above: frozenset[str] = frozenset()
) -> tuple[ErasedNames, Counter[str], list[Intent]]:
    """Also what has come of it since its family was listed. `above`: those of which it came, which go after it."""
    names, rows, intents = ErasedNames(), Counter[str](), list[Intent]()
    for _ in range(TRIES):
        with Unit(rt) as unit:
            erasure.overwrite_deleted(unit.tx)
            removed = erasure.remove(unit.tx, thread_id, above)
        if removed is not None:
            return names | removed[0], rows + removed[1], intents
        intents += _cancel(rt, thread_id)
        with rt.store.read() as tx:
            *below, _ = erasure.family(tx, thread_id) or [thread_id]
        for one in below:
            if one in above:
                continue
            gone, deleted, more = _erase_thread(rt, one, above | {thread_id})
            names, rows, intents = names | gone, rows + deleted, [*intents, *more]
    raise Conflict(f"messages keep coming to thread {thread_id!r}: stop its sender, and erase it again")


def _cancel(rt: Runtime, thread_id: str) -> list[Intent]:
    """Where a turn starts at this moment it is left to the next try."""
    with rt.store.read() as tx:
        open_turns = erasure.open_turns(tx, thread_id)
    intents: list[Intent] = []
    for turn_id in open_turns:
        with suppress(LostRace):
            intents += insist(rt, partial(_cancel_turn, turn_id))[1]
    return intents


def _cancel_turn(turn_id: str, unit: Unit) -> bool:
    return cancelling.cancel(unit, turn_id, REASON)


def _record(rt: Runtime, subject: ErasureSubject, by: Actor, rows: Mapping[str, int]) -> None:
    detail = {"threads": len(subject.threads), "rows": dict(rows)}
    with Unit(rt) as unit:
        audit.record(unit.tx, by, Audited.ERASED, subject.digest, now=unit.now, detail=detail)
