"""The Responses protocol of OpenAI: moments of a turn become its stream events, and the response object.

Calls of a round end in the order in which the model asked for them, so that every replay has the same order
(`openai_sequence.py` says why that is needed).

The text of a worker that died is an item that ends `incomplete`; the next attempt is an item of its own. What is not
committed is not in the `output` of the response. Reasoning is an item before its text, with the words of the model as
its only summary; it ends when the text begins, which is before it is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from chordage.orchestrator.core.approvals import Why
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.faces.face import DONE, Events, Face, Table, Wire, as_json
from chordage.orchestrator.faces.moments import (
    CallAsked,
    CallSettled,
    QuestionAsked,
    Queued,
    ReasoningGrown,
    Replied,
    RoundSettled,
    Started,
    TextDropped,
    TextGrown,
    TurnEnded,
    TurnMoment,
    Waiting,
)
from chordage.orchestrator.faces.openai_sequence import (
    LAST,
    LATER,
    REPLIED,
    SETTLED,
    ReadersPlace,
    SequencePlace,
    behind_reasoning,
    broken_off,
    checksum,
    of_reasoning,
    of_text,
)

CUT_SHORT = {  # by the disposition of the turn, or by the code of its end
    "steered": "steered",
    "max_tokens": "max_output_tokens",
    "refusal": "content_filter",
    "max_rounds": "max_messages",
    "max_tool_calls": "max_messages",
}
UNUSED: Wire = {
    "previous_response_id": None, "instructions": None, "tools": [], "tool_choice": "auto", "truncation": "disabled",
    "parallel_tool_calls": True, "text": {"format": {"type": "text"}}, "top_p": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "top_logprobs": 0, "temperature": 1.0, "reasoning": None, "max_output_tokens": None,
    "max_tool_calls": None, "store": True, "background": False, "service_tier": "default", "metadata": {},
    "safety_identifier": None, "prompt_cache_key": None, "conversation": None,
}  # fmt: skip

ITEM = 10  # places that an item takes
LOST = "the server cannot read on, and the turn continues: "


@dataclass(slots=True)
class _OpenText:
    id: str
    index: int
    place: SequencePlace
    text: str = ""
    checksum: int = 0

    def grow(self, text: str) -> SequencePlace:
        """The place behind it."""
        self.text += text
        self.checksum = checksum(text, self.checksum)
        return self.place._replace(at=1 + len(self.text), checksum=self.checksum)


@dataclass(kw_only=True)
class ResponseFace(Face):
    """The state of one stream. `echo`: fields of the request that the response repeats. `since`: questions, and calls,
    that decisions were about. The response is then what came of the decisions, and of nothing before. `after`: the last
    number that the reader has.
    """

    done = DONE

    id: str
    agent: str
    created_at: int
    echo: Mapping[str, Any] = field(default_factory=dict)
    since: frozenset[str] = frozenset()
    after: int = -1

    status: str = "queued"
    number: int = -1  # of the last event
    output: list[Wire] = field(default_factory=list)
    _own: Wire = field(default_factory=dict)  # what OpenAI has no word for
    _usage: Usage | None = None
    _completed_at: datetime | None = None
    _cut_short: str | None = None
    _error: Wire | None = None
    _index: int = 0  # of the next item
    _step: int = 0  # of the last fact
    _later: int = 0  # items that came behind their round
    _text: _OpenText | None = None
    _reasoning: _OpenText | None = None
    _has_ended: bool = False  # the item of the reasoning is done, and is not on record yet
    _lost: dict[int, int] = field(default_factory=dict)  # how many texts were dropped, by step
    _calls: dict[str, CallAsked] = field(default_factory=dict)
    _round: list[str] = field(default_factory=list)  # calls of the last reply, in its order
    _hidden: tuple[str, ...] = ()  # of these, the ones whose items have not begun
    _ended: int = 0  # how many of them have ended
    _open: dict[str, int] = field(default_factory=dict)  # calls whose item has begun, with its index
    _results: dict[str, CallSettled] = field(default_factory=dict)  # that wait for those before them
    _questions: dict[str, QuestionAsked] = field(default_factory=dict)  # by call
    _shown: set[str] = field(default_factory=set)  # questions

    def __post_init__(self) -> None:
        super().__init__(self.since)
        self._reader = ReadersPlace(self.after)

    def begin(self) -> list[Wire]:
        return self._left([self._event("response.created", SequencePlace(0), response=self.response())])

    def feed(self, moment: TurnMoment) -> list[Wire]:
        return self._left(self.take(moment))

    def take(self, moment: TurnMoment) -> list[Wire]:
        """All events of the next moment, whatever the reader has."""
        return super().feed(moment)

    def frame(self, event: Wire) -> dict[str, str]:
        return {"event": event["type"], **super().frame(event)}

    def _left(self, events: Iterable[Wire]) -> list[Wire]:
        left = list(self._reader.left(events))
        self.is_cut = self.is_cut or any(event["type"] == "error" for event in left)
        return left

    def _fail(self, _message: str, _code: str) -> Events:
        self.is_cut = True
        yield broken_off(self.number + 1, LOST + "follow the response from the last sequence number")

    def response(self) -> Wire:
        """The response as it is now."""
        return {
            **UNUSED,
            **self.echo,
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": None if self._completed_at is None else int(self._completed_at.timestamp()),
            "status": self.status,
            "model": self.agent,
            "output": list(self.output),
            "error": self._error,
            "incomplete_details": {"reason": self._cut_short} if self._cut_short else None,
            "usage": None if self._usage is None else usage_of(self._usage),
            "chordage": {"status": self.status, **self._own},
        }

    def _resume(self, _moment: TurnMoment) -> Events:
        """What came before the decisions was in the response before this one."""
        self.output, self._index, self.number = [], 0, SequencePlace(0).number
        self._text, self._reasoning, self._open, self._hidden, self._shown = None, None, {}, (), set()
        self._has_ended = False
        yield self._event("response.in_progress", SequencePlace(0, 0, 2), response=self.response())

    def _events(self, moment: TurnMoment) -> Events:
        if isinstance(moment, QuestionAsked) and moment.is_of_child:
            return  # the call is at work
        if self._hidden and not _comes_before_the_call(moment):
            yield from self._begin_calls()
        yield from super()._events(moment)

    def _queue(self, moment: Queued) -> Events:
        self._own = {"turn": moment.turn_id, "thread": moment.thread_id, "why": moment.why}
        yield self._event("response.queued", SequencePlace(0, 0, 1), response=self.response())

    def _start(self, moment: Started) -> Events:
        was_started = "run" in self._own
        self.status, self.agent = "in_progress", moment.agent
        self._own = {"turn": moment.turn_id, "thread": moment.thread_id, "run": moment.run_id}
        if not was_started:
            yield self._event("response.in_progress", SequencePlace(0, 0, 2), response=self.response())

    # Text.

    def _reason(self, moment: ReasoningGrown) -> Events:
        reasoning = self._reasoning
        if reasoning is None:
            place = of_reasoning(moment.step, self._lost.get(moment.step, 0))
            reasoning = self._reasoning = self._begin("rs", place)
            item = {"id": reasoning.id, "type": "reasoning", "status": "in_progress", "summary": []}
            yield self._item("added", place, item, reasoning.index)
            yield self._of_reasoning("response.reasoning_summary_part.added", place.plus(1), part=_summary(""))
        place = reasoning.grow(moment.text)
        yield self._of_reasoning("response.reasoning_summary_text.delta", place, delta=moment.text)

    def _end_reasoning(self) -> Events:
        """Its item goes into the output with the reply."""
        reasoning = self._reasoning
        if reasoning is None or self._has_ended:
            return
        self._has_ended = True
        place, part = behind_reasoning(reasoning.place, reasoning.checksum), _summary(reasoning.text)
        yield self._of_reasoning("response.reasoning_summary_text.done", place, text=reasoning.text)
        yield self._of_reasoning("response.reasoning_summary_part.done", place.plus(1), part=part)
        yield self._item("done", place.plus(2), _reasoning_item(reasoning, "completed"), reasoning.index)

    def _begin(self, prefix: str, place: SequencePlace, seed: int = 0) -> _OpenText:
        lost, self._index = self._lost.get(place.step, 0), self._index + 1
        item_id = f"{prefix}_{self._own['run']}_{place.step}" + (f"_{lost}" if lost else "")
        return _OpenText(id=item_id, index=self._index - 1, place=place, checksum=seed)

    def _grow(self, moment: TextGrown) -> Events:
        yield from self._end_reasoning()
        text = self._text
        if text is None:
            seed = 0 if self._reasoning is None else self._reasoning.checksum
            place = of_text(moment.step, self._lost.get(moment.step, 0), seed)
            text = self._text = self._begin("msg", place, seed)
            item = _message(text, "in_progress") | {"content": []}
            yield self._item("added", place, item, text.index)
            yield self._of_text("response.content_part.added", place.plus(1), part=_part(""))
        place = text.grow(moment.text)
        yield self._of_text("response.output_text.delta", place, delta=moment.text, logprobs=[])

    def _drop(self, _moment: TurnMoment) -> Events:
        text, reasoning, has_ended = self._text, self._reasoning, self._has_ended
        self._text, self._reasoning, self._has_ended = None, None, False
        if (begun := text or reasoning) is not None:
            self._lost[begun.place.step] = self._lost.get(begun.place.step, 0) + 1
        if reasoning is not None and not has_ended:
            end = reasoning.place._replace(at=LAST)
            yield self._item("done", end, _reasoning_item(reasoning, "incomplete"), reasoning.index)
        if text is not None:
            end = text.place._replace(at=LAST)
            yield self._item("done", end, _message(text, "incomplete"), text.index)

    def _reply(self, moment: Replied) -> Events:
        self._step, self._later = moment.step, 0
        text, place = self._text, SequencePlace(moment.step, REPLIED)
        if moment.is_plan:
            yield from self._drop(moment)
        elif self._reasoning is not None:
            yield from self._end_reasoning()
            self.output.append(_reasoning_item(self._reasoning, "completed"))
            self._reasoning, self._has_ended = None, False
        if text is not None and not moment.is_plan:
            message = _message(text, "completed") | {"phase": "commentary" if moment.calls else "final_answer"}
            yield self._of_text("response.output_text.done", place, text=text.text, logprobs=[])
            yield self._of_text("response.content_part.done", place.plus(1), part=_part(text.text))
            yield self._done(place.plus(2), message, text.index)
            self._text = None
        self._calls |= {call.id: call for call in moment.calls}
        self._round = [call.id for call in moment.calls]
        self._hidden, self._ended = tuple(self._round), 0

    # Calls. The item of a call begins when it is known that no approval comes before the call: these are on record with
    # the reply.

    def _begin_calls(self) -> Events:
        for number, call_id in enumerate(self._hidden, 1):
            if call_id not in self._questions:
                yield from self._begin_call(call_id, SequencePlace(self._step, REPLIED, number * ITEM))
        self._hidden = ()

    def _begin_call(self, call_id: str, place: SequencePlace) -> Events:
        item = self._call(call_id, "in_progress")
        self._open[call_id] = self._index
        self._index += 1
        yield self._item("added", place, item | {"arguments": ""}, self._open[call_id])
        kind, arguments = "response.mcp_call_arguments", item["arguments"]
        yield self._of_call(call_id, f"{kind}.delta", place.plus(1), delta=arguments)
        yield self._of_call(call_id, f"{kind}.done", place.plus(2), arguments=arguments)
        yield self._of_call(call_id, "response.mcp_call.in_progress", place.plus(3))

    def _question(self, moment: QuestionAsked) -> Events:
        self._questions[moment.call_id] = moment
        yield from self._release(moment.call_id)

    def _settle(self, moment: CallSettled) -> Events:
        self._results[moment.id] = moment
        yield from self._release(moment.id)

    def _end_round(self, moment: RoundSettled) -> Events:
        self._step, self._later = moment.step, 0
        yield from ()

    def _release(self, call_id: str) -> Events:
        """End what can end: the calls of the round in their order, any other at once."""
        if call_id not in self._round[self._ended :]:
            yield from self._end_call(call_id, self._next_late())
            return
        for waiting in self._round[self._ended :]:
            if waiting not in self._results and waiting not in self._questions:
                return
            self._ended += 1
            yield from self._end_call(waiting, SequencePlace(self._step, SETTLED, self._ended * 2 * ITEM))

    def _end_call(self, call_id: str, place: SequencePlace) -> Events:
        result, question = self._results.pop(call_id, None), self._questions.get(call_id)
        if result is None:
            yield from self._leave(call_id, place)
            if question is not None:
                yield from self._ask(question, place.plus(ITEM))
        elif call_id in self._calls and not (question is not None and question.is_for_caller):
            if call_id not in self._open:
                yield from self._begin_call(call_id, place)
            status, index = ("completed" if result.ok else "failed"), self._open[call_id]
            yield self._of_call(call_id, f"response.mcp_call.{status}", place.plus(4))
            said = {"output": result.content} if result.ok else {"error": _tool_error(result)}
            yield self._done(place.plus(5), self._call(call_id, status) | said, index)
            del self._open[call_id]

    def _leave(self, call_id: str, place: SequencePlace) -> Events:
        """The call has no result here: it will be another item, or has none to come."""
        if (index := self._open.pop(call_id, None)) is not None:
            yield self._item("done", place, self._call(call_id, "incomplete", approved=False), index)

    def _ask(self, question: QuestionAsked, place: SequencePlace) -> Events:
        self._shown.add(question.id)
        if question.is_for_caller:
            yield from self._hand_over(question, place)
            return
        item = {
            "id": question.id, "type": "mcp_approval_request", "server_label": self.agent, "name": question.tool,
            "arguments": as_json(question.arguments), "chordage": about(question),
        }  # fmt: skip
        index, self._index = self._index, self._index + 1
        yield self._item("added", place, item, index)
        yield self._done(place.plus(1), item, index)

    def _hand_over(self, question: QuestionAsked, place: SequencePlace) -> Events:
        """A call that the caller carries out. Its output comes as an input of another request."""
        arguments, index = as_json(question.arguments), self._index
        item = {
            "id": f"fc_{question.id}", "type": "function_call", "call_id": question.call_id, "name": question.tool,
            "arguments": arguments, "status": "completed",
        }  # fmt: skip
        at: Wire = {"item_id": item["id"], "output_index": index}
        kind = "response.function_call_arguments"
        self._index += 1
        yield self._item("added", place, item | {"arguments": "", "status": "in_progress"}, index)
        yield self._event(f"{kind}.delta", place.plus(1), **at, delta=arguments)
        yield self._event(f"{kind}.done", place.plus(2), **at, name=question.tool, arguments=arguments)
        yield self._done(place.plus(3), item, index)

    # The end of the stream.

    def _wait(self, moment: Waiting) -> Events:
        yield from self._leave_all()
        for question in moment.questions:
            if question.id not in self._shown:
                yield from self._ask(question, self._next_late())
        self.status, self._usage, self.is_over = "completed", moment.usage, True
        self._completed_at = max((question.created_at for question in moment.questions), default=None)
        self._own |= {"status": "waiting", "suspensions": [about(question) for question in moment.questions]}
        yield self._event("response.completed", self._behind_all(), response=self.response())

    def _end(self, moment: TurnEnded) -> Events:
        yield from self._drop(moment)
        yield from self._leave_all()
        answered = moment.disposition == "answered"
        self._cut_short = CUT_SHORT.get((moment.code or "") if answered else moment.disposition)
        if moment.disposition == "failed":
            self.status, self._error = "failed", {"code": "server_error", "message": words_of(moment)}
        elif self._cut_short is not None:
            self.status = "incomplete"
        else:
            self.status, self._completed_at = ("completed", moment.at) if answered else ("cancelled", None)
        self._usage, self.is_over = moment.usage, True
        self._own |= ended(moment)
        kind = self.status if self.status in {"completed", "failed"} else "incomplete"
        yield self._event(f"response.{kind}", self._behind_all(), response=self.response())

    def _leave_all(self) -> Events:
        for call_id in list(self._open):
            yield from self._leave(call_id, self._behind_all())

    def _next_late(self) -> SequencePlace:
        self._later += 1
        return SequencePlace(self._step, LATER, self._later * 2 * ITEM)

    def _behind_all(self) -> SequencePlace:
        """Behind what there is, and before what may come after decisions."""
        return SequencePlace(self._step, LATER, (self._later + 1) * 2 * ITEM - 5)

    # The parts of events.

    def _event(self, kind: str, place: SequencePlace, **values: Any) -> Wire:
        self.number = max(place.number, self.number + 1)
        return {"type": kind, "sequence_number": self.number, **values}

    def _item(self, stage: str, place: SequencePlace, item: Wire, index: int) -> Wire:
        return self._event(f"response.output_item.{stage}", place, output_index=index, item=item)

    def _done(self, place: SequencePlace, item: Wire, index: int) -> Wire:
        """On record."""
        self.output.append(item)
        return self._item("done", place, item, index)

    def _of_text(self, kind: str, place: SequencePlace, **values: Any) -> Wire:
        assert self._text is not None
        at = {"item_id": self._text.id, "output_index": self._text.index, "content_index": 0}
        return self._event(kind, place, **at, **values)

    def _of_reasoning(self, kind: str, place: SequencePlace, **values: Any) -> Wire:
        assert self._reasoning is not None
        at = {"item_id": self._reasoning.id, "output_index": self._reasoning.index, "summary_index": 0}
        return self._event(kind, place, **at, **values)

    def _of_call(self, call_id: str, kind: str, place: SequencePlace, **values: Any) -> Wire:
        at = {"item_id": self._call(call_id, "")["id"], "output_index": self._open[call_id]}
        return self._event(kind, place, **at, **values)

    def _call(self, call_id: str, status: str, *, approved: bool = True) -> Wire:
        """A call after its approval is another item than the one that ended when it was asked for."""
        call, question = self._calls[call_id], self._questions.get(call_id) if approved else None
        return {
            "id": f"mcp_{question.id if question else call.id}", "type": "mcp_call", "server_label": self.agent,
            "name": call.tool, "arguments": as_json(call.arguments), "status": status, "output": None, "error": None,
            "approval_request_id": question.id if question else None,
        }  # fmt: skip

    TABLE: ClassVar[Table] = {
        Queued: _queue, Started: _start, ReasoningGrown: _reason, TextGrown: _grow, TextDropped: _drop, Replied: _reply,
        QuestionAsked: _question, CallSettled: _settle, RoundSettled: _end_round, Waiting: _wait, TurnEnded: _end,
    }  # fmt: skip


def _comes_before_the_call(moment: TurnMoment) -> bool:
    return isinstance(moment, QuestionAsked) and (moment.why == Why.GATE or moment.is_for_caller)


def about(question: QuestionAsked) -> Wire:
    return {
        "id": question.id, "tool": question.tool, "prompt": question.prompt, "expires_at": question.expiry,
        "on_expiry": question.on_expiry, "why": question.why, "schema": question.schema, "call": question.call_id,
        "run": question.run_id, "digest": question.digest,
    }  # fmt: skip


def ended(moment: TurnEnded) -> Wire:
    return {
        "status": "done", "disposition": moment.disposition, "reason": moment.reason, "code": moment.code,
        "detail": moment.detail, "output": moment.output,
    }  # fmt: skip


def words_of(moment: TurnEnded) -> str:
    return ": ".join(word for word in (moment.code or moment.disposition, moment.detail) if word)


def usage_of(usage: Usage) -> Wire:
    cached = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens}
    return {
        "input_tokens": usage.input_tokens, "input_tokens_details": cached, "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": usage.input_tokens + usage.output_tokens,
    }  # fmt: skip


def _message(text: _OpenText, status: str) -> Wire:
    return {"id": text.id, "type": "message", "role": "assistant", "status": status, "content": [_part(text.text)]}


def _part(text: str) -> Wire:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _reasoning_item(reasoning: _OpenText, status: str) -> Wire:
    return {"id": reasoning.id, "type": "reasoning", "status": status, "summary": [_summary(reasoning.text)]}


def _summary(text: str) -> Wire:
    return {"type": "summary_text", "text": text}


def _tool_error(result: CallSettled) -> Wire:
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": result.content}]}
