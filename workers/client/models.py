"""What the HTTP clients return. A field that a newer server adds is ignored, one that it leaves out has its default.

Words from closed sets, such as `status`, are plain strings: a newer server may know more of them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")


class _Received(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class TokenUsage(_Received):
    input_tokens: int = 0  # with the cached ones
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cost_nanos: int | None = None  # billionths of a dollar, of the replies that have a price; None: none has one
    unpriced: int = 0  # replies without a price


class SubmittedTurn(_Received):
    """A message is stored, and this turn carries it out."""

    turn_id: str
    thread_id: str
    duplicate: bool = False  # its dedupe_key was known: this is the turn that was made then


class InboxQuestion(_Received):
    """A call that waits for a decision: `client.decide(question, "approve")`."""

    id: str
    call_id: str
    run_id: str
    thread_id: str
    agent: str
    tool: str
    arguments: dict[str, Any] | None = None  # None: the key may not see payloads
    why: str = ""
    prompt: str | None = None
    answer_schema: dict[str, Any] | None = Field(default=None, alias="schema")  # of the payload of a decision
    resume_mode: str = ""
    created_at: datetime
    expires_at: datetime | None = None
    on_expiry: str = ""
    root_run: str | None = None  # the top of the tree, if a sub-agent asks; else its own run
    root_thread: str | None = None
    path: str | None = None  # the agents from the root down to the one that asks
    overdue: bool = False


class TurnInfo(_Received):
    turn_id: str
    thread_id: str
    agent: str
    status: str  # queued, active or done
    disposition: str | None = None  # how its message ended: answered, failed, cancelled, …
    text: str | None = None  # the message; None: the key may not see payloads
    answer: str | None = None
    output: Any = None  # the structured value of the answer, if its agent demands one
    run_id: str | None = None
    group: str | None = None
    tenant: str | None = None
    origin: str | None = None
    channel: str | None = None
    sender: str | None = None
    meta: dict[str, Any] | None = None
    dedupe_key: str | None = None
    position: int | None = None  # among the queued turns of its thread
    into_turn: str | None = None  # the turn it was merged into
    reason: str | None = None  # why its run ended, or waits
    code: str | None = None
    detail: str | None = None
    rounds: int = 0
    usage: TokenUsage = TokenUsage()
    not_before: datetime | None = None
    deadline: datetime | None = None
    queued_at: datetime | None = None
    started_at: datetime | None = None
    done_at: datetime | None = None
    questions: tuple[InboxQuestion, ...] = ()  # open ones of its run, and of the sub-agents below it

    @property
    def is_done(self) -> bool:
        return self.status == "done"

    @property
    def is_waiting(self) -> bool:
        """For a decision: answer its `questions`."""
        return not self.is_done and bool(self.questions)

    @property
    def ok(self) -> bool:
        return self.disposition == "answered"


class StoredDecision(_Received):
    decision_id: str
    suspension_id: str
    call_id: str
    run_id: str
    duplicate: bool = False  # it was stored before


class ThreadInfo(_Received):
    thread_id: str
    agent: str
    turns: int = 0  # that ever arrived
    queued: int = 0
    open_run: str | None = None
    open_run_status: str | None = None
    created_at: datetime | None = None
    last_turn_at: datetime | None = None
    last_activity: datetime | None = None
    usage: TokenUsage | None = None  # of all its runs; None in a list


class RunInfo(_Received):
    """The work on a turn; of one run also its `steps`."""

    run_id: str
    thread_id: str
    turn_id: str
    agent: str
    status: str
    strategy: str | None = None
    reason: str | None = None  # why it ended, or waits
    code: str | None = None
    detail: str | None = None
    rounds: int = 0
    usage: TokenUsage = TokenUsage()
    parent_run: str | None = None  # of a sub-agent
    root_run: str | None = None
    path: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    steps: tuple[dict[str, Any], ...] = ()


class ForkedThread(_Received):
    """A new thread with the history of another. `turn_id`: of the run that continues there, where one was wanted."""

    thread_id: str
    forked_from: str
    upto: int = 0  # the last entry that it has
    entries: int = 0
    turn_id: str | None = None


class ComparedSide(_Received):
    """A message, a reply or a call of one of the two runs."""

    step: int
    name: str  # `message`, the model, or the tool
    text: str | None = None
    arguments: dict[str, Any] | None = None
    content: str | None = None
    state: str = ""
    code: str | None = None
    is_recorded: bool = False  # repeated, or answered from the record


class ComparedPair(_Received):
    kind: str  # message, reply or call
    number: int  # of the reply it belongs to, from 1; 0: the message
    first: ComparedSide | None = None
    second: ComparedSide | None = None
    differs: tuple[str, ...] = ()  # in what; empty where both are the same
    is_first: bool = False  # nothing above it differs


class RunComparison(_Received):
    """Two runs side by side."""

    rows: tuple[ComparedPair, ...] = ()

    @property
    def first_difference(self) -> ComparedPair | None:
        return next((row for row in self.rows if row.is_first), None)


class ThreadMessage(_Received):
    """A message or a reply in the history of a thread."""

    id: int
    at: datetime
    role: str  # user or assistant
    name: str | None = None  # the sender of a message, or the agent that replied
    text: str | None = None
    run_id: str | None = None
    step: int | None = None
    turn_id: str | None = None  # of a message
    model: str | None = None  # of a reply
    calls: tuple[dict[str, Any], ...] = ()  # of a reply


class ListPage(_Received, Generic[T]):
    """A part of a list; `next` continues it."""

    items: tuple[T, ...]
    next: str | None = None
