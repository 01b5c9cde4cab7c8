"""What an id is the id of, also where only its first letters are given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from chordage.orchestrator.core.errors import Conflict, NotFound
from chordage.orchestrator.store import id_prefix, runs, threads, turns
from chordage.orchestrator.store.database import Store, Tx

SHORTEST = 4  # letters that are taken for the beginning of an id
SHOWN = 3  # of several that begin alike


class Subject(StrEnum):
    TURN = "turn"
    RUN = "run"
    THREAD = "thread"


@dataclass(frozen=True, kw_only=True, slots=True)
class Meant:
    subject: Subject
    id: str
    of: str  # of a turn its thread, of a run its turn, of a thread itself


_BEGINNING = {
    Subject.TURN: id_prefix.turns_beginning,
    Subject.RUN: id_prefix.runs_beginning,
    Subject.THREAD: id_prefix.threads_beginning,
}


def subject_of(store: Store, given: str) -> tuple[Subject, str]:
    """Raises NotFound, or Conflict where several begin so."""
    with store.read() as tx:
        if (subject := _named(tx, given)) is not None:
            return subject, given
        found = beginning(tx, given, *Subject)
    if found is None:
        raise NotFound(
            f"there is no turn, run or thread {given!r}; `chordage turns` and `chordage threads` list what there is"
        )
    return found.subject, found.id


def whole(store: Store, subject: Subject, given: str) -> str:
    """The id in full. What begins none is handed back as it is: whoever asks for it says that it is not there."""
    with store.read() as tx:
        found = None if _is(tx, subject, given) else beginning(tx, given, subject)
    return found.id if found else given


def beginning(tx: Tx, start: str, *among: Subject) -> Meant | None:
    """The only one that begins so. A turn that begins so too stands for its run and its thread."""
    if len(start) < SHORTEST:
        return None
    found = list(_beginning(tx, start, among))
    if len(found) > 1:
        told = ", ".join(f"{one.subject} {one.id}" for one in found[:SHOWN])
        raise Conflict(f"several ids begin with {start!r}, such as {told}; give more of it")
    return found[0] if found else None


def _beginning(tx: Tx, start: str, among: tuple[Subject, ...]) -> Iterator[Meant]:
    """What is made together has nearly one id: the turn stands for its run and its thread, which it names."""
    told: set[str] = set()
    for subject in among:
        for one in _BEGINNING[subject](tx, start):
            if subject is Subject.TURN or one.of not in told:
                yield Meant(subject=subject, id=one.id, of=one.of)
            told |= {one.id, one.of}


def _named(tx: Tx, given: str) -> Subject | None:
    return next((subject for subject in Subject if _is(tx, subject, given)), None)


def _is(tx: Tx, subject: Subject, given: str) -> bool:
    match subject:
        case Subject.TURN:
            return turns.is_done(tx, given) is not None
        case Subject.RUN:
            return runs.load(tx, given) is not None
        case Subject.THREAD:
            return threads.exists(tx, given)
