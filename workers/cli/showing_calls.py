"""Tool calls in lines for people: what was asked of a tool, what came of it, and what somebody decided about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from chordage.orchestrator.core.approvals import Action, OnExpiry, SuspensionStatus
from chordage.orchestrator.views import answers
from chordage.orchestrator.views.approvals import AnswerView, QuestionView
from chordage.orchestrator.views.calls import CallView, ChildView
from chordage.workers.cli.output import ago
from chordage.workers.cli.output import span as long_span

if TYPE_CHECKING:
    from chordage.orchestrator.views import OpenQuestion

WIDTH = 200  # characters of arguments and results in one line

_THEN = {
    OnExpiry.DENY: "then it is denied",
    OnExpiry.CANCEL_RUN: "then its run is cancelled",
    OnExpiry.ESCALATE: "then it is overdue",
    OnExpiry.DEFAULT: "then its default is taken",
}


def call_lines(call: CallView, indent: str) -> Iterator[str]:
    took = "" if call.seconds is None else f", {span(call.seconds)}{' with its wait' if _waited_in(call) else ''}"
    began = f", {clock(call.started_at)}" if call.started_at else ""
    worker = f", {call.worker}" if call.worker else ""
    again = f", woken {call.wake_ups} times" if call.wake_ups > 1 else ""
    yield f"{indent}{state(call)}{took}{began}{worker}{again}"
    yield f"{indent}  asked  {short(call.arguments)}"
    if call.child is not None:
        yield from _child(call.child, f"{indent}  ")
    elif call.question is not None:
        yield from _question(call.question, f"{indent}  ")
    if call.content is not None:
        yield f"{indent}  said   {short(call.content)}"
    elif call.progress:
        yield f"{indent}  doing  {short(call.progress)}"


def _waited_in(call: CallView) -> bool:
    """The beginning that is stored of an unsafe call is the first one, before its question; of others the last one."""
    return call.question is not None and call.started_at is not None and call.started_at < call.question.created_at


def state(call: CallView) -> str:
    status = f"{call.status.value} ({call.code})" if call.code else call.status.value
    return f"{call.tool}  {status}"


def _child(child: ChildView, indent: str) -> Iterator[str]:
    how = (child.disposition or child.status).value
    yield f"{indent}agent  {child.agent}: {how}, turn {child.turn_id}" + (
        f", run {child.run_id}" if child.run_id else ""
    )


def _question(question: QuestionView, indent: str) -> Iterator[str]:
    is_open = question.status is SuspensionStatus.OPEN
    when = moment(question.created_at) + (expiry(question) if is_open else "")
    yield (
        f"{indent}waits  {question.why.value}, since {when}"
        if is_open
        else f"{indent}waited {question.why.value}, {when}"
    )
    yield f"{indent}       {short(question.prompt)}"
    if question.answer is not None:
        yield from _answer(question.answer, indent)
    elif is_open:
        plain = "or " if takes_a_plain_yes(question.schema) else ""
        wants = f", {plain}with --payload {answers(question.schema)}" if question.schema is not None else ""
        yield f"{indent}       chordage approve {question.id}{wants}"
    else:
        yield f"{indent}       {question.status.value}, without an answer"


def takes_a_plain_yes(schema: dict[str, Any] | None) -> bool:
    """`chordage approve ID` is enough, without a payload."""
    from chordage.orchestrator.gateways.schemas import complaint_about

    return schema is None or complaint_about(True, schema) is None or complaint_about(None, schema) is None


def _answer(answer: AnswerView, indent: str) -> Iterator[str]:
    done = "denied" if answer.action is Action.CANCEL else "approved"
    said = f": {short(answer.payload)}" if answer.action is Action.RESUME and answer.payload is not None else ""
    taken_up = "" if answer.applied_at else ", not taken up yet"
    yield f"{indent}got    {done} by {answer.source}, {moment(answer.created_at)}{taken_up}{said}"
    if answer.edited_args is not None:
        yield f"{indent}       with arguments {short(answer.edited_args)}"
    if answer.reason:
        yield f"{indent}       reason: {short(answer.reason)}"


def expiry(question: QuestionView | OpenQuestion) -> str:
    if question.overdue:
        return ", overdue"
    if question.expires_at is None:
        return ""
    return f", expires {ago(question.expires_at)} ({_THEN[question.on_expiry]})"


def indented(text: str, indent: str = "  ") -> Iterator[str]:
    return (f"{indent}{line}".rstrip() for line in text.splitlines())


def span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else long_span(seconds)


def clock(at: datetime) -> str:
    return f"{at.astimezone():%H:%M:%S}"


def moment(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S} ({ago(at)})"


def short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else f"{line[:WIDTH]}… ({len(line)} characters)"
