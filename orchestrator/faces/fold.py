"""From run events to the moments of a turn, in the order that `moments.py` promises.

Facts come in the order of their ids; a fact that comes again is passed over. Notes may be lost, doubled, late or out of
order. So a note is never believed for longer than until the fact that it announces: what the notes have shown of a
reply is completed, or dropped, when the reply is on record, and a result that a note has brought is not repeated.

Kinds that are not known here are passed over: a newer version has more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from chordage.orchestrator.core.model import TOKENS, Usage
from chordage.orchestrator.core.run_events import RunEvent, position_of
from chordage.orchestrator.core.status import SETTLED_CALL, CallStatus
from chordage.orchestrator.core.transcript import NOT_RUN
from chordage.orchestrator.faces.moments import (
    CallAsked,
    CallProgressed,
    CallSettled,
    CallStarted,
    MessageTaken,
    QuestionAnswered,
    QuestionAsked,
    Queued,
    ReasoningGrown,
    Replied,
    RoundSettled,
    Started,
    StepStarted,
    SubAgentStarted,
    TextDropped,
    TextGrown,
    TurnEnded,
    TurnMoment,
    Waiting,
)

MOST_EARLY = 1_000  # notes kept that came before the fact they belong to
_SETTLED = frozenset(status.value for status in SETTLED_CALL)

Moments = Iterator[TurnMoment]


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamedReply:
    """What is known of a reply that is being made. A later step, or a later attempt at it, replaces it."""

    step: int
    attempt: int
    text: str = ""
    reasoning: str = ""

    def is_older_than(self, other: StreamedReply) -> bool:
        return (self.step, self.attempt) < (other.step, other.attempt)

    def joined(self, offset: int, text: str) -> StreamedReply:
        """With a piece that begins at this offset. A piece behind a gap adds nothing, and neither does a known one."""
        known = len(self.text)
        return replace(self, text=self.text + text[known - offset :]) if offset <= known else self

    def reasoned(self, offset: int, text: str) -> StreamedReply:
        """The same with a piece of the reasoning."""
        known = len(self.reasoning)
        return replace(self, reasoning=self.reasoning + text[known - offset :]) if offset <= known else self

    def begins(self, reasoning: str, text: str) -> bool:
        """Whether it is the beginning of this reply: of the reasoning all, once the text has begun."""
        is_so_far = reasoning == self.reasoning if self.text else reasoning.startswith(self.reasoning)
        return is_so_far and text.startswith(self.text)


def with_note(known: StreamedReply | None, event: RunEvent) -> StreamedReply:
    """The reply behind a note about its text or reasoning. Notes about an older step or attempt change nothing."""
    data = event.data
    named = StreamedReply(step=event.step or 0, attempt=data["attempt"])
    if known is not None and named.is_older_than(known):
        return known
    current = named if known is None or known.is_older_than(named) else known
    if event.kind == "live.reset":
        return current
    offset, text = data.get("offset", 0), data.get("text", "")
    if event.kind == "live.reasoning":
        return current.reasoned(offset, text)
    return current.reasoned(0, data.get("reasoning", "")).joined(offset, text)


class TurnFold:
    """Of one turn. `feed` returns the moments that follow from an event; after `is_over` there are none."""

    def __init__(self, turn_id: str) -> None:
        """`turn_id`: of the turn that its run was started for, where another was steered into that run."""
        self._turn_id = turn_id
        self._last = (0, -1)  # the position of the last fact
        self._queued: Queued | None = None
        self._started: Started | None = None
        self._has_said_started = False
        self._streamed: StreamedReply | None = None
        self._shown: StreamedReply | None = None  # what the moments have of it
        self._replied = 0  # the last step whose reply is on record
        self._tools: dict[str, str] = {}  # of the calls that were asked for
        self._unsettled: dict[str, int] = {}  # calls without a result, and the step of their round
        self._ended_rounds: set[int] = set()
        self._questions: dict[str, str] = {}  # open ones, and their calls
        self._seen_questions: set[str] = set()
        self._sub_agents: set[str] = set()
        self._workers: dict[str, str | None] = {}
        self._early: list[RunEvent] = []
        self._facts: dict[str, Callable[[RunEvent], Moments]] = {
            "turn.queued": self._queue,
            "run.started": self._start,
            "model.replied": self._reply,
            "plan.made": self._reply,
            "client.messages": self._client_messages,
            "tools.settled": self._settle_round,
            "call.suspended": lambda event: self._ask([event.data]),
            "call.decided": self._answer,
            "run.waiting": self._halt,
            "turn.steered": self._take_in,
            "run.finished": self._finish,
            "turn.ended": self._end,
        }
        self._notes: dict[str, Callable[[RunEvent], Moments]] = {
            "turn.queued": self._queue,
            "live.delta": self._stream,
            "live.reasoning": self._stream,
            "live.snapshot": self._stream,
            "live.reset": self._stream,
            "tool.started": self._begin_call,
            "tool.progress": self._progress,
            "tool.settled": self._settle_early,
            "turn.waiting": self._wait,
        }
        self.is_over = False

    def skip(self, events: Iterable[RunEvent]) -> None:
        """What the reader has seen already: it is known, and no moment comes of it but `Started`, again."""
        for event in events:
            self.feed(event)
        self._has_said_started = False

    def feed(self, event: RunEvent) -> list[TurnMoment]:
        if self.is_over or (event.is_fact and not self._is_new(event)):
            return []
        handler = (self._facts if event.is_fact else self._notes).get(event.kind)
        moments = [] if handler is None else list(handler(event))
        if moments and self._started is not None and not self._has_said_started:
            self._has_said_started = True
            moments = [self._started, *(moment for moment in moments if moment is not self._started)]
        return moments

    def _is_new(self, event: RunEvent) -> bool:
        assert event.id is not None
        position = position_of(event.id)
        is_new = position > self._last
        self._last = max(position, self._last)
        return is_new

    # the beginning

    def _queue(self, event: RunEvent) -> Moments:
        turn, thread = event.turn_id or self._turn_id, event.thread_id or ""
        queued = Queued(turn_id=turn, thread_id=thread, why=event.data.get("why"))
        if self._started is None and queued != self._queued:
            self._queued = queued
            yield queued

    def _start(self, event: RunEvent) -> Moments:
        self._started = Started(
            turn_id=self._turn_id, run_id=event.run_id or "", thread_id=event.thread_id or "",
            agent=event.agent or "", at=_at(event), text=event.data.get("text", ""),
        )  # fmt: skip
        yield self._started
        yield from self._feed_early()

    # the reply

    def _stream(self, event: RunEvent) -> Moments:
        if (event.step or 0) > self._replied:
            self._streamed = with_note(self._streamed, event)
            yield from self._show()

    def _show(self) -> Moments:
        """Text waits while calls of the round before have no result: it follows from the results."""
        streamed, shown = self._streamed, self._shown
        if streamed is None or self._started is None or self._awaits_results():
            return
        if shown is None or shown.is_older_than(streamed):
            yield from self._drop()
            if shown is None or shown.step != streamed.step:
                yield StepStarted(step=streamed.step)
            shown = StreamedReply(step=streamed.step, attempt=streamed.attempt)
        # Reasoning that comes when its text has begun is late, and shown when the reply is on record.
        self._shown = replace(streamed, reasoning=shown.reasoning) if shown.text else streamed
        yield from _growth(shown, self._shown)

    def _awaits_results(self) -> bool:
        in_question = set(self._questions.values())
        return any(call not in in_question for call in self._unsettled)

    def _drop(self) -> Moments:
        if self._shown is not None and (self._shown.text or self._shown.reasoning):
            yield TextDropped(step=self._shown.step, attempt=self._shown.attempt)
        self._shown = None

    def _reply(self, event: RunEvent) -> Moments:
        data, step = event.data, event.step or 0
        text, reasoning = data.get("text") or "", data.get("reasoning") or ""
        calls = tuple(
            CallAsked(id=call["id"], tool=call["tool"], arguments=call.get("arguments") or {})
            for call in data.get("calls", ())
        )
        yield from self._complete(step, reasoning, text)
        yield Replied(
            step=step, text=text, reasoning=reasoning, calls=calls, model=data.get("model") or "",
            stop=data.get("stop") or "unknown", usage=_usage(data), at=_at(event), seconds=data.get("seconds"),
            is_plan=event.kind == "plan.made",
        )  # fmt: skip
        self._replied = step
        for call in calls:
            self._tools[call.id], self._unsettled[call.id] = call.tool, step + 1
        for call in data.get("calls", ()):
            yield from self._delegate([call["child"]] if "child" in call else [])
            yield from self._settle({**call, **(call.get("result") or {})})
        yield from self._feed_early()
        yield from self._show()

    def _complete(self, step: int, reasoning: str, text: str) -> Moments:
        """So that what has grown of this step is the text of its reply. What has grown of another step was not."""
        shown = self._shown
        if shown is None or shown.step != step:
            yield from self._drop()
            yield StepStarted(step=step)
            shown = StreamedReply(step=step, attempt=0)
        elif not shown.begins(reasoning, text):
            yield from self._drop()
            shown = StreamedReply(step=step, attempt=shown.attempt + 1)
        yield from _growth(shown, replace(shown, reasoning=reasoning, text=text))
        self._shown = None
        if self._streamed is not None and self._streamed.step <= step:
            self._streamed = None

    def _client_messages(self, event: RunEvent) -> Moments:
        """The consumer of a stepped run wrote these; calls of the last one are carried out."""
        if event.data.get("calls"):
            yield from self._reply(event)
        else:
            yield from self._drop()
            self._replied = max(self._replied, event.step or 0)

    # the calls

    def _delegate(self, children: Iterable[Mapping[str, Any]]) -> Moments:
        for child in children:
            if child["turn"] not in self._sub_agents:
                self._sub_agents.add(child["turn"])
                yield SubAgentStarted(
                    id=child["turn"], call_id=child["call"], agent=child["agent"], parent=child.get("parent")
                )

    def _begin_call(self, event: RunEvent) -> Moments:
        call, worker = event.data["call"], event.data.get("worker")
        if call not in self._tools:
            self._keep(event)
        elif call in self._unsettled and self._workers.get(call, "") != worker:
            self._workers[call] = worker
            yield CallStarted(id=call, worker=worker)

    def _progress(self, event: RunEvent) -> Moments:
        call = event.data["call"]
        if call not in self._tools:
            self._keep(event)
        elif call in self._unsettled:
            yield CallProgressed(id=call, text=event.data.get("text", ""))

    def _settle_early(self, event: RunEvent) -> Moments:
        """Only with its content: a reader of notes takes that from the row of the call."""
        if event.data["call"] not in self._tools:
            self._keep(event)
        elif "content" in event.data:
            yield from self._settle({**event.data, "id": event.data["call"]})
            yield from self._show()

    def _settle(self, call: Mapping[str, Any]) -> Moments:
        if call.get("status") not in _SETTLED or call["id"] not in self._unsettled:
            return
        step = self._unsettled.pop(call["id"])
        yield CallSettled(
            id=call["id"], tool=self._tools[call["id"]], ok=call["status"] == CallStatus.SUCCEEDED,
            code=call.get("code"), content=call.get("content") or "",
        )  # fmt: skip
        if step not in self._unsettled.values():
            yield from self._end_round(step)

    def _settle_round(self, event: RunEvent) -> Moments:
        for call in event.data.get("calls", ()):
            yield from self._settle(call)
        yield from self._end_round(event.step or 0)
        yield from self._show()

    def _end_round(self, step: int) -> Moments:
        if step not in self._ended_rounds:
            self._ended_rounds.add(step)
            yield RoundSettled(step=step)

    # questions and messages

    def _ask(self, questions: Iterable[Mapping[str, Any]]) -> Moments:
        for data in questions:
            if "id" in data and data["id"] not in self._seen_questions:
                self._seen_questions.add(data["id"])
                self._questions[data["id"]] = data["call_id"]
                yield _question(data)

    def _answer(self, event: RunEvent) -> Moments:
        data = event.data
        if (call := self._questions.pop(data["suspension"], None)) is not None:
            yield QuestionAnswered(
                id=data["suspension"], call_id=call, action=data.get("action", ""), reason=data.get("reason")
            )

    def _halt(self, event: RunEvent) -> Moments:
        yield from self._delegate(event.data.get("children", ()))
        yield from self._ask(event.data.get("questions", ()))

    def _wait(self, event: RunEvent) -> Moments:
        if self._started is None:
            return
        questions = event.data.get("questions", ())
        yield from self._delegate(event.data.get("children", ()))
        yield from self._ask(questions)
        yield from self._drop()
        self.is_over = True
        yield Waiting(questions=tuple(_question(data) for data in questions), usage=_usage(event.data))

    def _take_in(self, event: RunEvent) -> Moments:
        turn, sender = event.turn_id or "", event.data.get("sender", "")
        yield MessageTaken(step=event.step or 0, turn_id=turn, sender=sender, text=event.data.get("text", ""))

    # the end

    def _finish(self, event: RunEvent) -> Moments:
        """Nothing is left open: a call without a result did not run."""
        yield from self._drop()
        for call in event.data.get("calls", ()):
            yield from self._settle(call)
        for call_id in list(self._unsettled):
            yield from self._settle(
                {"id": call_id, "status": CallStatus.CANCELLED.value, "code": "not_run", "content": NOT_RUN}
            )

    def _end(self, event: RunEvent) -> Moments:
        """That of a message which was steered into the run is not the end of the turn."""
        if event.turn_id != self._turn_id:
            return
        data = event.data
        self.is_over = True
        yield TurnEnded(
            disposition=data.get("disposition", ""), reason=data.get("reason"), code=data.get("code"),
            detail=data.get("detail"), text=data.get("text"), output=data.get("output"), usage=_usage(data),
            at=_at(event),
        )  # fmt: skip

    # notes that came early

    def _keep(self, event: RunEvent) -> None:
        if len(self._early) < MOST_EARLY:
            self._early.append(event)

    def _feed_early(self) -> Moments:
        early, self._early = self._early, []
        for event in early:
            yield from self._notes[event.kind](event)
        if self._streamed is not None:
            yield from self._show()


def _growth(before: StreamedReply, after: StreamedReply) -> Moments:
    if rest := after.reasoning[len(before.reasoning) :]:
        yield ReasoningGrown(step=after.step, attempt=after.attempt, text=rest)
    if rest := after.text[len(before.text) :]:
        yield TextGrown(step=after.step, attempt=after.attempt, text=rest)


def _question(data: Mapping[str, Any]) -> QuestionAsked:
    return QuestionAsked(
        id=data["id"], call_id=data["call_id"], tool=data.get("tool", ""), arguments=data.get("arguments") or {},
        why=data.get("why", ""), prompt=data.get("prompt", ""), schema=data.get("schema"),
        digest=data.get("digest", ""), created_at=_time(data["created_at"]),
        expires_at=None if data.get("expires_at") is None else _time(data["expires_at"]),
        on_expiry=data.get("on_expiry", ""), run_id=data.get("run_id", ""),
        asker=data.get("asker"),
    )  # fmt: skip


def _usage(data: Mapping[str, Any]) -> Usage:
    usage = data.get("usage") or {}
    return Usage(**{name: usage.get(name) or 0 for name in TOKENS})


def _at(event: RunEvent) -> datetime:
    assert event.at is not None  # every fact has its time
    return event.at


def _time(value: str | datetime) -> datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else value
