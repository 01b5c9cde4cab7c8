"""A round of tool calls: checked, opened, sent, and recorded by its checkpoint.

Calls are checked before the transaction begins, because plugins are asked; their rows are written in the transaction
that records the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chordage.orchestrator.core.agent import AgentSpec, Effect, ToolMode
from chordage.orchestrator.core.client_tools import WITH_CALLER
from chordage.orchestrator.core.intents import CallHere, CallTools, advance
from chordage.orchestrator.core.model import Reply, StopReason, ToolAsk
from chordage.orchestrator.core.moves import RunTools
from chordage.orchestrator.core.phases import ShownCall
from chordage.orchestrator.core.plugin_state import STATE_CONFLICT
from chordage.orchestrator.core.reasons import Ending, too_many_calls
from chordage.orchestrator.core.records import Answer, Call, NewCall, Run
from chordage.orchestrator.core.rounds import generations, spread
from chordage.orchestrator.core.status import SETTLED_CALL, CallStatus
from chordage.orchestrator.core.transcript import NOT_RUN
from chordage.orchestrator.core.verdicts import Block, SupplyResult, SuspendCall
from chordage.orchestrator.run import client_tools, forking, placing, plugins, subagents, waiting
from chordage.orchestrator.run.model_request import ModelRequest, ReplyOutcome, invalid_arguments
from chordage.orchestrator.run.placing import UnderWay
from chordage.orchestrator.run.plugins import PluginSession
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import calls, runs

Asks = Mapping[int, ToolAsk]  # by the place in the round
_ON_RECORD = frozenset(effect for effect in Effect if effect.starts_on_record)


# Checking: what may run.


def check_calls(
    rt: Runtime, request: ModelRequest, asks: Asks, beyond_limit: Collection[int] = ()
) -> tuple[list[NewCall], list[PluginSession]]:
    """Each call in the model's order: runnable, suspended, or settled with a result that tells the model why."""

    def settled(call: NewCall) -> NewCall:
        return not_run(call) if call.place in beyond_limit else call

    if request.claim.run.fork_of is None:
        return check_some(rt, request, asks, settled)
    asked = [settled(call) for call in new_calls(rt, request, asks)]
    answers = forking.answer_calls(rt, request.run, request.agent, asked)
    known = {call.place: answers.get(call.id, call) for call in asked}
    return check_some(rt, request, asks, lambda call: known[call.place])


def check_some(
    rt: Runtime, request: ModelRequest, asks: Asks, settle: Callable[[NewCall], NewCall | None]
) -> tuple[list[NewCall], list[PluginSession]]:
    """`settle` returns the call as it was settled before, as it is where it has to be checked, or None to omit it."""
    asked: list[NewCall] = []
    sessions: list[PluginSession] = []
    for new, ask in zip(new_calls(rt, request, asks), asks.values(), strict=True):
        call = settle(new)
        if call is None:
            continue
        session = request.session and request.session.of_call(call.id, request.step + 1)
        asked.append(call if call.status is not CallStatus.NEW else _checked(rt, request, session, call, ask))
        sessions += [session] if session is not None and session.notes else []
    if request.agent.agents:
        asked = subagents.suspend_for_children(rt, request.run, request.agent, asked)
    if request.client_tools:
        asked = client_tools.one_by_one(request.agent, asked)
    return asked, sessions


def outcome_of(asks: Asks, checked: tuple[list[NewCall], list[PluginSession]]) -> ReplyOutcome:
    """For calls that a consumer lets run, where no reply is recorded with them."""
    reply = Reply(text="", asks=tuple(asks.values()), stop=StopReason.TOOL_USE, model="")
    asked, sessions = checked
    return ReplyOutcome(reply=reply, move=RunTools(), asked=asked, call_sessions=sessions)


def beyond_the_limit(rt: Runtime, run: Run, agent: AgentSpec, asks: Asks) -> tuple[frozenset[int], Ending | None]:
    """The places of the calls that exceed the limit of the run, and how it ends after the others."""
    limit = agent.limits.max_tool_calls
    if limit is None or not asks:
        return frozenset(), None
    with rt.store.read() as tx:
        before = calls.count_requested(tx, run.id)
    total = before + len(asks)
    if total <= limit:
        return frozenset(), None
    return frozenset(sorted(asks)[max(0, limit - before) :]), too_many_calls(total, limit)


def not_run(call: NewCall) -> NewCall:
    return replace(call, status=CallStatus.CANCELLED, code="not_run", content=NOT_RUN)


def new_calls(rt: Runtime, request: ModelRequest, asks: Asks) -> Iterator[NewCall]:
    used = request.generations
    used = generations(request.run.id, request.known) if used is None else used.copy()
    for place, ask in asks.items():
        used[ask.id] += 1
        spec = request.specs.get(ask.name)
        yield NewCall(
            id=rt.new_id(), place=place, ask_id=ask.id, generation=used[ask.id], tool=ask.name,
            arguments=ask.arguments or {}, status=CallStatus.NEW,
            effect=spec.effect if spec else Effect.PURE,  # an unknown tool never runs
        )  # fmt: skip


def shown(call: NewCall) -> ShownCall:
    return ShownCall(id=call.id, ask_id=call.ask_id, tool=call.tool, arguments=call.arguments, effect=call.effect)


def _checked(rt: Runtime, request: ModelRequest, session: PluginSession | None, call: NewCall, ask: ToolAsk) -> NewCall:
    """The order is a promise: blocked, supplied, unknown, out of scope, bad arguments, suspended, runnable. So bad
    arguments are refused before a person is asked.
    """
    verdict = None
    code = None
    if session is not None:
        gate = session.before_tool(shown(call))
        call = replace(call, arguments=gate.arguments(call.arguments))
        verdict, code = gate.verdict, gate.code
    match verdict:
        case Block(reason=reason):
            settled = _refused(call, code or "blocked", reason)
        case SupplyResult(content=content):
            settled = replace(call, status=CallStatus.SUCCEEDED, content=content)
        case _:
            refusal = _refusal(rt, request, ask, call.arguments)
            brought = request.client_tools.get(call.tool)
            if refusal is None and isinstance(verdict, SuspendCall):
                return replace(
                    call, status=CallStatus.SUSPENDED, question=verdict.question, suspension_id=rt.new_id(),
                    placed=None if brought is None else WITH_CALLER,
                )  # fmt: skip
            if refusal is None:
                return call if brought is None else client_tools.suspended(call, brought, rt.new_id())
            settled = _refused(call, *refusal)
    if session is None:
        return settled
    return replace(settled, content=session.after_tool(shown(call), settled.content or "", settled.code, None))


def _refusal(rt: Runtime, request: ModelRequest, ask: ToolAsk, arguments: dict[str, Any]) -> tuple[str, str] | None:
    """Why a call cannot run, in words for the model."""
    if ask.name in request.withheld or ask.name not in request.specs:
        offered = ", ".join(sorted(request.specs)) or "none"
        if ask.name in request.withheld:
            return "out_of_scope", f"The tool {ask.name!r} may not be used here. Tools you may use: {offered}."
        return "unknown_tool", f"There is no tool {ask.name!r}. Tools you may use: {offered}."
    if ask.arguments is None:
        return "invalid_arguments", f"The arguments are not a JSON object: {ask.raw[:200]}"
    brought = request.client_tools.get(ask.name)
    if brought is None:
        wrong = invalid_arguments(rt, request.agent, ask.name, arguments)
    else:
        wrong = client_tools.invalid(brought, arguments)
    return ("invalid_arguments", wrong) if wrong else None


def _refused(call: NewCall, code: str, content: str) -> NewCall:
    return replace(
        call, status=CallStatus.FAILED, code=code, content=content, question=None, suspension_id=None, parked=False
    )


# Opening: rows, and the messages that carry the calls out.


def open_calls(unit: Unit, request: ModelRequest, step: int, outcome: ReplyOutcome) -> list[NewCall]:
    """Write the calls, their questions, the children they ask for and what plugins noted."""
    run, agent = request.run, request.agent
    asked = _in_line(agent, _with_notes(unit, request, outcome))
    if outcome.placed is not None:
        why = outcome.placed.why
        asked = [call if call.placed else replace(call, placed=why.get(call.id)) for call in asked]
    calls.insert(unit.tx, run, step, asked, now=unit.now, lease_until=unit.lease())
    suspended = [call for call in asked if call.question is not None]
    if suspended or any(call.parked for call in asked):
        runs.mark_suspended(unit.tx, run.id)
    for call in suspended:
        waiting.ask_before_start(unit, run, step, call)
    if agent.agents:
        subagents.start_new_children(unit, run, agent, asked)
    return asked


def _with_notes(unit: Unit, request: ModelRequest, outcome: ReplyOutcome) -> list[NewCall]:
    """What plugins noted about a call is stored with it; a conflict costs that call its run, and no other. Their notes
    about the reply are stored first, so that the later ones win.
    """
    if request.session is not None:
        plugins.store_notes_or_log(unit.tx, request.session)
    conflicts = {
        session.call_id: conflict
        for session in outcome.call_sessions
        if (conflict := plugins.store_notes(unit.tx, session)) is not None
    }
    return [
        _refused(call, STATE_CONFLICT, conflicts[call.id]) if call.id in conflicts else call for call in outcome.asked
    ]


def _in_line(agent: AgentSpec, asked: list[NewCall]) -> list[NewCall]:
    """In sequence, calls behind one that waits are parked; and a sub-agent is not asked before its turn."""
    if agent.tool_mode is not ToolMode.SEQUENTIAL:
        return asked
    waits = (
        place
        for place, call in enumerate(asked)
        if call.question is not None or call.placed == WITH_CALLER or subagents.is_new_ask(agent, call)
    )
    first = next(waits, len(asked))
    return [replace(call, parked=place >= first and call.status is CallStatus.NEW) for place, call in enumerate(asked)]


def close_calls(unit: Unit, request: ModelRequest, reply: Reply) -> None:
    """A reply that was cut, refused or came too late may hold half a call: closed as not run, never carried out."""
    asked = [not_run(call) for call in new_calls(unit.rt, request, dict(enumerate(reply.asks)))]
    calls.insert(unit.tx, request.run, request.step + 1, asked, now=unit.now, lease_until=unit.now)


def send_runnable(unit: Unit, run: Run, agent: AgentSpec, step: int, asked: Sequence[NewCall]) -> None:
    send(unit, run, agent, step, [call for call in asked if call.status is CallStatus.NEW and not call.parked])


def is_settled_here(asked: Sequence[NewCall], outcome: ReplyOutcome, under_way: UnderWay | None) -> bool:
    """Whether the round is recorded with all its outcomes, and the run simply continues."""
    if outcome.placed is None or outcome.keeps is not None or under_way is not None:
        return False
    return all(call.status in SETTLED_CALL for call in asked)


def answers(run: Run, step: int, asked: Sequence[NewCall]) -> list[Answer]:
    """Settled calls, as they will be read."""
    return [
        Answer(
            id=call.id, run_id=run.id, step=step, place=call.place, ask_id=call.ask_id, status=call.status,
            code=call.code, content=call.content, replayed_at=None,
        )
        for call in asked
    ]  # fmt: skip


def send_placed(
    unit: Unit,
    run: Run,
    agent: AgentSpec,
    step: int,
    asked: Sequence[NewCall],
    outcome: ReplyOutcome,
    under_way: UnderWay | None,
) -> None:
    """Send what leaves, then carry out what stays. Without any, the run continues at once."""
    if outcome.placed is None:
        send_runnable(unit, run, agent, step, asked)
        return
    runnable = [call.id for call in asked if call.status is CallStatus.NEW]
    if not runnable and under_way is None:
        unit.follow(advance(run))
        return
    about: dict[str, Any] = {
        "run_id": run.id, "step": step, "group": run.group, "of": run.subject,
        "tools": {call.id: call.tool for call in asked},
    }  # fmt: skip
    here = tuple(call_id for call_id in runnable if call_id in outcome.placed.here)
    stays = CallHere(call_ids=here, at_once=agent.concurrency, **about)
    if under_way is not None:
        unit.follow(*placing.go_on(stays, under_way, here))
        return
    if batches := tuple(_only(set(runnable), outcome.placed.batches)):
        unit.follow(CallTools(batches=batches, claims=_claims(run, asked), **about))
    if here:
        unit.follow(stays)


def _only(ids: Collection[str], batches: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    for batch in batches:
        if some := tuple(call for call in batch if call in ids):
            yield some


def send(unit: Unit, run: Run, agent: AgentSpec, step: int, runnable: Sequence[NewCall | Call]) -> None:
    """Have these calls carried out, as many at once as the agent allows; without any, the run continues at once."""
    if not runnable:
        unit.follow(advance(run))
        return
    at_once = 1 if agent.tool_mode is ToolMode.SEQUENTIAL else agent.concurrency
    unit.follow(
        CallTools(
            run_id=run.id, step=step, batches=spread([call.id for call in runnable], at_once), group=run.group,
            of=run.subject, tools={call.id: call.tool for call in runnable}, claims=_claims(run, runnable),
        )
    )  # fmt: skip


def _claims(run: Run, runnable: Iterable[NewCall | Call]) -> dict[str, str]:
    return {call.id: run.agent for call in runnable if call.effect in _ON_RECORD}
