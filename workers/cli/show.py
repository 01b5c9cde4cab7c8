"""`chordage show`: a turn, a run or a thread, with everything that was said and done; or the result of a call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, assert_never

import click

from chordage.orchestrator.core.approvals import Action, SuspensionStatus
from chordage.orchestrator.core.compaction import Cause
from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.core.prices import cost_text
from chordage.orchestrator.core.text import counted
from chordage.workers.cli.context import command_settings, open_store
from chordage.workers.cli.output import (
    clock,
    expiry,
    fits_without_payload,
    indented,
    json_option,
    moment,
    print_json,
    say,
    say_lines,
    short,
    took,
)

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.core.model import Usage
    from chordage.orchestrator.core.why.reasons import WaitReason
    from chordage.orchestrator.store.database import Store
    from chordage.orchestrator.views import ResultView, TurnView
    from chordage.orchestrator.views.approvals import AnswerView, QuestionView
    from chordage.orchestrator.views.calls import CallView
    from chordage.orchestrator.views.deliveries import DeliveryView
    from chordage.orchestrator.views.runs import AttemptView, CompactionStep, InferenceStep, RunView, Step, WaitStep
    from chordage.orchestrator.views.stepped import SteppedView
    from chordage.orchestrator.views.threads import Remark, ThreadView


@click.command()
@click.argument("some_id", metavar="TURN|RUN|THREAD|CALL")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Messages and replies of a thread."
)
@click.option("--full", is_flag=True, help="Also the whole results that were shortened for the model.")
@json_option
def show(some_id: str, limit: int, full: bool, as_json: bool) -> None:
    """Show what was said, and each step: model calls with their cost, tool calls with status, worker and duration.

    Ids may be shortened if they stay unique, except that of a CALL. CALL prints the full result of one tool call;
    `--json` lists the ids of calls.
    """
    settings = command_settings()
    with open_store(settings) as store:
        parts = _load(store, some_id, limit)
        if "result" not in parts:
            parts["why"] = _why(settings, store, parts)
        results = _full_results(store, parts["run"].run_id) if full and parts.get("run") else []
    if as_json:
        print_json({**parts, "results": results} if full else parts)
    elif "result" in parts:
        say("\n".join(_result_lines([parts["result"]])).lstrip("\n"))
    else:
        say_lines(lines_of(parts))
        say("\n".join(_result_lines(results)), nl=bool(results))


def _load(store: Store, some_id: str, limit: int) -> dict[str, Any]:
    """The parts of what is shown, by their names in JSON."""
    from chordage.orchestrator import views

    call_id = some_id.removeprefix("call:")
    if call_id != some_id or views.is_call(store, call_id):
        return {"kind": "call", "result": _whole_result(store, call_id)}
    kind, full_id = views.identify(store, some_id)
    if kind is views.IdKind.THREAD:
        history = views.history(store, full_id, limit=limit)
        return {"kind": kind, "thread": views.thread(store, full_id), "history": history}
    if kind is views.IdKind.RUN:
        run = views.run(store, full_id)
        turn = views.turn(store, run.turn_id)
        parts = {"kind": kind, "turn": turn, "run": run}
    else:
        turn = views.turn(store, full_id)
        parts = {"kind": kind, "turn": turn, "run": views.run(store, turn.run_id) if turn.run_id else None}
    delivery = views.delivery_of(store, turn.turn_id)
    return {**parts, "driven": views.driven(store, turn.turn_id), "delivery": delivery}


def _why(settings: Settings, store: Store, parts: Mapping[str, Any]) -> WaitReason | None:
    """Why it waits. None: it does not."""
    from chordage.orchestrator import views
    from chordage.orchestrator.core.status import TurnStatus
    from chordage.workers.cli.why import sources_of

    if "turn" in parts and parts["turn"].status is TurnStatus.DONE:
        return None
    some_id = parts["turn"].turn_id if "turn" in parts else parts["thread"].thread_id
    return views.why(sources_of(settings, store), some_id).reason


def _whole_result(store: Store, call_id: str) -> ResultView:
    from chordage.orchestrator import views

    parts = list(views.result_parts(store, call_id))
    return replace(parts[0], text="".join(part.text for part in parts), next_offset=None)


def _full_results(store: Store, run_id: str) -> list[ResultView]:
    from chordage.orchestrator import views

    return [_whole_result(store, call_id) for call_id in views.shortened_results(store, run_id)]


def _result_lines(results: Iterable[ResultView]) -> Iterator[str]:
    for result in results:
        yield ""
        yield f"result of {result.tool}, call {result.call_id} ({result.total} characters):"
        yield result.text


# Turns and threads


def lines_of(parts: Mapping[str, Any]) -> Iterator[str]:
    if "thread" in parts:
        yield from _thread(parts["thread"])
        yield from _why_lines(parts)
        for remark in parts["history"]:
            yield ""
            yield from _remark(remark)
        return
    turn: TurnView = parts["turn"]
    yield from _turn(turn)
    yield from _why_lines(parts)
    yield from _message(turn.sender.value, turn.text)
    if parts["run"] is not None:
        yield from run_lines(parts["run"])
    if parts.get("driven") is not None:
        yield from stepped_lines(parts["driven"])
    if parts.get("delivery") is not None:
        yield _delivery(parts["delivery"])
    if turn.answer:
        yield from _message(turn.agent, turn.answer)


def _why_lines(parts: Mapping[str, Any]) -> Iterator[str]:
    from chordage.workers.cli.why import why_line

    if parts.get("why") is not None:
        yield _pair("why", why_line(parts["why"]))


def _pair(name: str, *values: object) -> str:
    return f"{name:<8}  {', '.join(str(value) for value in values if value not in {None, ''})}"


def _turn(turn: TurnView) -> Iterator[str]:
    yield _pair("turn", turn.turn_id)
    yield _pair("status", turn.fate)
    yield _pair("thread", turn.thread_id)
    yield _pair("agent", turn.agent, turn.strategy, f"group {turn.group.value}")
    if turn.parent_run is not None:
        yield _pair("asked by", f"run {turn.parent_run}", turn.path)
    yield _pair("from", turn.sender.value, turn.origin.value, turn.channel)
    yield _pair("came", moment(turn.queued_at))
    if turn.not_before is not None:
        yield _pair("not till", moment(turn.not_before))
    if turn.deadline is not None:
        yield _pair("deadline", moment(turn.deadline))
    if turn.started_at is not None:
        ended = turn.done_at and f"took {_between(turn.started_at, turn.done_at)}"
        yield _pair("started", f"after {_between(turn.queued_at, turn.started_at)}", ended)
    if turn.meta:
        yield _pair("meta", short(turn.meta))


def _message(name: str, text: str) -> Iterator[str]:
    yield ""
    yield f"{name}:"
    yield from indented(text)


def _delivery(delivery: DeliveryView) -> str:
    tried = counted(delivery.attempts, "attempt")
    match delivery.status:
        case DeliveryStatus.SENT:
            state = f"sent after {tried}" + (f", {moment(delivery.sent_at)}" if delivery.sent_at else "")
        case DeliveryStatus.DEAD:
            again = f"`chordage deliveries retry {delivery.id}` sends it again"
            state = f"given up after {tried}: {delivery.error}; {again}"
        case DeliveryStatus.PENDING:
            state = f"pending, {tried}" + (f", the last: {delivery.error}" if delivery.error else "")
    return f"  -  delivery {delivery.id} to {delivery.to}: {state}"


def _thread(thread: ThreadView) -> Iterator[str]:
    yield _pair("thread", thread.thread_id)
    yield _pair("agent", thread.agent)
    yield _pair("turns", f"{thread.turns} came", f"{thread.queued} queued")
    if thread.open_run is not None and thread.open_run_status is not None:
        yield _pair("run", thread.open_run, thread.open_run_status.value)
    yield _pair("active", moment(thread.last_activity))


def _remark(remark: Remark) -> Iterator[str]:
    yield f"{remark.name} ({moment(remark.at)}):"
    yield from indented(remark.text)
    for call in remark.calls:
        yield from _call(call, "  ")


def _between(start: datetime, end: datetime) -> str:
    return took((end - start).total_seconds())


# The steps of a run


def run_lines(run: RunView) -> Iterator[str]:
    yield ""
    why = f" ({run.reason.value})" if run.reason else ""
    ended = f", took {_between(run.started_at, run.ended_at)}" if run.ended_at else ""
    own = "" if run.own_usage == run.usage else f" (without its sub-agents {_usage(run.own_usage)})"
    used = f"{_usage(run.usage)}{own}"
    yield f"run {run.run_id}: {run.status.value}{why}, {used}, began {clock(run.started_at)}{ended}"
    if run.fork_of is not None:
        yield f"  a fork of run {run.fork_of}"
    for step in run.steps:
        yield from _step(step)


def _step(step: Step) -> Iterator[str]:
    from chordage.orchestrator.views import runs

    number, at = step.number, f", {clock(step.at)}" if step.at else ""
    match step:
        case runs.InferenceStep():
            yield from _inference(step, at)
        case runs.ToolRound():
            yield f"  {number}  tools{_recorded(step)}"
            for call in step.calls:
                yield from _call(call, "     ")
        case runs.ReplayStep():
            yield f"  {number}  replay{_recorded(step)}"
            yield from (f"     {_state(call)}" for call in step.calls)
        case runs.WaitStep():
            yield f"  {number}  wait   {_wait(step, at)}"
        case runs.SteeredStep():
            yield f"  {number}  steered  by {step.sender}, turn {step.turn_id}{at}"
            yield from indented(step.text, "     ")
        case runs.PushedStep():
            anew = ", in place of the whole history" if step.replaces else ""
            yield f"  {number}  pushed  by its consumer, {counted(len(step.messages), 'message')}{anew}{at}"
            yield from (f"     {line}" for line in _message_lines(step.messages))
        case runs.ConsumerSteerStep():
            yield f"  {number}  steered  by its consumer{at}"
            for text in step.texts:
                yield from indented(text, "     ")
        case runs.CompactionStep():
            yield from _compaction(step, at)
        case runs.Interruption():
            why = ": ".join(word for word in (step.reason.value, step.code, step.detail) if word)
            yield f"  {number}  interrupted  {why}{at}"
        case _:
            assert_never(step)


def _inference(step: InferenceStep, at: str) -> Iterator[str]:
    failed = [_failed_attempt(attempt) for attempt in step.attempts if attempt.fault]
    if step.model is None:
        worker = f", on {step.worker}" if step.worker else ""
        yield f"  {step.number}  model  {step.status.value.replace('_', ' ')}{worker}"
        yield from failed
        return
    if step.plan is not None:
        what = "plan "
        not_offered = f", {step.plan.refused} of them not offered" if step.plan.refused else ""
        reply = f"ends: {step.plan.ends}" if step.plan.ends else f"{counted(step.asks, 'command')}{not_offered}"
    else:
        what = "model"
        asks = f", asks for {counted(step.asks, 'call')}" if step.asks else ""
        reply = f"stop {step.stop.value}{asks}" if step.stop else ""
    held = "" if step.is_history else ", held, not appended"
    cost = f"{took(step.seconds or 0)}, {_usage(step.usage)}"
    cost = "repeated from the run that this is a fork of" if step.is_repeated else cost
    yield f"  {step.number}  {what}  {step.model}, {cost}, {reply}{held}{at}"
    yield from failed
    if step.plan is not None:
        yield from (f"     {_plan_note(note)}" for note in step.plan.decision["notes"])
    elif step.text and (step.asks or step.refused or held):
        yield from indented(step.text, "     ")
    if step.refused:
        yield from indented(f"refused as output: {step.refused}", "     ")


def _plan_note(note: dict[str, Any]) -> str:
    """What was repaired, dropped or skipped when the plan was read."""
    place = "plan" if note["place"] is None else f"command {note['place'] + 1}"
    return f"{place}: {note['kind'].replace('_', ' ')}{': ' if note['detail'] else ''}{note['detail']}"


def _compaction(step: CompactionStep, at: str) -> Iterator[str]:
    result = f"{counted(step.entries, 'entry', 'entries')} summed up" if step.why_not is None else "no summary"
    cause = ", on request" if step.cause is Cause.REQUEST else ""
    yield f"  {step.number}  compact  {step.model}, {took(step.seconds)}, {_usage(step.usage)}, {result}{cause}{at}"
    yield from (_failed_attempt(attempt) for attempt in step.attempts if attempt.fault)
    yield from indented(f"the history stays whole: {step.why_not}" if step.why_not else step.summary or "", "     ")


def _failed_attempt(attempt: AttemptView) -> str:
    fault = attempt.fault.value if attempt.fault else ""
    return f"     tried {attempt.model}: {fault} after {took(attempt.seconds)}: {attempt.detail}"


def _wait(step: WaitStep, at: str) -> str:
    calls = f"for {counted(len(step.calls), 'call')}: {', '.join(call.tool for call in step.calls)}"
    if step.at is not None and step.status.value == "open":
        return f"{calls}, since {moment(step.at)}"
    waited = f", {_between(step.at, step.until)}" if step.at and step.until else ""
    return f"{calls}{waited}{at}"


def _recorded(step: Step) -> str:
    return "  open" if step.status.value == "open" else f"  {clock(step.at)}" if step.at else ""


def _usage(usage: Usage) -> str:
    counts = ((usage.cached_tokens, "cached"), (usage.cache_write_tokens, "written to the cache"))
    cache = ", ".join(f"{count} {what}" for count, what in counts if count)
    tokens = f"{usage.input_tokens}{f' ({cache})' if cache else ''} tokens in, {usage.output_tokens} out"
    return f"{tokens}, {cost_text(usage)}"


# Tool calls and the questions about them


def _call(call: CallView, indent: str) -> Iterator[str]:
    question = call.question
    # The start of an unsafe call is that before its question, so that its duration includes the wait.
    waited = question is not None and call.started_at is not None and call.started_at < question.created_at
    seconds = "" if call.seconds is None else f", {took(call.seconds)}{' with its wait' if waited else ''}"
    began = f", {clock(call.started_at)}" if call.started_at else ""
    worker = f", {call.worker}" if call.worker else ""
    again = f", sent {call.wake_ups} times" if call.wake_ups > 1 else ""
    placed = f", {call.placed}" if call.placed else ""
    yield f"{indent}{_state(call)}{seconds}{began}{worker}{placed}{again}"
    if call.answered_from is not None:
        yield f"{indent}  record it did not run: the result is that of call {call.answered_from}"
    yield f"{indent}  asked  {short(call.arguments)}"
    if (child := call.child) is not None:
        run = f", run {child.run_id}" if child.run_id else ""
        yield f"{indent}  agent  {child.agent}: {child.outcome}, turn {child.turn_id}{run}"
    elif question is not None:
        yield from _question(question, f"{indent}  ")
    if call.content is not None:
        yield f"{indent}  said   {short(call.content)}"
    elif call.progress:
        yield f"{indent}  doing  {short(call.progress)}"


def _state(call: CallView) -> str:
    return f"{call.tool}  {call.status.value}" + (f" ({call.code})" if call.code else "")


def _question(question: QuestionView, indent: str) -> Iterator[str]:
    from chordage.orchestrator.views import answers

    is_open = question.status is SuspensionStatus.OPEN
    why, at = question.why.value, moment(question.created_at)
    yield f"{indent}waits  {why}, since {at}{expiry(question)}" if is_open else f"{indent}waited {why}, {at}"
    yield f"{indent}       {short(question.prompt)}"
    if question.answer is not None:
        yield from _answer(question.answer, indent)
    elif is_open:
        plain = "or " if fits_without_payload(question.schema) else ""
        payload = f", {plain}with --payload {answers(question.schema)}" if question.schema is not None else ""
        yield f"{indent}       chordage approve {question.id}{payload}"
    else:
        yield f"{indent}       {question.status.value}, without an answer"


def _answer(answer: AnswerView, indent: str) -> Iterator[str]:
    payload = f": {short(answer.payload)}" if answer.action is Action.RESUME and answer.payload is not None else ""
    pending = "" if answer.applied_at else ", not taken up yet"
    yield f"{indent}got    {answer.action.verdict} by {answer.who}, {moment(answer.created_at)}{pending}{payload}"
    if answer.edited_args is not None:
        yield f"{indent}       with arguments {short(answer.edited_args)}"
    if answer.reason:
        yield f"{indent}       reason: {short(answer.reason)}"


# A stepped turn and its consumer


def stepped_lines(view: SteppedView) -> Iterator[str]:
    limit = "" if view.max_iterations is None else f" of {view.max_iterations}"
    until = f", until {moment(view.held_until)}" if view.held_until else ""
    answered = f"{view.iteration}{limit} requests answered"
    yield ""
    yield f"driven by its consumer: {view.standing.value}, drive {view.drive.value}, {answered}, rev {view.rev}{until}"
    for name, value in (("params", view.params), ("options", view.options), ("error", view.error)):
        if value:
            yield f"  {name:<8}{short(value)}"
    if view.replaces:
        yield "  pending in place of the whole history:"
    yield from (f"  pending {line}" for line in _message_lines(view.pending))
    yield from (f"  pending behind the results, {short(text)}" for text in view.steers)
    yield from (f"  call    {ask_id}: {_verdict(verdict)}" for ask_id, verdict in view.verdicts.items())
    if (plan := view.plan) is not None:
        commands = ", ".join(str(command["tool_name"]) for command in plan.commands)
        yield f"  plan    round {plan.round}, {f'ends: {plan.ends}' if plan.ends else commands}"


def _message_lines(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        match message:
            case {"role": "tool", "ask_id": ask_id, "content": content}:
                failed = " (failed)" if message.get("is_error") else ""
                yield f"result of {ask_id}{failed}: {short(content)}"
            case {"role": "assistant"}:
                asks = ", ".join(ask["name"] for ask in message.get("asks") or ())
                which = "the held reply" if message.get("linked") else "assistant"
                yield f"{which}: {short(message['text'])}{f' [asks for {asks}]' if asks else ''}"
            case _:
                yield f"{message['role']}: {short(message['text'])}"


def _verdict(verdict: Mapping[str, Any]) -> str:
    match verdict:
        case {"kind": "result", "content": content}:
            return f"has a result of its consumer's: {short(content)}"
        case {"kind": "deny"}:
            return f"denied{': ' + short(verdict['reason']) if verdict.get('reason') else ''}"
        case _:
            return "held back"
