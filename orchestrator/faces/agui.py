"""AG-UI: from the moments of a turn to the events of the protocol 1.0, or of the dialect that came before it.

The clients check the order of events, and refuse a stream that breaks it: `RUN_STARTED` first, every message, call and
step closed before `RUN_FINISHED`. What they cannot see is that a stream ended too early: they take that for success.
So a run ends with `RUN_FINISHED` or `RUN_ERROR`, always.

The old dialect has no outcome `cancelled`. Clients of protocol 1.0 say so in what they send; older ones do not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, ClassVar

from chordage.orchestrator.core.approvals import Action, Why
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.faces.face import Events, Face, Table, Wire, as_json
from chordage.orchestrator.faces.moments import (
    CallAsked,
    CallProgressed,
    CallSettled,
    MessageTaken,
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

PROTOCOL = "1.0"
APPROVAL: dict[str, Any] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "editedArgs": {"type": "object"}, "reason": {"type": "string"}},
    "required": ["approved"],
}  # whether a call may run; editedArgs replace all arguments
_REASONS = {Why.GATE: "tool_call", Why.TOOL: "input_required", Why.UNKNOWN: "chordage:outcome_unknown"}

AguiMessage = dict[str, Any]


class AguiFace(Face):
    """Of one run of a client. `messages` are those that it has. `answers` are the questions that it answered with this
    run. The messages of these `turns` are its own. `is_back`: it has nothing, and `messages` are sent to it.
    """

    def __init__(
        self,
        *,
        thread_id: str,
        run_id: str,
        is_old: bool = False,
        messages: Iterable[AguiMessage] = (),
        state: Any = None,
        answers: Collection[str] = (),
        turns: Collection[str] = (),
        is_back: bool = False,
    ) -> None:
        super().__init__(answers)
        self._ids = {"threadId": thread_id, "runId": run_id}
        self._is_old = is_old
        self._messages = list(messages)
        self._state = state
        self._turns = frozenset(turns)
        self._is_back = is_back
        self._had_calls = {call["id"] for message in self._messages for call in message.get("toolCalls") or ()}
        self._had_results = {message["toolCallId"] for message in self._messages if message.get("toolCallId")}
        self._run = ""  # ours
        self._own: set[str] = set()  # messages of this run, once they are complete
        self._calls: dict[str, str] = {}  # that were asked for, and the message each belongs to
        self._asked: set[str] = set()  # questions
        self._sub_agents: dict[str, SubAgentStarted] = {}  # that are at work, those above before those below
        self._step = 0
        self._drops = 0  # of the text of this step
        self._open_step: str | None = None
        self._open_text: str | None = None
        self._open_reasoning: str | None = None
        self._has_reasoned = False  # in this attempt at the step
        self._why: str | None = None
        self._usage: dict[str, Usage] = {}

    def begin(self) -> list[Wire]:
        started = _event("RUN_STARTED", **self._ids, protocolVersion=None if self._is_old else PROTOCOL)
        return [started, self._snapshot()] if self._is_back else [started]

    # a run that continues after answers

    def _continues_with(self, moment: TurnMoment) -> bool:
        """The answer to a question of a sub-agent may be no moment of this turn: then the next step is the first."""
        if isinstance(moment, StepStarted):
            return self._answers <= self._asked and not self._has_step(moment.step)
        is_missed = isinstance(moment, CallSettled) and self._ends_sub_agent(moment)
        return is_missed or super()._continues_with(moment)

    def _ends_sub_agent(self, moment: CallSettled) -> bool:
        """Whether the client has the call that a sub-agent answered, and not the answer."""
        is_missed = moment.id in self._had_calls - self._had_results
        return is_missed and any(one.call_id == moment.id for one in self._sub_agents.values())

    def _has_step(self, step: int) -> bool:
        own = f"{self._run}:{step}"
        return any(message["id"].partition(".")[0] == own for message in self._messages)

    def _resume(self, moment: TurnMoment) -> Events:
        self._open_step, self._open_text, self._open_reasoning, self._usage = None, None, None, {}
        forgotten = list(self._forget_unfinished())
        if isinstance(moment, TurnEnded):
            yield self._snapshot()
        yield from forgotten
        for sub_agent in self._sub_agents.values():
            yield from self._show_sub_agent(sub_agent)
        for message in self._messages:
            call = message.get("toolCallId")
            if message["id"] in self._own and call in self._had_calls - self._had_results:
                yield _result(message)

    def _forget_unfinished(self) -> Events:
        """What the client has of messages that it saw the beginning of: they come again, from their beginning."""
        own = f"{self._run}:"
        rest = []
        for one in self._messages:
            if not one["id"].startswith(own) or one["id"] in self._own:
                rest.append(one)
            elif one.get("role") == "reasoning":
                rest.append(_reasoning(one["id"]))
        if rest != self._messages:
            self._messages = rest
            yield self._snapshot()

    # the beginning

    def _wait_for(self, moment: Queued) -> Events:
        if moment.why is not None:
            self._why = moment.why
            yield self._waiting(moment.turn_id, why=moment.why)

    def _waiting(self, turn_id: str, **content: Any) -> Wire:
        return _event(
            "ACTIVITY_SNAPSHOT", messageId=f"{turn_id}:waiting", activityType="chordage.waiting", content=content,
            replace=True,
        )  # fmt: skip

    def _start(self, moment: Started) -> Events:
        if self._why is not None:
            self._why = None
            yield self._waiting(moment.turn_id)
        self._run = moment.run_id
        if not self._is_silent:
            yield from self._forget_unfinished()

    # the reply

    def _start_step(self, moment: StepStarted) -> Events:
        if moment.step != self._step:
            self._drops, self._has_reasoned = 0, False
        self._step = moment.step
        yield from self._open(f"inference:{moment.step}")

    def _reason(self, moment: ReasoningGrown) -> Events:
        if self._open_reasoning is None:
            self._open_reasoning, self._has_reasoned = self._reasoning_id(), True
            yield _event("REASONING_START", messageId=self._open_reasoning)
            yield _event("REASONING_MESSAGE_START", messageId=self._open_reasoning, role="reasoning")
        yield _event("REASONING_MESSAGE_CONTENT", messageId=self._open_reasoning, delta=moment.text)

    def _reasoning_id(self) -> str:
        """One for all attempts. The clients keep a message of reasoning that a snapshot leaves out, if it has no other:
        so a lost one is emptied, and what the next attempt reasons is added to it.
        """
        return f"{self._run}:{self._step}.reasoning"

    def _grow(self, moment: TextGrown) -> Events:
        if not moment.text:
            return
        yield from self._close_reasoning()
        if self._open_text is None:
            self._open_text = self._message_id()
            yield _event("TEXT_MESSAGE_START", messageId=self._open_text, role="assistant")
        yield _event("TEXT_MESSAGE_CONTENT", messageId=self._open_text, delta=moment.text)

    def _message_id(self) -> str:
        """The same whenever the run is replayed; another one for each attempt that was dropped."""
        attempt = f".{self._drops}" if self._drops else ""
        return f"{self._run}:{self._step}{attempt}"

    def _drop(self, _moment: TurnMoment) -> Events:
        if self._open_text is None and not self._has_reasoned:
            return
        yield from self._close_text()
        if self._has_reasoned:
            self._has_reasoned = False
            self._put(_reasoning(self._reasoning_id()))
        yield self._snapshot()
        self._drops += 1

    def _reply(self, moment: Replied) -> Events:
        usage = self._usage.get(moment.model, Usage())
        self._usage[moment.model] = usage + moment.usage
        if moment.is_plan:
            yield from self._drop(moment)
            yield from self._close()
            return
        yield from self._close_text()
        message = answer_of(
            self._message_id(), moment.text, [(call.id, call.tool, call.arguments) for call in moment.calls]
        )
        yield from self._ask_for(moment.calls, message["id"])
        if moment.reasoning:
            self._put(_reasoning(self._reasoning_id(), moment.reasoning))
        if moment.text or moment.calls:
            self._put(message)
        yield from self._close()

    def _ask_for(self, calls: Iterable[CallAsked], parent: str) -> Events:
        for call in calls:
            self._calls[call.id] = parent
            yield _event("TOOL_CALL_START", toolCallId=call.id, toolCallName=call.tool, parentMessageId=parent)
            yield _event("TOOL_CALL_ARGS", toolCallId=call.id, delta=as_json(call.arguments))
            yield _event("TOOL_CALL_END", toolCallId=call.id)

    # sub-agents: in each run of the client those that are at work are started, and ended before the run is

    def _start_sub_agent(self, moment: SubAgentStarted) -> Events:
        self._sub_agents[moment.id] = moment
        yield from self._show_sub_agent(moment)

    def _show_sub_agent(self, sub_agent: SubAgentStarted) -> Events:
        if not self._is_old:
            message = self._calls.get(sub_agent.call_id)
            yield _event(
                "SUBAGENT_STARTED", subagentRunId=sub_agent.id, name=sub_agent.agent,
                parentSubagentRunId=sub_agent.parent,
                parentToolCallId=None if message is None else sub_agent.call_id,  # of another run no call is shown
                parentMessageId=message,
            )  # fmt: skip

    def _end_sub_agent(self, moment: CallSettled) -> Events:
        for ended in [one for one in self._sub_agents.values() if one.call_id == moment.id]:
            del self._sub_agents[ended.id]
            if self._is_old:
                continue
            if moment.ok:
                yield _event(
                    "SUBAGENT_FINISHED", subagentRunId=ended.id, result=moment.content, outcome={"type": "success"}
                )
            else:
                yield _event(
                    "SUBAGENT_ERROR", subagentRunId=ended.id, message=moment.content, code=moment.code or "failed"
                )

    def _suspend_sub_agents(self, questions: Iterable[QuestionAsked]) -> Events:
        """All that are at work wait: each for the questions of its own and of the sub-agents below it."""
        waits_for: dict[str, list[str]] = {}
        for question in questions:
            asker = question.asker
            while asker is not None:
                waits_for.setdefault(asker, []).append(question.id)
                asker = self._sub_agents[asker].parent if asker in self._sub_agents else None
        while self._sub_agents:
            sub_agent, _ = self._sub_agents.popitem()  # those below first
            if not self._is_old:
                outcome = _present(type="suspended", interruptIds=waits_for.get(sub_agent))
                yield _event("SUBAGENT_FINISHED", subagentRunId=sub_agent, outcome=outcome)

    # the calls

    def _progress(self, moment: CallProgressed) -> Events:
        if moment.id in self._calls:
            content = {"toolCallId": moment.id, "text": moment.text}
            yield _event(
                "ACTIVITY_SNAPSHOT", messageId=f"{self._run}:{moment.id}:progress", activityType="chordage.tool",
                content=content, replace=True,
            )  # fmt: skip

    def _settle(self, moment: CallSettled) -> Events:
        yield from self._end_sub_agent(moment)
        if moment.id not in self._calls or self._is_of_client(moment.id):
            return
        if self._open_step is None:
            yield from self._open(f"round:{self._step + 1}")
        message = {"id": f"{self._run}:{moment.id}", "role": "tool", "toolCallId": moment.id, "content": moment.content}
        yield _result(message)
        if not moment.ok:
            message["error"] = moment.code or "failed"
        self._put(message)

    def _is_of_client(self, call_id: str) -> bool:
        """Whether the client has sent the result of this call."""
        own = f"{self._run}:{call_id}"
        return any(one.get("toolCallId") == call_id and one["id"] != own for one in self._messages)

    def _end_round(self, _moment: RoundSettled) -> Events:
        if self._open_step is not None and self._open_step.startswith("round:"):
            yield from self._close()

    def _ask(self, moment: QuestionAsked) -> Events:
        self._asked.add(moment.id)
        yield from ()

    def _take(self, moment: MessageTaken) -> Events:
        if moment.turn_id in self._turns:
            return
        message = {"id": f"{self._run}:{moment.turn_id}", "role": "user", "content": moment.text}
        yield _event("TEXT_MESSAGE_START", messageId=message["id"], role="user")
        if moment.text:
            yield _event("TEXT_MESSAGE_CONTENT", messageId=message["id"], delta=moment.text)
        yield _event("TEXT_MESSAGE_END", messageId=message["id"])
        self._put(message)

    # the end

    def _interrupt(self, moment: Waiting) -> Events:
        yield from self._close()
        yield self._snapshot()
        if self._state not in (None, {}):
            yield _event("STATE_SNAPSHOT", snapshot=self._state)
        yield from self._suspend_sub_agents(moment.for_people)
        pending = [question.call_id for question in moment.for_caller]
        if moment.for_people or not pending:
            interrupts = [self._question(question) for question in moment.for_people or moment.questions]
            yield from self._finish(outcome={"type": "interrupt", "interrupts": interrupts})
        else:  # the clients of the old dialect refuse a member that they do not know
            outcome = _present(type="success", pendingToolCallIds=None if self._is_old else pending)
            yield from self._finish(outcome=outcome)

    def _question(self, question: QuestionAsked) -> Wire:
        shown = {
            "digest": question.digest, "tool": question.tool, "arguments": question.arguments,
            "onExpiry": question.on_expiry,
        }  # fmt: skip
        return _present(
            id=question.id,
            reason=_REASONS.get(Why(question.why), "input_required"),
            message=question.prompt or None,
            toolCallId=question.call_id if question.call_id in self._calls else None,
            responseSchema=_schema_of(question),
            expiresAt=question.expiry,
            metadata={"chordage": shown},
            subagentRunId=None if self._is_old else question.asker,
        )

    def _end(self, moment: TurnEnded) -> Events:
        yield from self._close()
        is_cancelled = moment.is_cancelled or moment.reason == Reason.STOPPED
        if is_cancelled and self._is_old:
            yield from self._fail(moment.why, "cancelled")
        elif is_cancelled:
            yield from self._finish(outcome={"type": "cancelled"})
        elif moment.is_success:
            yield from self._finish(outcome={"type": "success"}, result=moment.output)
        else:
            yield from self._fail(moment.why, moment.code or moment.disposition)

    def _finish(self, **fields: Any) -> Events:
        self.is_over = True
        yield _event("RUN_FINISHED", **self._ids, **fields, usage=self._counts())

    def _fail(self, message: str, code: str) -> Events:
        self.is_over = True
        yield _event("RUN_ERROR", message=message, code=code, usage=self._counts())

    def _counts(self) -> list[dict[str, Any]] | None:
        return [_token_usage(model, usage) for model, usage in self._usage.items()] or None

    # messages and steps

    def _put(self, message: AguiMessage) -> None:
        """A result goes behind the others of its message, as in the client."""
        self._own.add(message["id"])
        places = {known["id"]: place for place, known in enumerate(self._messages)}
        if message["id"] in places:
            self._messages[places[message["id"]]] = message
            return
        place = places.get(self._calls.get(message.get("toolCallId", ""), ""), len(self._messages) - 1) + 1
        while place < len(self._messages) and self._messages[place].get("role") == "tool":
            place += 1
        self._messages.insert(place, message)

    def _snapshot(self) -> Wire:
        return _event("MESSAGES_SNAPSHOT", messages=[dict(message) for message in self._messages])

    def _open(self, name: str) -> Events:
        if name != self._open_step:
            yield from self._close()
            self._open_step = name
            yield _event("STEP_STARTED", stepName=name)

    def _close(self) -> Events:
        yield from self._close_text()
        if self._open_step is not None:
            yield _event("STEP_FINISHED", stepName=self._open_step)
            self._open_step = None

    def _close_text(self) -> Events:
        yield from self._close_reasoning()
        if self._open_text is not None:
            yield _event("TEXT_MESSAGE_END", messageId=self._open_text)
            self._open_text = None

    def _close_reasoning(self) -> Events:
        if self._open_reasoning is not None:
            yield _event("REASONING_MESSAGE_END", messageId=self._open_reasoning)
            yield _event("REASONING_END", messageId=self._open_reasoning)
            self._open_reasoning = None

    TABLE: ClassVar[Table] = {
        Queued: _wait_for, Started: _start, StepStarted: _start_step, ReasoningGrown: _reason, TextGrown: _grow,
        TextDropped: _drop, Replied: _reply, SubAgentStarted: _start_sub_agent, CallProgressed: _progress,
        CallSettled: _settle, RoundSettled: _end_round, QuestionAsked: _ask, MessageTaken: _take, Waiting: _interrupt,
        TurnEnded: _end,
    }  # fmt: skip


def answer_of(message_id: str, text: str, calls: Iterable[tuple[str, str, dict[str, Any]]]) -> AguiMessage:
    """A message of the assistant. `calls`: id, tool and arguments of each."""
    asked = [
        {"id": call_id, "type": "function", "function": {"name": tool, "arguments": as_json(arguments)}}
        for call_id, tool, arguments in calls
    ]
    return {"id": message_id, "role": "assistant", **_present(content=text or None, toolCalls=asked or None)}


def _reasoning(message_id: str, text: str = "") -> AguiMessage:
    return {"id": message_id, "role": "reasoning", "content": text}


def decision_in(payload: Any, *, why: Why, schema: dict[str, Any] | None) -> tuple[Action, dict[str, Any]]:
    """What a client answered to a question, as an action and the other fields of a decision. Raises ValueError.

    Whether a call may run is answered with `approved`. Where the question has a schema, the payload is the answer, and
    where it has none, the payload may be either. Without `payload` among the fields, the answer is a plain yes.
    """
    asks_for_approval = why is Why.GATE or schema is None
    answer = dict(payload) if isinstance(payload, dict) and asks_for_approval else {}
    approved = answer.pop("approved", None)
    if not isinstance(approved, bool):
        if why is Why.GATE:
            raise ValueError("the payload has to say whether the call may run: approved, true or false")
        return Action.RESUME, {"payload": payload}
    edited, reason = _taken(answer, "editedArgs", dict), _taken(answer, "reason", str)
    if not approved:
        return Action.CANCEL, {"reason": reason}
    return Action.RESUME, {"edited_args": edited, **({"payload": answer} if answer else {})}


def _taken(answer: dict[str, Any], name: str, kind: type) -> Any:
    value = answer.pop(name, None)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{name} of the payload has to be {'text' if kind is str else 'an object'}")
    return value


def _schema_of(question: QuestionAsked) -> dict[str, Any] | None:
    """Of an answer. What else an approval may say is what the question's own schema lists."""
    if question.why != Why.GATE:
        return question.schema
    more = (question.schema or {}).get("properties") or {}
    return {**APPROVAL, "properties": {**more, **APPROVAL["properties"]}}


def _event(kind: str, **fields: Any) -> Wire:
    return _present(type=kind, **fields)


def _present(**fields: Any) -> dict[str, Any]:
    """The clients refuse null where a field is optional."""
    return {name: value for name, value in fields.items() if value is not None}


def _result(message: AguiMessage) -> Wire:
    return _event(
        "TOOL_CALL_RESULT", messageId=message["id"], toolCallId=message["toolCallId"], content=message["content"],
        role="tool",
    )  # fmt: skip


def _token_usage(model: str, usage: Usage) -> dict[str, Any]:
    provider, separator, name = model.partition(":")
    return _present(
        provider=provider if separator else None,
        model=(name if separator else model) or None,
        inputTokens=usage.input_tokens,
        outputTokens=usage.output_tokens,
        totalTokens=usage.input_tokens + usage.output_tokens,
        cachedInputTokens=usage.cached_tokens,
        cacheWriteInputTokens=usage.cache_write_tokens,
    )
