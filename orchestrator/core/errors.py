"""The errors of Chordage, as one tree.

ChordageError
├── UserError                the user can correct it; its text says what, where and what to do
│   ├── InvalidMessage       a message or turn request breaks a rule
│   ├── InvalidDecision      a decision does not fit what was asked
│   ├── UnknownAgent         no such agent in the room
│   ├── NotFound             no such turn, run, thread or call
│   ├── Conflict             the state does not allow this
│   │   ├── StaleRevision    it has changed since the caller read it
│   │   └── StepRefused      a stepped run refuses this verb now; has a code, and the revision of the turn
│   ├── RoomError            agent.toml or a tool import is broken
│   │   └── BrokenAgent      this agent cannot be used until its file or its Python is repaired; work for it waits
│   ├── ConfigError          a setting is missing or wrong
│   ├── QueueFull            a group takes no more turns for now; has the seconds until a retry
│   ├── Unauthenticated      the request carries no key, or one that is not valid
│   ├── Forbidden            the key does not allow this; has the scope that is missing
│   ├── TooManyRequests      the key or its tenant has used up its rate; has the seconds until a retry
│   ├── Undeliverable        a channel refuses a reply for good: a retry would not help
│   ├── AnswerTooLarge       a server answers with more than the client of the HTTP API reads
│   └── Unavailable          a service we need does not answer
│       ├── Crossed          the database rolled back a transaction that conflicted with another; safe to repeat
│       ├── TryLater         it answers, and wants the request again later
│       ├── WrongKey         stored contents cannot be decrypted with the keys that are given
│       └── WrongSchema      the database is older or newer than this code
├── ModelFailed              all attempts at a model call failed; has the attempts
├── HandedOver               this process is stopping, so another one does the work
├── Aborted                  the work was cancelled while it ran
├── OutOfTime                the time limit of the run was reached while the work ran
├── LostRace                 another process moved the row first: roll back, and stop
└── IllegalTransition        a bug of Chordage: no table allows this move of a state
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chordage.orchestrator.core.model import Attempt, Fault
    from chordage.orchestrator.core.rates import Allowance


class ChordageError(Exception):
    """An error of Chordage."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())

    def __str__(self) -> str:
        return str(self.args[0])


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
    """No agent of that name is in the room. `problem`: without places in the room, for callers over HTTP. `broken`:
    files of which one may be meant.
    """

    def __init__(self, problem: str, *, where: str | None = None, broken: str = "") -> None:
        super().__init__(f"{problem if where is None else f'{where}: {problem}'}{broken}")
        self.problem = problem


class NotFound(UserError):
    """There is no such row."""


class Conflict(UserError):
    """The state does not allow this."""


class StaleRevision(Conflict):
    """It has changed since it was read."""


class StepRefused(Conflict):
    """The stepped run refuses this verb now. `code` is for programs; `rev` and `standing` are those of the turn."""

    def __init__(self, message: str, code: str = "refused", rev: int | None = None, standing: str = "") -> None:
        super().__init__(message)
        self.args = (message, code, rev, standing)  # so that it keeps all of them in a Celery result
        self.code = code
        self.rev = rev
        self.standing = standing


class RoomError(UserError):
    """A file of the room is broken."""


class BrokenAgent(RoomError):
    """An agent cannot be used until its file, or the Python that it names, is repaired. `agent`: its name, if known."""

    def __init__(self, message: str, agent: str | None = None) -> None:
        super().__init__(message)
        self.args = (message, agent)  # so that it keeps both in a Celery result
        self.agent = agent


class ConfigError(UserError):
    """A setting is missing or wrong."""


class QueueFull(UserError):
    """The group takes no more turns for now."""

    def __init__(self, message: str, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.args = (message, retry_after)  # so that it keeps both in a Celery result
        self.retry_after = retry_after


class Unauthenticated(UserError):
    """The request carries no valid key."""


class Forbidden(UserError):
    """The key does not allow this."""

    def __init__(self, message: str, *, scope: str | None = None) -> None:
        super().__init__(message)
        self.scope = scope


class TooManyRequests(UserError):
    """The rate of the key or of its tenant is used up."""

    def __init__(self, message: str, retry_after: float, allowances: tuple[Allowance, ...] = ()) -> None:
        super().__init__(message)
        self.args = (message, retry_after, allowances)
        self.retry_after = retry_after
        self.allowances = allowances  # what is left of each rate


class AnswerTooLarge(UserError):
    """The answer of the server is longer than the client may read."""


class Undeliverable(UserError):
    """The channel refuses this reply for good."""


class Unavailable(UserError):
    """A required service does not answer."""


class Crossed(Unavailable):
    """A transaction was in conflict with another; nothing was stored, and it is safe to repeat."""


class TryLater(Unavailable):
    """The service wants the request again later."""

    def __init__(self, message: str, seconds: float | None = None) -> None:
        super().__init__(message)
        self.args = (message, seconds)  # so that it keeps both in a Celery result
        self.seconds = seconds


class WrongKey(Unavailable):
    """Stored contents cannot be decrypted with the keys that are given."""


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
    """Another process was first. The transaction is rolled back, and nothing is wrong."""


class IllegalTransition(ChordageError):
    """A bug of Chordage: no table allows this move."""


def alternatives(wrong: str, known: Collection[str]) -> str:
    """What to write instead of a name that does not exist, as the end of an error."""
    from difflib import get_close_matches  # only errors need it

    names = sorted(known)
    close = get_close_matches(wrong, names, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(names) or 'none'}"
