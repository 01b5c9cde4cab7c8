"""The UI message stream of the AI SDK: from the moments of a turn to its chunks, in the dialects 6 and 7.

One turn is one message of the assistant, and its id is that of the turn: what follows an approval grows the message
that asked for it. Version 6 refuses a chunk that it does not know. So it gets none of those that 7 has added, and where
text is withdrawn, which it cannot express, it gets an error: read again from the start, the message is right.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from enum import IntEnum
from typing import Any, assert_never

from chordage.orchestrator.core.approvals import Action
from chordage.orchestrator.core.model import StopReason
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.faces.moments import (
    CallAsked,
    CallProgressed,
    CallSettled,
    CallStarted,
    MessageTaken,
    QuestionAnswered,
    QuestionAsked,
    Queued,
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

DONE = "[DONE]"
_FINISHES = {StopReason.MAX_TOKENS.value: "length", StopReason.REFUSAL.value: "content-filter"}
_RESET = "The reply was cut off with its worker, and another attempt follows: read the stream again from its start."

Chunk = dict[str, Any]
Chunks = Iterator[Chunk]


class AiSdkDialect(IntEnum):
    SIX = 6
    SEVEN = 7


class AiSdkFace:
    """Of one answer to a client. `feed` returns the chunks that follow from a moment; after `is_over` there are none.

    `answers` are the questions that the client answered with its request: everything before the first of these answers
    is in its message already, so nothing of that is sent again. Where its message was steered into the run of another
    turn, the answer begins there.
    """

    def __init__(
        self, *, turn_id: str, dialect: AiSdkDialect = AiSdkDialect.SIX, answers: Collection[str] = ()
    ) -> None:
        self._turn_id = turn_id
        self._dialect = dialect
        self._answers = frozenset(answers)
        self._is_silent = bool(answers)
        self._calls: set[str] = set()
        self._settled: set[str] = set()
        self._of_children: set[str] = set()  # calls of sub-agents, shown because of a question
        self._asked: dict[str, str] = {}  # questions, and their calls
        self._answered: set[str] = set()  # calls whose questions the client has answered
        self._with_client: set[str] = set()  # calls that the client carries out
        self._before: set[str] = set()  # calls that were known when the client was asked
        self._results: list[CallSettled] = []  # of the part that is not sent
        self._step = 0
        self._texts = 0  # that were begun: each has an id of its own
        self._has_open_step = False
        self._open_text: str | None = None
        self._finish = "stop"
        self.is_over = False

    def begin(self) -> list[Chunk]:
        return [{"type": "start", "messageId": self._turn_id}]

    def feed(self, moment: TurnMoment) -> list[Chunk]:
        if self.is_over:
            return []
        if self._is_silent and self._continues_with(moment):
            self._is_silent, self._has_open_step, self._open_text = False, False, None
            return [*self._missed(moment), *self._chunks(moment)]
        chunks = list(self._chunks(moment))
        return [] if self._is_silent else chunks

    def fail(self, message: str, _code: str) -> list[Chunk]:
        """The stream cannot go on. It is closed in order, so that the client keeps what it has."""
        if self.is_over:
            return []
        opened = [] if self._is_silent else self._close()
        return [*opened, *self._error(message)]

    def _chunks(self, moment: TurnMoment) -> Chunks:
        match moment:
            case Queued():
                if moment.why is not None:
                    yield _data(why=moment.why, status="queued")
            case Started():
                self._is_silent = self._is_silent or moment.turn_id != self._turn_id
            case StepStarted():
                yield from self._start_step(moment.step)
            case TextGrown():
                yield from self._grow(moment)
            case TextDropped():
                yield from self._drop()
            case Replied():
                yield from self._reply(moment)
            case CallProgressed():
                if moment.id in self._calls:
                    yield _output(moment.id, moment.text, preliminary=True)
            case CallSettled():
                yield from self._settle(moment)
            case RoundSettled():
                if self._open_text is None:
                    yield from self._close()
            case QuestionAsked():
                yield from self._ask(moment)
            case QuestionAnswered():
                yield from self._answer(moment)
            case MessageTaken():
                yield from self._take(moment)
            case Waiting():
                yield from self._wait(moment)
            case TurnEnded():
                yield from self._end(moment)
            case CallStarted() | SubAgentStarted():
                pass
            case _:
                assert_never(moment)

    # a message that continues after answers

    def _continues_with(self, moment: TurnMoment) -> bool:
        """Whether this is the first moment that the client does not have. The answer to a question of a sub-agent may
        be no moment of this turn: then what ends it is shown as a whole.
        """
        match moment:
            case QuestionAnswered():
                return moment.id in self._answers
            case CallSettled():  # which may be known before the answer is
                return moment.id in self._answered
            case MessageTaken():
                return moment.turn_id == self._turn_id
            case Waiting() | TurnEnded():
                return True
            case _:
                return False

    def _missed(self, moment: TurnMoment) -> Chunks:
        shows_rest = isinstance(moment, Waiting | TurnEnded)
        for settled in self._results:
            if settled.id in (self._before if shows_rest else self._answered):
                yield from self._settle(settled)
        if isinstance(moment, TurnEnded) and moment.text:
            yield from self._start_step(self._step + 1)
            yield from self._grow(TextGrown(step=self._step, attempt=0, text=moment.text))

    # the reply

    def _start_step(self, step: int) -> Chunks:
        if step != self._step or not self._has_open_step:
            yield from self._close()
            self._step, self._has_open_step = step, True
            yield {"type": "start-step"}

    def _grow(self, moment: TextGrown) -> Chunks:
        if not moment.text:
            return
        if self._open_text is None:
            self._texts += 1
            self._open_text = f"text-{self._texts}"
            yield {"type": "text-start", "id": self._open_text}
        yield {"type": "text-delta", "id": self._open_text, "delta": moment.text}

    def _drop(self) -> Chunks:
        """What a worker that died had sent of a reply."""
        if self._open_text is None:
            return
        if self._dialect is AiSdkDialect.SEVEN:
            self._open_text = None
            yield {"type": "reset-step"}
        elif not self._is_silent:
            yield from self._close()
            yield from self._error(_RESET)

    def _reply(self, moment: Replied) -> Chunks:
        if moment.is_plan:
            if self._dialect is AiSdkDialect.SEVEN:
                yield from self._drop()
            yield from self._close()
            return
        yield from self._close_text()
        self._finish = _FINISHES.get(moment.stop, "stop")
        for call in moment.calls:
            yield from self._show(call)
        if not moment.calls:
            yield from self._close()

    def _show(self, call: CallAsked) -> Chunks:
        """The arguments come whole with the reply, so they are one delta."""
        self._calls.add(call.id)
        named = {"toolCallId": call.id, "toolName": call.tool, "dynamic": True}
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        yield {"type": "tool-input-start", **named}
        yield {"type": "tool-input-delta", "toolCallId": call.id, "inputTextDelta": arguments}
        yield {"type": "tool-input-available", **named, "input": call.arguments}

    # the calls

    def _settle(self, moment: CallSettled) -> Chunks:
        if moment.id not in self._calls:
            return
        self._settled.add(moment.id)
        if moment.id in self._with_client and moment.id in self._answered:
            return  # its message has the result, as the client gave it
        if self._is_silent:
            self._results.append(moment)
        if moment.ok:
            yield _output(moment.id, moment.content)
        elif moment.code == "denied" and moment.id in self._asked.values():
            yield {"type": "tool-output-denied", "toolCallId": moment.id}
        else:
            yield {
                "type": "tool-output-error", "toolCallId": moment.id, "errorText": moment.content, "dynamic": True,
            }  # fmt: skip

    def _ask(self, question: QuestionAsked) -> Chunks:
        if question.is_of_child or question.id in self._asked:
            return
        is_settled = question.call_id in self._settled  # which may be known before the question is
        self._asked[question.id] = question.call_id
        if question.id in self._answers:
            self._answered.add(question.call_id)
            self._before = set(self._calls)
        if question.call_id not in self._calls:
            self._of_children.add(question.call_id)
            yield from self._show(CallAsked(id=question.call_id, tool=question.tool, arguments=question.arguments))
        if question.is_for_caller:
            self._with_client.add(question.call_id)  # what is shown of the call asks for its result
        elif not is_settled:
            yield self._approval(question)

    def _approval(self, question: QuestionAsked) -> Chunk:
        """Version 6 refuses members that it does not know."""
        request: Chunk = {"type": "tool-approval-request", "approvalId": question.id, "toolCallId": question.call_id}
        if self._dialect is AiSdkDialect.SIX:
            return request
        expires = None if question.expires_at is None else question.expires_at.isoformat()
        descriptor = {
            "tool": question.tool, "arguments": question.arguments, "digest": question.digest, "why": question.why,
            "schema": question.schema, "expiresAt": expires, "onExpiry": question.on_expiry,
        }  # fmt: skip
        return request | ({"reason": question.prompt} if question.prompt else {}) | {"approvalDescriptor": descriptor}

    def _answer(self, moment: QuestionAnswered) -> Chunks:
        is_denied = moment.action == Action.CANCEL
        if moment.call_id in self._of_children:  # its result is the sub-agent's, and is not shown here
            denied = {"type": "tool-output-denied", "toolCallId": moment.call_id}
            yield denied if is_denied else _output(moment.call_id, Action.RESUME.verdict)

    def _take(self, moment: MessageTaken) -> Chunks:
        if self._dialect is AiSdkDialect.SEVEN and moment.turn_id != self._turn_id:
            parts = [{"type": "text", "text": moment.text}]
            yield {"type": "steering-message", "id": moment.turn_id, "parts": parts}

    # the end

    def _wait(self, moment: Waiting) -> Chunks:
        for question in moment.questions:
            yield from self._ask(question)
        yield from self._close()
        self.is_over = True
        yield {"type": "finish", "finishReason": "tool-calls"}

    def _end(self, moment: TurnEnded) -> Chunks:
        yield from self._close()
        if moment.is_cancelled:
            self.is_over = True
            yield {"type": "abort", "reason": moment.why}
            yield {"type": "finish", "finishReason": "other"}
        elif moment.is_success:
            self.is_over = True
            yield {"type": "finish", "finishReason": "other" if moment.reason == Reason.STOPPED else self._finish}
        else:
            yield from self._error(moment.why)

    def _error(self, message: str) -> Chunks:
        self.is_over = True
        yield {"type": "error", "errorText": message}

    def _close(self) -> Chunks:
        yield from self._close_text()
        if self._has_open_step:
            self._has_open_step = False
            yield {"type": "finish-step"}

    def _close_text(self) -> Chunks:
        if self._open_text is not None:
            yield {"type": "text-end", "id": self._open_text}
            self._open_text = None


def _output(call_id: str, output: str, *, preliminary: bool = False) -> Chunk:
    chunk: Chunk = {"type": "tool-output-available", "toolCallId": call_id, "output": output, "dynamic": True}
    return {**chunk, "preliminary": True} if preliminary else chunk


def _data(**values: Any) -> Chunk:
    return {"type": "data-chordage", "data": values, "transient": True}
