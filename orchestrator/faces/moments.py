"""The moments of a turn: what every face is made of.

The fold (`fold.py`) makes them of run events, in one order, with these promises. A face relies on them and checks none:

- `Started` comes before anything but `Queued`; `Waiting` or `TurnEnded` comes last, and there is exactly one of them.
- The texts of `TextGrown` since the last `TextDropped` of a step are the text of its `Replied`, always; those of
  `ReasoningGrown` are its reasoning, and come before.
- A call is `CallAsked` in its `Replied` before anything else is said of it, and is `CallSettled` once.
- A sub-agent is `SubAgentStarted` before one of its questions, or of its own sub-agents, is in a `Waiting`.
- What a worker that died had sent of a reply is dropped by `TextDropped` before another attempt grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chordage.orchestrator.core.approvals import Why
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.status import Disposition

_CANCELLED = frozenset({Disposition.CANCELLED, Disposition.SUPERSEDED})
_SUCCESS = frozenset({Disposition.ANSWERED, Disposition.MERGED, Disposition.STEERED})


@dataclass(frozen=True, kw_only=True, slots=True)
class Queued:
    """The turn has not started. Comes again when `why` changes."""

    turn_id: str
    thread_id: str
    why: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """The run works on the turn: from its beginning, or again after decisions."""

    turn_id: str
    run_id: str
    thread_id: str
    agent: str
    at: datetime
    text: str  # the message


@dataclass(frozen=True, kw_only=True, slots=True)
class StepStarted:
    """The model is asked."""

    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReasoningGrown:
    step: int
    attempt: int
    text: str  # to append


@dataclass(frozen=True, kw_only=True, slots=True)
class TextGrown:
    step: int
    attempt: int
    text: str  # to append


@dataclass(frozen=True, kw_only=True, slots=True)
class TextDropped:
    """All text and reasoning of this step so far is void; another attempt follows, or none."""

    step: int
    attempt: int  # that was dropped


@dataclass(frozen=True, kw_only=True, slots=True)
class CallAsked:
    id: str  # of the call; the same in every event, question and list
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Replied:
    """The reply of the model is on record."""

    step: int
    text: str
    calls: tuple[CallAsked, ...]
    model: str
    stop: str
    usage: Usage
    at: datetime
    seconds: float | None = None
    reasoning: str = ""
    is_plan: bool = False  # of a planner: not part of the conversation


@dataclass(frozen=True, kw_only=True, slots=True)
class SubAgentStarted:
    """A sub-agent answers a call, by a turn of its own. It ends as the call does."""

    id: str  # of its turn
    call_id: str
    agent: str
    parent: str | None = None  # the sub-agent whose call it is; None: it is a call of this run


@dataclass(frozen=True, kw_only=True, slots=True)
class CallStarted:
    id: str
    worker: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CallProgressed:
    id: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CallSettled:
    id: str
    tool: str
    ok: bool
    code: str | None  # why it did not succeed
    content: str  # what the model reads of it


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundSettled:
    """All calls of a round are on record."""

    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionAsked:
    """A call waits for a decision."""

    id: str  # of the suspension
    call_id: str
    tool: str
    arguments: dict[str, Any]
    why: str
    prompt: str
    schema: dict[str, Any] | None
    digest: str
    created_at: datetime
    expires_at: datetime | None
    on_expiry: str
    run_id: str  # of the agent that asks: a sub-agent's, or the run itself
    asker: str | None = None  # the turn of the sub-agent that asks; None: the run itself

    @property
    def expiry(self) -> str | None:
        """As the protocols have it."""
        return None if self.expires_at is None else self.expires_at.isoformat()

    @property
    def is_of_child(self) -> bool:
        """A sub-agent works on the call: no person is asked."""
        return self.why == Why.CHILD

    @property
    def is_for_caller(self) -> bool:
        """The caller carries the call out, and sends its result."""
        return self.why == Why.CLIENT


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionAnswered:
    id: str
    call_id: str
    action: str
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageTaken:
    """The run took in another message of its thread."""

    step: int
    turn_id: str
    sender: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """The run waits for decisions, and holds no worker."""

    questions: tuple[QuestionAsked, ...]  # all that are open
    usage: Usage

    @property
    def for_caller(self) -> list[QuestionAsked]:
        return [question for question in self.questions if question.is_for_caller]

    @property
    def for_people(self) -> list[QuestionAsked]:
        return [question for question in self.questions if not question.is_for_caller and not question.is_of_child]


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnEnded:
    """The turn is done."""

    disposition: str
    reason: str | None
    code: str | None
    detail: str | None
    text: str | None  # of the answer
    output: Any  # if the agent demands a shape
    usage: Usage
    at: datetime

    @property
    def is_success(self) -> bool:
        """Also of a message that went into the run of another."""
        return self.disposition in _SUCCESS

    @property
    def is_cancelled(self) -> bool:
        return self.disposition in _CANCELLED

    @property
    def why(self) -> str:
        return self.detail or self.code or self.reason or self.disposition


TurnMoment = (
    Queued
    | Started
    | StepStarted
    | ReasoningGrown
    | TextGrown
    | TextDropped
    | Replied
    | SubAgentStarted
    | CallStarted
    | CallProgressed
    | CallSettled
    | RoundSettled
    | QuestionAsked
    | QuestionAnswered
    | MessageTaken
    | Waiting
    | TurnEnded
)
