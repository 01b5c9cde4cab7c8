"""The spans of a run, made of its rows alone, with the names of OpenTelemetry's conventions for generative AI.

The id of a trace is that of the run at the root of its tree, and the id of a span is a hash of what it is about. So
every process names the same spans at any time, and a span that is sent twice is the same span.

A span covers an operation with all its retries: a reply with the requests that failed before it, a tool call with its
waits and the workers that were lost in it. Times are those of the rows. The start of a reply is computed from the
seconds of its requests: pauses between them are not recorded.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from chordage.orchestrator.core.model import StopReason, Usage
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Call, Checkpoint, Entry, Run
from chordage.orchestrator.core.status import CallStatus, RunStatus

WORKER_LOST = "worker_lost"
_REPLIES = (Checkpoint.ASSISTANT_TURN, Checkpoint.PLAN, Checkpoint.REPLY_HELD)
_SUMMARIES = (Checkpoint.COMPACTED, Checkpoint.COMPACTION_FAILED)
_FINISH = {
    StopReason.END: "stop",
    StopReason.TOOL_USE: "tool_call",
    StopReason.MAX_TOKENS: "length",
    StopReason.REFUSAL: "content_filter",
}
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


class SpanPart(StrEnum):
    """What a span is about. Part of its id, so these words never change."""

    RUN = "run"
    MODEL = "model"
    PHASE = "phase"  # planning or compaction, around its model call
    CALL = "call"
    WAIT = "wait"
    LOST = "lost"


class SpanKind(IntEnum):
    """As OTLP numbers them."""

    INTERNAL = 1
    CLIENT = 3


class SpanLink(NamedTuple):
    trace_id: str
    span_id: str
    relation: str
    flags: int | None = None


class SpanEvent(NamedTuple):
    at: datetime
    name: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: SpanKind
    start: datetime
    end: datetime
    attributes: Mapping[str, Any]
    is_error: bool = False
    detail: str | None = None  # in words; only with the contents
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()


def trace_id(root_run: str) -> str:
    """32 hexadecimal digits: those of the UUID, or a hash of an id of another form."""
    if _UUID.fullmatch(root_run):
        return root_run.replace("-", "")
    return hashlib.sha256(root_run.encode()).hexdigest()[:32]


def span_id(
    part: SpanPart, run_id: str, *, step: int = 0, call: str = "", generation: int = 0, attempt: int = 0
) -> str:
    """16 hexadecimal digits."""
    subject = json.dumps([part.value, run_id, step, call, generation, attempt]).encode()
    return hashlib.sha256(subject).hexdigest()[:16]


def span_of_run(run_id: str) -> str:
    return span_id(SpanPart.RUN, run_id)


def span_of_call(call: Call) -> str:
    return span_id(SpanPart.CALL, call.run_id, step=call.step, call=call.id, generation=call.generation)


def valid_traceparent(header: str | None) -> str | None:
    """The header of a caller as it is kept, or None: W3C wants a malformed one ignored. Of a later version the part
    that this one knows.
    """
    match = None if header is None else _TRACEPARENT.fullmatch(header.strip())
    if match is None:
        return None
    version, trace, parent, _flags, more = match.groups()
    is_known = version != "ff" and (version != "00" or more is None)
    return match.group(0)[:55] if is_known and int(trace, 16) and int(parent, 16) else None


def link_of_caller(traceparent: str) -> SpanLink:
    _version, trace, parent, flags = traceparent.split("-")
    return SpanLink(trace, parent, "caller", int(flags, 16))


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedQuestion:
    """A suspension that a person is asked about, with its decision."""

    id: str
    call_id: str
    why: str
    status: str
    prompt: str
    created_at: datetime
    decision_id: str | None
    action: str | None
    payload: Any
    reason: str | None
    decided_by: str | None
    decided_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LostClaim:
    """A model call (no `call_id`) or a tool call whose worker was lost."""

    call_id: str | None
    step: int
    worker: str | None
    lost_at: datetime
    noticed_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRows:
    """What is recorded of one run. `entries` in the order of the journal."""

    run: Run
    usage: Usage  # its own, without that of its sub-agents
    queued_at: datetime | None  # its turn; None: the turn is deleted
    until: datetime  # the last moment that is recorded; what is open ends there
    parent: Call | None  # of a sub-agent: the call that it answers
    entries: Sequence[Entry]
    calls: Sequence[Call]
    questions: Sequence[AskedQuestion] = ()
    lost: Sequence[LostClaim] = ()
    child_since: Mapping[str, datetime] = field(default_factory=dict)  # by call: when its sub-agent was asked
    repeated: int = 0  # how many of its first replies are those of the run that it is a fork of
    links: Sequence[SpanLink] = ()


def spans_of(rows: RunRows, *, contents: bool = False) -> list[Span]:
    """The span of the run, and behind it those below it, parents first. `contents`: with messages, arguments and
    results.
    """
    return list(_RunSpans(rows, contents=contents))


class _RunSpans:
    def __init__(self, rows: RunRows, *, contents: bool) -> None:
        self._rows = rows
        self._run = rows.run
        self._contents = contents
        self._trace = trace_id(rows.run.kin.root_run if rows.run.kin else rows.run.id)
        self._own = span_of_run(rows.run.id)
        self._over = rows.run.ended_at or rows.until
        self._by_step: dict[int, list[Entry]] = defaultdict(list)
        for entry in rows.entries:
            self._by_step[entry.step].append(entry)
        self._lost: dict[tuple[int, str | None], list[LostClaim]] = defaultdict(list)
        for claim in rows.lost:
            self._lost[0 if claim.call_id else claim.step, claim.call_id].append(claim)
        replied = [entry.step for entry in rows.entries if entry.kind is Checkpoint.ASSISTANT_TURN]
        self._repeated = frozenset(sorted(replied)[: rows.repeated])
        self._models: list[str] = []
        self._spanned: set[int] = set()  # journal rows that are spans

    def __iter__(self) -> Iterator[Span]:
        below = [*self._model_spans(), *self._call_spans()]
        yield self._run_span()
        yield from below

    def _span(self, part: SpanPart, name: str, start: datetime, end: datetime, **more: Any) -> Span:
        key = more.pop("key", {})
        attributes = {**more.pop("attributes"), "chordage.run.id": self._run.id}
        return Span(
            trace_id=self._trace, span_id=span_id(part, self._run.id, **key), parent_id=more.pop("parent", self._own),
            name=name, kind=more.pop("kind", SpanKind.INTERNAL), start=min(start, end), end=end,
            attributes=_known(attributes), **more,
        )  # fmt: skip

    def _run_span(self) -> Span:
        run, rows = self._run, self._rows
        failed = run.reason is Reason.ERROR
        events = [
            SpanEvent(
                entry.at or run.started_at,
                f"chordage.{_WORDS.sub('_', entry.kind.value).lower()}",
                _known({"chordage.step": entry.step, "chordage.journal.id": entry.id or None}),
            )
            for entry in rows.entries
            if entry.id not in self._spanned
        ]
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": run.agent,
            "gen_ai.conversation.id": run.home_thread,
            "gen_ai.request.model": _model(self._models[0])[1] if self._models else None,
            "gen_ai.provider.name": _model(self._models[0])[0] if self._models else None,
            **_of_usage(rows.usage),
            "error.type": (run.code or "_OTHER") if failed else None,
            "chordage.turn.id": run.turn_id,
            "chordage.thread.id": run.thread_id,
            "chordage.group": run.group.value,
            "chordage.strategy": run.strategy,
            "chordage.agent.path": run.kin.path if run.kin else None,
            "chordage.rounds": run.rounds,
            "chordage.status": run.status.value,
            "chordage.reason": run.reason.value if run.reason else None,
            "chordage.code": run.code,
            "chordage.open": True if run.ended_at is None else None,
            "chordage.queue_seconds": _seconds(rows.queued_at, run.started_at),
            "chordage.fork_of": run.fork_of,
            **(self._messages_of_run() if self._contents else {}),
        }
        parent = None if rows.parent is None else span_of_call(rows.parent)
        return self._span(
            SpanPart.RUN, f"invoke_agent {run.agent}", run.started_at, self._over, parent=parent,
            attributes=attributes, is_error=failed, detail=run.detail if self._contents else None,
            events=tuple(sorted(events, key=lambda event: event.at)), links=tuple(rows.links),
        )  # fmt: skip

    def _messages_of_run(self) -> dict[str, Any]:
        messages = [_user(entry) for entry in self._rows.entries if entry.kind is Checkpoint.USER_MESSAGE]
        replies = [entry for entry in self._rows.entries if entry.kind is Checkpoint.ASSISTANT_TURN]
        output = [_assistant(replies[-1].body)] if replies and self._run.status is RunStatus.DONE else None
        return {"gen_ai.input.messages": messages, "gen_ai.output.messages": output}

    # Model calls

    def _model_spans(self) -> Iterator[Span]:
        steps = {entry.step for entry in self._rows.entries if entry.kind in {*_REPLIES, *_SUMMARIES}}
        for step in sorted(steps | self._unanswered_steps()):
            yield from self._model_call(step)

    def _unanswered_steps(self) -> set[int]:
        """At which a model was asked, and no reply is recorded."""
        run = self._run
        steps = {step for step, call_id in self._lost if call_id is None}
        steps |= {
            entry.step
            for entry in self._rows.entries
            if entry.kind is Checkpoint.RUN_FINISHED and entry.body.get("attempts")
        }
        is_asked = run.status is RunStatus.RUNNING and run.claim_worker is not None
        if is_asked and run.next_inference is not None:
            steps.add(run.next_inference)
        return steps

    def _model_call(self, step: int) -> Iterator[Span]:
        """What a model was asked at this step, with the requests that failed and the workers that were lost."""
        run, entries = self._run, self._by_step[step]
        replies = [entry for kind in (*_REPLIES, *_SUMMARIES) for entry in entries if entry.kind is kind]
        reply = replies[0] if replies else None
        record = reply or next((entry for entry in entries if entry.kind is Checkpoint.RUN_FINISHED), None)
        body: Mapping[str, Any] = record.body if record else {}
        attempts = body.get("attempts") or ()
        lost = self._lost[step, None]
        end = self._end_of_model_call(step, replies)
        start = min(end, max(run.started_at, self._start_of_model_call(step, end, attempts, replies, lost)))
        asked = attempts[0]["model"] if attempts else body.get("model")
        if asked:
            self._models.append(asked)
        if reply is not None:
            self._spanned.add(reply.id)
        fault = self._fault_of_model_call(reply, attempts)
        parent = self._own
        if (phase := _phase(reply)) is not None:
            operation, name = phase
            of_phase = {"gen_ai.operation.name": operation, "gen_ai.agent.name": run.agent, "error.type": fault}
            around = self._span(
                SpanPart.PHASE, f"{name} {run.agent}", start, end, key={"step": step}, is_error=fault is not None,
                attributes={**of_phase, "chordage.step": step},
            )  # fmt: skip
            yield around
            parent = around.span_id
        attributes = self._of_model_call(step, reply, body, asked, attempts=attempts)
        span = self._span(
            SpanPart.MODEL, f"chat {_model(asked)[1]}" if asked else "chat", start, end, key={"step": step},
            parent=parent, kind=SpanKind.CLIENT, is_error=fault is not None,
            attributes={**attributes, "error.type": fault, "chordage.lost_claims": len(lost) or None},
            detail=attempts[-1].get("detail") or None if self._contents and fault and attempts else None,
            events=tuple(_failed_requests(attempts, start)),
        )  # fmt: skip
        yield span
        yield from self._lost_spans(lost, span, step=step)

    def _of_model_call(
        self, step: int, reply: Entry | None, body: Mapping[str, Any], asked: str | None, *, attempts: Sequence[Any]
    ) -> dict[str, Any]:
        run = self._run
        provider, model = _model(asked) if asked else (None, None)
        is_repeated = step in self._repeated
        is_open = reply is None and run.ended_at is None
        has_messages = self._contents and reply is not None and "asks" in body
        return {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider,
            "gen_ai.agent.name": run.agent,
            "gen_ai.conversation.id": run.home_thread,
            "gen_ai.request.model": model,
            **(_of_reply(body, attempts) if reply is not None and not is_repeated else {}),
            "chordage.step": step,
            "chordage.journal.id": reply.id if reply else None,
            "chordage.worker": body.get("worker") or (run.claim_worker if is_open else None),
            "chordage.requests": len(attempts) or None,
            "chordage.repeated": True if is_repeated else None,
            "chordage.open": True if is_open else None,
            "gen_ai.output.messages": [_assistant(body)] if has_messages else None,
        }

    def _fault_of_model_call(self, reply: Entry | None, attempts: Sequence[Mapping[str, Any]]) -> str | None:
        run = self._run
        if reply is not None:
            return _fault(attempts) or "_OTHER" if reply.kind is Checkpoint.COMPACTION_FAILED else None
        if run.ended_at is None:
            return None
        return _fault(attempts) or run.code or (run.reason.value if run.reason else "_OTHER")

    def _start_of_model_call(
        self,
        step: int,
        end: datetime,
        attempts: Sequence[Mapping[str, Any]],
        replies: Sequence[Entry],
        lost: Sequence[LostClaim],
    ) -> datetime:
        worked = timedelta(seconds=sum(attempt["seconds"] or 0 for attempt in attempts))
        start = end - worked if attempts or replies else self._before(step, end)
        return min([start, *(claim.lost_at for claim in lost)])

    def _end_of_model_call(self, step: int, replies: Iterable[Entry]) -> datetime:
        """A reply may be recorded together with calls of it that the same process had begun: it came before them."""
        recorded = [entry.at for entry in replies if entry.at]
        if not recorded:
            return self._over
        begun = [call.started_at for call in self._rows.calls if call.step == step + 1 and call.started_at]
        return max(self._run.started_at, min([*recorded, *begun]))

    def _before(self, step: int, end: datetime) -> datetime:
        """The last moment before this step that is recorded."""
        moments = [entry.at for entry in self._rows.entries if entry.step < step and entry.at]
        moments += [call.ended_at for call in self._rows.calls if call.step < step and call.ended_at]
        return max((at for at in moments if at <= end), default=self._run.started_at)

    def _lost_spans(
        self, lost: Iterable[LostClaim], parent: Span, *, step: int, call: Call | None = None
    ) -> Iterator[Span]:
        """From the last sign of life of a worker to the moment at which others saw that it is gone."""
        start, end = parent.start, parent.end
        subject = {"call": call.id, "generation": call.generation} if call else {}
        for number, claim in enumerate(lost, start=1):
            yield self._span(
                SpanPart.LOST, WORKER_LOST, max(start, min(claim.lost_at, end)), max(start, min(claim.noticed_at, end)),
                key={"step": step, "attempt": number, **subject}, parent=parent.span_id, is_error=True,
                attributes={
                    "error.type": WORKER_LOST, "chordage.step": step, "chordage.attempt": number,
                    "chordage.worker": claim.worker, "chordage.call.id": call.id if call else None,
                },
            )  # fmt: skip

    # Tool calls

    def _call_spans(self) -> Iterator[Span]:
        asked: dict[str, list[AskedQuestion]] = defaultdict(list)
        for question in self._rows.questions:
            asked[question.call_id].append(question)
        for call in sorted(self._rows.calls, key=lambda call: (call.step, call.place, call.generation)):
            yield from self._call(call, asked[call.id])

    def _call(self, call: Call, questions: Sequence[AskedQuestion]) -> Iterator[Span]:
        end = call.ended_at or self._over
        moments = [call.started_at, self._rows.child_since.get(call.id), *(each.created_at for each in questions)]
        start = min((at for at in moments if at is not None), default=call.ended_at or self._asked_at(call))
        failed = call.status is CallStatus.FAILED
        stopped = call.status is CallStatus.CANCELLED
        lost = self._lost[0, call.id]
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.ask_id,
            "gen_ai.agent.name": self._run.agent,
            "gen_ai.conversation.id": self._run.home_thread,
            "error.type": call.code or ("_OTHER" if failed else "cancelled") if failed or stopped else None,
            "chordage.step": call.step,
            "chordage.call.id": call.id,
            "chordage.call.generation": call.generation,
            "chordage.call.effect": call.effect.value,
            "chordage.call.status": call.status.value,
            "chordage.call.wake_ups": 1 + call.resends,
            "chordage.call.answered_from": call.answered_from,
            "chordage.lost_claims": len(lost) or None,
            "chordage.worker": call.worker,
            "chordage.open": True if call.ended_at is None else None,
        }
        if self._contents:
            attributes |= {"gen_ai.tool.call.arguments": call.arguments, "gen_ai.tool.call.result": call.content}
        span = self._span(
            SpanPart.CALL, f"execute_tool {call.tool}", start, end, attributes=attributes, is_error=failed,
            key={"step": call.step, "call": call.id, "generation": call.generation},
        )  # fmt: skip
        yield span
        yield from self._lost_spans(lost, span, step=call.step, call=call)
        for question in questions:
            yield self._wait(call, question, span)

    def _asked_at(self, call: Call) -> datetime:
        """When the reply was recorded that asked for it."""
        return max((entry.at for entry in self._by_step[call.step - 1] if entry.at), default=self._run.started_at)

    def _wait(self, call: Call, question: AskedQuestion, parent: Span) -> Span:
        is_open = question.decided_at is None and call.ended_at is None
        attributes: dict[str, Any] = {
            "gen_ai.tool.name": call.tool,
            "gen_ai.tool.call.id": call.ask_id,
            "chordage.step": call.step,
            "chordage.call.id": call.id,
            "chordage.question.id": question.id,
            "chordage.question.why": question.why,
            "chordage.question.status": question.status,
            "chordage.decision.id": question.decision_id,
            "chordage.decision.action": question.action,
            "chordage.open": True if is_open else None,
        }
        if self._contents:
            attributes |= {
                "chordage.question.prompt": question.prompt,
                "chordage.decision.payload": question.payload,
                "chordage.decision.reason": question.reason,
                "chordage.decision.by": question.decided_by,
            }
        return self._span(
            SpanPart.WAIT, f"wait_for_decision {call.tool}", question.created_at,
            min(question.decided_at or parent.end, parent.end), parent=parent.span_id, attributes=attributes,
            key={"step": call.step, "call": question.id, "generation": call.generation},
        )  # fmt: skip


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _seconds(start: datetime | None, end: datetime) -> float | None:
    return None if start is None else round(max(0.0, (end - start).total_seconds()), 6)


def _model(name: str) -> tuple[str | None, str]:
    """The provider and the model of `provider:model`."""
    provider, mark, model = name.partition(":")
    return (provider, model) if mark else (None, name)


def _phase(reply: Entry | None) -> tuple[str | None, str] | None:
    """The operation of the conventions, if there is one, and the first word of its name."""
    match reply.kind if reply else None:
        case Checkpoint.PLAN:
            return "plan", "plan"
        case Checkpoint.COMPACTED | Checkpoint.COMPACTION_FAILED:
            return None, "compact_history"
        case _:
            return None


def _fault(attempts: Sequence[Mapping[str, Any]]) -> str | None:
    return attempts[-1].get("fault") if attempts else None


def _failed_requests(attempts: Sequence[Mapping[str, Any]], start: datetime) -> Iterator[SpanEvent]:
    """At the end of each, as if one had followed at once on the other."""
    at = start
    for number, attempt in enumerate(attempts, start=1):
        at += timedelta(seconds=attempt["seconds"] or 0)
        if attempt.get("fault"):
            provider, model = _model(attempt["model"])
            of_request: dict[str, Any] = {"gen_ai.provider.name": provider, "gen_ai.request.model": model}
            of_request |= {"error.type": str(attempt["fault"]), "chordage.attempt": number}
            of_request["chordage.seconds"] = float(attempt["seconds"] or 0)
            yield SpanEvent(at, "chordage.request_failed", _known(of_request))


def _of_reply(body: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first_text = attempts[-1].get("first_text") if attempts else None
    return {
        "gen_ai.response.model": _model(body["model"])[1] if body.get("model") else None,
        "gen_ai.response.finish_reasons": [_finish(body["stop"])] if body.get("stop") else None,
        "gen_ai.response.time_to_first_chunk": first_text,
        "gen_ai.request.stream": True if first_text is not None else None,
        **_of_usage(Usage(**body["usage"])),
    }


def _of_usage(usage: Usage) -> dict[str, Any]:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens or None,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens or None,
        "chordage.cost_usd": None if usage.cost_nanos is None else usage.cost_nanos / 1_000_000_000,
        "chordage.unpriced_replies": usage.unpriced or None,
    }


def _finish(stop: str) -> str:
    return _FINISH.get(StopReason(stop), stop) if stop in set(StopReason) else stop


def _user(entry: Entry) -> dict[str, Any]:
    return {"role": "user", "parts": [{"type": "text", "content": entry.body.get("text", "")}]}


def _assistant(body: Mapping[str, Any]) -> dict[str, Any]:
    text = [
        {"type": kind, "content": body[name]}
        for kind, name in (("reasoning", "reasoning"), ("text", "text")) if body.get(name)
    ]  # fmt: skip
    calls = [
        {"type": "tool_call", "id": ask["id"], "name": ask["name"], "arguments": ask["arguments"]}
        for ask in body.get("asks", ())
    ]
    return {"role": "assistant", "parts": [*text, *calls], "finish_reason": _finish(body.get("stop") or "end")}
