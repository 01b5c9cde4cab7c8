"""Chat completions of OpenAI: moments of a turn become chunks, or one completion.

The texts of all replies of the turn are one message, with a blank line between them. Tools of the agent are not shown.
A turn that waits for results of the caller's tools ends the answer with their calls; one that waits for decisions, with
its questions as text. A chunk cannot be taken back: where the text of a worker that died was sent, the stream ends with
the error `stream_reset`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.faces.face import DONE, Events, Face, Table, Wire, as_json
from chordage.orchestrator.faces.moments import (
    Queued,
    Replied,
    Started,
    TextDropped,
    TextGrown,
    TurnEnded,
    TurnMoment,
    Waiting,
)
from chordage.orchestrator.faces.openai_responses import LOST, about, ended, words_of
from chordage.orchestrator.faces.openai_sequence import INTERRUPTED, RESET

STOPS = {"max_tokens": "length", "refusal": "content_filter"}
GAP = "\n\n"
_FACTS = ("id", "tool", "prompt", "expires_at")
SAME_KEY = "send the request again under its Idempotency-Key"


@dataclass(kw_only=True)
class ChatFace(Face):
    """The state of one completion. `failure`: why there is none, as an error of OpenAI."""

    done = DONE

    id: str
    agent: str
    created: int
    with_usage: bool = False  # a chunk of its own at the end of a stream
    # Questions that were answered, and their calls. The completion is what came of the answers, and of nothing before.
    since: frozenset[str] = frozenset()

    failure: Wire | None = None
    finish: str | None = None
    _said: list[str] = field(default_factory=list)  # by the replies on record
    _calls: list[Wire] = field(default_factory=list)  # for the caller
    _growing: str = ""
    _own: Wire = field(default_factory=dict)  # what OpenAI has no word for
    _usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        super().__init__(self.since)

    def begin(self) -> list[Wire]:
        return [self._chunk({"role": "assistant", "content": ""})]

    def _resume(self, _moment: TurnMoment) -> Events:
        self._said, self._growing = [], ""
        yield from ()

    def _fail(self, _message: str, _code: str) -> Events:
        self.is_cut = True
        yield error_chunk(LOST + SAME_KEY)

    def _place(self, moment: Queued | Started) -> Events:
        self._own = {"turn": moment.turn_id, "thread": moment.thread_id}
        if isinstance(moment, Started):
            self.agent = moment.agent
            self._own |= {"run": moment.run_id}
        yield from ()

    def _grow(self, moment: TextGrown) -> Events:
        yield self._chunk({"content": self._joined(moment.text)})

    def _reply(self, moment: Replied) -> Events:
        if moment.is_plan:
            yield from self._drop(moment)
        self._said += [self._growing] if self._growing else []
        self._growing = ""

    def completion(self) -> Wire:
        """The whole answer."""
        message: Wire = {"role": "assistant", "content": GAP.join(self._said), "refusal": None}
        if self._calls:
            message |= {"content": message["content"] or None, "tool_calls": self._calls}
        choice = {"index": 0, "message": message, "finish_reason": self.finish, "logprobs": None}
        return {**self._head("chat.completion"), "choices": [choice], "usage": chat_usage(self._usage)}

    def _joined(self, text: str) -> str:
        """With the gap to the reply before."""
        gap = GAP if self._said and not self._growing else ""
        self._growing += text
        return gap + text

    def _drop(self, _moment: TurnMoment) -> Events:
        dropped, self._growing = self._growing, ""
        if dropped:
            self.is_cut = not self._is_silent
            yield error_chunk("the worker died; its text is begun again", RESET)

    def _wait(self, moment: Waiting) -> Events:
        questions = [about(question) for question in moment.for_people]
        prompts = "\n".join(question["prompt"] for question in questions)
        if prompts:
            yield self._chunk({"content": self._joined(prompts)})
            self._said.append(prompts)
        self._own |= {
            "status": "waiting", "suspensions": [{name: each[name] for name in _FACTS} for each in questions],
        }  # fmt: skip
        for question in moment.for_caller:
            function = {"name": question.tool, "arguments": as_json(question.arguments)}
            self._calls.append({"id": question.call_id, "type": "function", "function": function})
            yield self._chunk({"tool_calls": [{"index": len(self._calls) - 1, **self._calls[-1]}]})
        yield from self._finish("tool_calls" if self._calls else "stop", moment.usage)

    def _end(self, moment: TurnEnded) -> Events:
        self._own |= ended(moment)
        self._growing = ""
        if moment.disposition == "answered":
            yield from self._finish(STOPS.get(moment.code or "", "stop"), moment.usage)
            return
        self.failure = {
            "message": f"the turn has no answer: {words_of(moment)}", "param": None,
            "type": "server_error" if moment.disposition == "failed" else "invalid_request_error",
            "code": moment.code or moment.disposition,
        }  # fmt: skip
        self.is_over = self.is_cut = True
        yield {"error": self.failure}

    def _finish(self, reason: str, usage: Usage) -> Events:
        self.finish, self._usage, self.is_over = reason, usage, True
        yield self._chunk({}, reason)
        if self.with_usage:
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": chat_usage(usage)}

    def _chunk(self, delta: Wire, reason: str | None = None) -> Wire:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> Wire:
        head: dict[str, Any] = {"id": self.id, "object": kind, "created": self.created, "model": self.agent}
        return head | ({"chordage": dict(self._own)} if self._own else {})

    TABLE: ClassVar[Table] = {
        Queued: _place, Started: _place, TextGrown: _grow, TextDropped: _drop, Replied: _reply, Waiting: _wait,
        TurnEnded: _end,
    }  # fmt: skip


def error_chunk(message: str, code: str = INTERRUPTED) -> Wire:
    """The end of a stream that cannot go on. The turn does."""
    return {"error": {"message": message, "type": "server_error", "param": None, "code": code}}


def chat_usage(usage: Usage) -> Wire:
    return {
        "prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
