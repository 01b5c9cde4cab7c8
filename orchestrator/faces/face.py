"""What all faces share: the life of one stream to a client.

A face is a table: for each kind of moment, what is sent for it. Here is what does not depend on the protocol. A client
that answered questions has everything before its answers, so the face is silent until the first moment that came of
them. Behind the last event nothing is sent. A stream that cannot continue is ended in the form of the protocol.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

from chordage.orchestrator.faces.moments import (
    CallSettled,
    QuestionAnswered,
    QuestionAsked,
    TurnEnded,
    TurnMoment,
    Waiting,
)

Wire: TypeAlias = dict[str, Any]
Events: TypeAlias = Iterator[Wire]
Table: TypeAlias = Mapping[type, Callable[[Any, Any], Iterable[Wire]]]
DONE = "[DONE]"


class Face(ABC):
    """`answers`: the questions that the client answered with its request, and the calls that these may be about."""

    TABLE: ClassVar[Table]  # what is sent for each kind of moment; the others are not shown
    done: ClassVar[str | None] = None  # sent behind the last event, unless the stream was cut

    def __init__(self, answers: Collection[str] = ()) -> None:
        self._answers = frozenset(answers)
        self._awaited = set(answers)  # the answers, and the calls that they are about
        self._is_silent = bool(answers)
        self.is_over = False  # the last event was sent
        self.is_cut = False  # an error was sent behind which a client of the protocol reads nothing

    @abstractmethod
    def begin(self) -> list[Wire]:
        """What is sent first."""

    def feed(self, moment: TurnMoment) -> list[Wire]:
        """What is sent for the next moment."""
        if self.is_over:
            return []
        if isinstance(moment, QuestionAsked) and moment.id in self._answers:
            self._awaited.add(moment.call_id)
        if self._is_silent and self._continues_with(moment):
            self._is_silent = False
            return [*self._resume(moment), *self._events(moment)]
        events = list(self._events(moment))
        return [] if self._is_silent else events

    def fail(self, message: str, code: str) -> list[Wire]:
        """The stream cannot continue; the turn does. What is open is closed, so that the client keeps what it has."""
        if self.is_over:
            return []
        opened = [] if self._is_silent else list(self._close())
        return [*opened, *self._fail(message, code)]

    def frame(self, event: Wire) -> dict[str, str]:
        """As a server-sent event."""
        return {"data": json.dumps(event, separators=(",", ":"))}

    def _events(self, moment: TurnMoment) -> Iterable[Wire]:
        show = self.TABLE.get(type(moment))
        return () if show is None else show(self, moment)

    def _continues_with(self, moment: TurnMoment) -> bool:
        return begins_again(moment, self._awaited)

    @abstractmethod
    def _resume(self, moment: TurnMoment) -> Events:
        """Forget what was open while nothing was sent, and send what the client lacks."""

    def _close(self) -> Events:
        """What is open. Must change nothing where nothing is."""
        yield from ()

    @abstractmethod
    def _fail(self, message: str, code: str) -> Events:
        """The error, in the form of the protocol."""


def begins_again(moment: TurnMoment, since: Collection[str]) -> bool:
    """Whether this is the first moment that came of answers to these questions, or of results of these calls."""
    match moment:
        case QuestionAnswered() | CallSettled():  # the result may be known before the answer is
            return moment.id in since
        case Waiting() | TurnEnded():
            return True
    return False


def as_json(value: Any) -> str:
    """Arguments, as a protocol has them in a text."""
    return json.dumps(value, ensure_ascii=False)
