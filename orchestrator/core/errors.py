"""Everything that can go wrong, as one tree.

ChordageError
├── UserError                what somebody outside can put right; its text says what, where and what to do
│   ├── InvalidMessage       a message or turn request breaks a rule
│   ├── InvalidDecision      a decision does not fit what was asked
│   ├── UnknownAgent         no such agent in the room
│   ├── NotFound             no such turn, run, thread or call
│   ├── Conflict             the thing is not in a state that allows this
│   │   └── StepRefused      a stepped run does not take this verb now; says why in a code, and at which revision
│   ├── RoomError            agent.toml or a tool import is broken
│   │   └── BrokenAgent      this agent cannot be used until its file or its Python is repaired; work for it waits
│   ├── ConfigError          a setting is missing or wrong
│   ├── QueueFull            a group takes no more for now; says after how many seconds to try again
│   ├── Undeliverable        a channel refuses a reply for good: trying again would not help
│   └── Unavailable          a service we need does not answer
│       ├── Crossed          the database undid a transaction that was in conflict with another; safe to repeat
│       ├── TryLater         it answers, and says when it will take what we have
│       └── WrongSchema      the database is older or newer than this code
├── ModelFailed              all attempts at a model call failed; carries the attempts
├── HandedOver               this process is stopping: somebody else shall do this work
├── Aborted                  the work was cancelled while it ran
├── OutOfTime                the time limit of the run was reached while the work ran
├── LostRace                 somebody else moved the row first: undo, and walk away
└── IllegalTransition        a bug of ours: a state was to move where no table allows it
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chordage.orchestrator.core.model import Attempt, Fault


class ChordageError(Exception):
    """Something went wrong in chordage."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class UserError(ChordageError):
    """The request cannot be carried out as it is."""


class InvalidMessage(UserError):
    """The message breaks a rule."""

    def __init__(self, message: str, *, field: str, too_large: bool = False) -> None:
        super().__init__(message)
        self.field = field
        self.too_large = too_large


class InvalidDecision(UserError):
    """The decision does not fit what was asked."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class UnknownAgent(UserError):
    """No agent of that name is in the room."""


class NotFound(UserError):
    """There is no such row."""


class Conflict(UserError):
    """The state of the thing does not allow this."""


class StepRefused(Conflict):
    """The stepped run does not take this verb now. `code` is for programs; `rev` and `standing` are what it is at."""

    def __init__(self, message: str, code: str = "refused", rev: int | None = None, standing: str = "") -> None:
        super().__init__(message)
        self.args = (message, code, rev, standing)  # with all of it in them, it comes whole out of a Celery result
        self.code = code
        self.rev = rev
        self.standing = standing

    def __str__(self) -> str:
        return str(self.args[0])


class RoomError(UserError):
    """A file of the room is broken."""


class BrokenAgent(RoomError):
    """An agent cannot be used until its file, or the Python that it names, is repaired."""


class ConfigError(UserError):
    """A setting is missing or wrong."""


class QueueFull(UserError):
    """The group takes no more turns for now."""

    def __init__(self, message: str, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.args = (message, retry_after)  # with all of it in them, it comes whole out of a Celery result
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class Undeliverable(UserError):
    """The channel refuses this reply for good."""


class Unavailable(UserError):
    """A service that is needed does not answer."""


class Crossed(Unavailable):
    """A transaction was in conflict with another; nothing was stored, and it is safe to repeat."""


class TryLater(Unavailable):
    """The other side wants to be asked again later."""

    def __init__(self, message: str, seconds: float | None = None) -> None:
        super().__init__(message)
        self.args = (message, seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return str(self.args[0])


class WrongSchema(Unavailable):
    """The database is not at the schema version this code needs: run `chordage migrate`."""


class ModelFailed(ChordageError):
    """Every attempt at a model call failed."""

    def __init__(self, message: str, *, fault: Fault, attempts: tuple[Attempt, ...]) -> None:
        super().__init__(message)
        self.fault = fault
        self.attempts = attempts


class HandedOver(ChordageError):
    """This process is stopping; the work goes to another."""


class Aborted(ChordageError):
    """The work was cancelled while it ran."""


class OutOfTime(ChordageError):
    """The time limit of the turn was reached while the work ran."""

    attempts: tuple[Attempt, ...] = ()  # of a model call: the requests that were made until then


class LostRace(ChordageError):
    """Somebody else was first; the transaction is undone and nothing is wrong."""


class IllegalTransition(ChordageError):
    """A bug of ours: no table allows this move."""


def alternatives(wrong: str, known: Collection[str]) -> str:
    """What to write instead of a name that does not exist, as the end of an error."""
    from difflib import get_close_matches  # only errors need it

    names = sorted(known)
    close = get_close_matches(wrong, names, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(names) or 'none'}"
