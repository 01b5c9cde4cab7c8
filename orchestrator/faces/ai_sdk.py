"""The UI message stream of the AI SDK: from the moments of a turn to its chunks, in the dialects 6 and 7.

One turn is one message of the assistant, and its id is that of the turn: what follows an approval grows the message
that asked for it. Version 6 refuses a chunk that it does not know. So it gets none of those that 7 has added, and where
text is withdrawn, which it cannot express, it gets an error: read again from the start, the message is right.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import Any, ClassVar

from chordage.orchestrator.core.approvals import Action
from chordage.orchestrator.core.model import StopReason
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.faces.face import DONE, Events, Face, Table, Wire, as_json
from chordage.orchestrator.faces.moments import (
    CallAsked,
    CallProgressed,
    CallSettled,
    MessageTaken,
    QuestionAnswered,
    QuestionAsked,
    Queued,
    ReasoningGrown,
    Replied,
    RoundSettled,
    Started,
    StepStarted,
    TextDropped,
    TextGrown,
    TurnEnded,
    TurnMoment,
    Waiting,
)

_FINISHES = {StopReason.MAX_TOKENS.value: "length", StopReason.REFUSAL.value: "content-filter"}
_RESET = "The reply was cut off with its worker, and another attempt follows: read the stream again from its start."


class AiSdkDialect(IntEnum):
    SIX = 6
    SEVEN = 7


class AiSdkFace(Face):
    """Of one answer to a client. `answers` are the questions that it answered with its request. Where its message was
    steered into the run of another turn, the answer begins there.
    """

    done = DONE

    def __init__(
        self, *, turn_id: str, dialect: AiSdkDialect = AiSdkDialect.SIX, answers: Collection[str] = ()
    ) -> None:
        super().__init__(answers)
        self._turn_id = turn_id
        self._dialect = dialect
        self._calls: set[str] = set()
        self._settled: set[str] = set()
        self._of_children: set[str] = set()  # calls of sub-agents, shown because of a question
        self._asked: dict[str, str] = {}  # questions, and their calls
        self._with_client: set[str] = set()  # calls that the client carries out
        self._before: set[str] = set()  # calls that were known when the client was asked
        self._results: list[CallSettled] = []  # of the part that is not sent
        self._step = 0
        self._texts = 0  # that were begun, and reasoning: each has an id of its own
        self._has_open_step = False
        self._open_text: str | None = None
        self._open_reasoning: str | None = None
        self._has_reasoned = False  # in this attempt at the step
        self._finish = "stop"

    def begin(self) -> list[Wire]:
        return [{"type": "start", "messageId": self._turn_id}]

    def _queue(self, moment: Queued) -> Events:
        if moment.why is not None:
            yield _data(why=moment.why, status="queued")

    def _start(self, moment: Started) -> Events:
        self._is_silent = self._is_silent or moment.turn_id != self._turn_id
        yield from ()

    # a message that continues after answers

    def _continues_with(self, moment: TurnMoment) -> bool:
        """The answer to a question of a sub-agent may be no moment of this turn: then what ends it is shown whole."""
        if isinstance(moment, MessageTaken):
            return moment.turn_id == self._turn_id
        return super()._continues_with(moment)

    def _resume(self, moment: TurnMoment) -> Events:
        self._has_open_step, self._open_text, self._open_reasoning = False, None, None
        shows_rest = isinstance(moment, Waiting | TurnEnded)
        for settled in self._results:
            if settled.id in (self._before if shows_rest else self._awaited):
                yield from self._settle(settled)
        if isinstance(moment, TurnEnded) and moment.text:
            yield from self._start_step(StepStarted(step=self._step + 1))
            yield from self._grow(TextGrown(step=self._step, attempt=0, text=moment.text))

    # the reply

    def _start_step(self, moment: StepStarted) -> Events:
        if moment.step != self._step or not self._has_open_step:
            yield from self._close()
            self._step, self._has_open_step, self._has_reasoned = moment.step, True, False
            yield {"type": "start-step"}

    def _reason(self, moment: ReasoningGrown) -> Events:
        if self._open_reasoning is None:
            self._texts += 1
            self._open_reasoning, self._has_reasoned = f"reasoning-{self._texts}", True
            yield {"type": "reasoning-start", "id": self._open_reasoning}
        yield {"type": "reasoning-delta", "id": self._open_reasoning, "delta": moment.text}

    def _grow(self, moment: TextGrown) -> Events:
        if not moment.text:
            return
        yield from self._close_reasoning()
        if self._open_text is None:
            self._texts += 1
            self._open_text = f"text-{self._texts}"
            yield {"type": "text-start", "id": self._open_text}
        yield {"type": "text-delta", "id": self._open_text, "delta": moment.text}

    def _drop(self, _moment: TurnMoment) -> Events:
        """What a worker that died had sent of a reply."""
        if self._open_text is None and not self._has_reasoned:
            return
        if self._dialect is AiSdkDialect.SEVEN:
            self._open_text, self._open_reasoning, self._has_reasoned = None, None, False
            yield {"type": "reset-step"}
        elif not self._is_silent:
            yield from self._close()
            yield from self._fail(_RESET)

    def _reply(self, moment: Replied) -> Events:
        if moment.is_plan:
            if self._dialect is AiSdkDialect.SEVEN:
                yield from self._drop(moment)
            yield from self._close()
            return
        yield from self._close_text()
        self._finish = _FINISHES.get(moment.stop, "stop")
        for call in moment.calls:
            yield from self._show(call)
        if not moment.calls:
            yield from self._close()

    def _show(self, call: CallAsked) -> Events:
        """The arguments come whole with the reply, so they are one delta."""
        self._calls.add(call.id)
        named = {"toolCallId": call.id, "toolName": call.tool, "dynamic": True}
        yield {"type": "tool-input-start", **named}
        yield {"type": "tool-input-delta", "toolCallId": call.id, "inputTextDelta": as_json(call.arguments)}
        yield {"type": "tool-input-available", **named, "input": call.arguments}

    # the calls

    def _progress(self, moment: CallProgressed) -> Events:
        if moment.id in self._calls:
            yield _output(moment.id, moment.text, preliminary=True)

    def _end_round(self, _moment: RoundSettled) -> Events:
        if self._open_text is None and self._open_reasoning is None:
            yield from self._close()

    def _settle(self, moment: CallSettled) -> Events:
        if moment.id not in self._calls:
            return
        self._settled.add(moment.id)
        if moment.id in self._with_client and moment.id in self._awaited:
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

    def _ask(self, question: QuestionAsked) -> Events:
        if question.is_of_child or question.id in self._asked:
            return
        is_settled = question.call_id in self._settled  # which may be known before the question is
        self._asked[question.id] = question.call_id
        if question.id in self._answers:
            self._before = set(self._calls)
        if question.call_id not in self._calls:
            self._of_children.add(question.call_id)
            yield from self._show(CallAsked(id=question.call_id, tool=question.tool, arguments=question.arguments))
        if question.is_for_caller:
            self._with_client.add(question.call_id)  # what is shown of the call asks for its result
        elif not is_settled:
            yield self._approval(question)

    def _approval(self, question: QuestionAsked) -> Wire:
        """Version 6 refuses members that it does not know."""
        request: Wire = {"type": "tool-approval-request", "approvalId": question.id, "toolCallId": question.call_id}
        if self._dialect is AiSdkDialect.SIX:
            return request
        descriptor = {
            "tool": question.tool, "arguments": question.arguments, "digest": question.digest, "why": question.why,
            "schema": question.schema, "expiresAt": question.expiry, "onExpiry": question.on_expiry,
        }  # fmt: skip
        return request | ({"reason": question.prompt} if question.prompt else {}) | {"approvalDescriptor": descriptor}

    def _answer(self, moment: QuestionAnswered) -> Events:
        is_denied = moment.action == Action.CANCEL
        if moment.call_id in self._of_children:  # its result is the sub-agent's, and is not shown here
            denied = {"type": "tool-output-denied", "toolCallId": moment.call_id}
            yield denied if is_denied else _output(moment.call_id, Action.RESUME.verdict)

    def _take(self, moment: MessageTaken) -> Events:
        if self._dialect is AiSdkDialect.SEVEN and moment.turn_id != self._turn_id:
            parts = [{"type": "text", "text": moment.text}]
            yield {"type": "steering-message", "id": moment.turn_id, "parts": parts}

    # the end

    def _wait(self, moment: Waiting) -> Events:
        for question in moment.questions:
            yield from self._ask(question)
        yield from self._close()
        self.is_over = True
        yield {"type": "finish", "finishReason": "tool-calls"}

    def _end(self, moment: TurnEnded) -> Events:
        yield from self._close()
        if moment.is_cancelled:
            self.is_over = True
            yield {"type": "abort", "reason": moment.why}
            yield {"type": "finish", "finishReason": "other"}
        elif moment.is_success:
            self.is_over = True
            yield {"type": "finish", "finishReason": "other" if moment.reason == Reason.STOPPED else self._finish}
        else:
            yield from self._fail(moment.why)

    def _fail(self, message: str, _code: str = "") -> Events:
        self.is_over = True
        yield {"type": "error", "errorText": message}

    def _close(self) -> Events:
        yield from self._close_text()
        if self._has_open_step:
            self._has_open_step = False
            yield {"type": "finish-step"}

    def _close_text(self) -> Events:
        yield from self._close_reasoning()
        if self._open_text is not None:
            yield {"type": "text-end", "id": self._open_text}
            self._open_text = None

    def _close_reasoning(self) -> Events:
        if self._open_reasoning is not None:
            yield {"type": "reasoning-end", "id": self._open_reasoning}
            self._open_reasoning = None

    TABLE: ClassVar[Table] = {
        Queued: _queue, Started: _start, StepStarted: _start_step, ReasoningGrown: _reason, TextGrown: _grow,
        TextDropped: _drop, Replied: _reply, CallProgressed: _progress, CallSettled: _settle, RoundSettled: _end_round,
        QuestionAsked: _ask, QuestionAnswered: _answer, MessageTaken: _take, Waiting: _wait, TurnEnded: _end,
    }  # fmt: skip


def _output(call_id: str, output: str, *, preliminary: bool = False) -> Wire:
    chunk: Wire = {"type": "tool-output-available", "toolCallId": call_id, "output": output, "dynamic": True}
    return {**chunk, "preliminary": True} if preliminary else chunk


def _data(**values: Any) -> Wire:
    return {"type": "data-chordage", "data": values, "transient": True}
