"""The calls that a reply asks for: each goes through its gate, and those that are left get their rows.

The gate is passed before the transaction begins, for plugins are heard in it; the rows are written in the one that
records the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chordage.orchestrator.core.agent import AgentSpec, Effect, ToolMode
from chordage.orchestrator.core.approvals import Question
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.model import Reply, StopReason, ToolAsk
from chordage.orchestrator.core.moves import RunTools
from chordage.orchestrator.core.plugin_state import STATE_CONFLICT
from chordage.orchestrator.core.reasons import Ending, too_many_calls
from chordage.orchestrator.core.records import NewCall, Run
from chordage.orchestrator.core.rounds import generations
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.transcript import NOT_RUN
from chordage.orchestrator.core.verdicts import Block, SupplyResult, SuspendCall
from chordage.orchestrator.run import model_request, plugins, subagents, waiting
from chordage.orchestrator.run.model_request import ModelRequest, ReplyOutcome
from chordage.orchestrator.run.plugins import PluginSession
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import calls, runs
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.runs import RunClaim


def check_calls(
    rt: Runtime, at: RunClaim, scene: ModelRequest, asks: Mapping[int, ToolAsk], beyond: Collection[int] = ()
) -> tuple[list[NewCall], list[PluginSession]]:
    """Each call in the model's order: runnable, put aside, or settled with a result that tells the model why.
    `beyond`: the places of those that are not run, because they are more than the run may ask for.
    """
    asked: list[NewCall] = []
    hearings: list[PluginSession] = []
    for call, ask in zip(new_calls(rt, at.run, scene, asks), asks.values(), strict=True):
        heard = scene.hearing.of_call(call.id, at.step + 1)
        asked.append(not_run(call) if call.place in beyond else _judged(rt, scene, heard, call, ask))
        hearings += [heard] if heard.notes else []
    return asked, hearings


def beyond_the_limit(
    rt: Runtime, run: Run, agent: AgentSpec, asks: Mapping[int, ToolAsk]
) -> tuple[frozenset[int], Ending | None]:
    """The places of the calls that are more than the run may ask for, and how it ends behind the others."""
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


def pass_some(
    rt: Runtime,
    at: RunClaim,
    scene: ModelRequest,
    asks: Mapping[int, ToolAsk],
    said: Callable[[NewCall], NewCall | None],
) -> ReplyOutcome:
    """Those of the asks that are to be opened. `said`: the call as its consumer has settled it; as it is, and it goes
    through its gate; None, and it is left out.
    """
    asked: list[NewCall] = []
    hearings: list[PluginSession] = []
    for call, ask in zip(new_calls(rt, at.run, scene, asks), asks.values(), strict=True):
        given = said(call)
        if given is None:
            continue
        heard = scene.hearing.of_call(call.id, at.step + 1)
        asked.append(given if given.status is not CallStatus.NEW else _judged(rt, scene, heard, call, ask))
        hearings += [heard] if heard.notes else []
    asked = subagents.suspend_for_children(rt, at.run, scene.agent, asked)
    reply = Reply(text="", asks=tuple(asks.values()), stop=StopReason.TOOL_USE, model="")
    return ReplyOutcome(reply=reply, move=RunTools(), asked=asked, hearings=hearings)


def open_calls(
    tx: Tx, rt: Runtime, run: Run, scene: ModelRequest, step: int, judged: ReplyOutcome
) -> tuple[list[NewCall], list[Intent]]:
    """Their rows, their questions, the sub-agents they ask, and what plugins noted."""
    now = rt.now()
    asked = _in_line(scene.agent, _noted(tx, scene, judged))
    calls.open_round(tx, run, step, asked, now=now, lease_until=rt.leases.until(now))
    _ask_about(tx, rt, run, step, asked)
    return asked, subagents.begin_round(tx, rt, run, scene.agent, asked)


def new_calls(rt: Runtime, run: Run, scene: ModelRequest, asks: Mapping[int, ToolAsk]) -> Iterator[NewCall]:
    lives = generations(run.id, scene.known) if scene.lives is None else scene.lives.copy()
    for place, ask in asks.items():
        lives[ask.id] += 1
        spec = scene.specs.get(ask.name)
        yield NewCall(
            id=rt.new_id(), place=place, ask_id=ask.id, generation=lives[ask.id], tool=ask.name,
            arguments=ask.arguments or {}, status=CallStatus.NEW,
            effect=spec.effect if spec else Effect.PURE,  # one that is unknown never runs
        )  # fmt: skip


def _judged(rt: Runtime, scene: ModelRequest, heard: PluginSession, call: NewCall, ask: ToolAsk) -> NewCall:
    """The order is the contract: blocked, supplied, unknown, out of scope, bad arguments, suspended, runnable. So bad
    arguments beat approval.
    """
    shown = plugins.shown_call(call.id, call.ask_id, call.tool, call.arguments, call.effect)
    gate_says = plugins.gate(heard, shown)
    call = replace(call, arguments=gate_says.arguments(call.arguments))
    shown = replace(shown, arguments=call.arguments)
    match gate_says.verdict:
        case Block(reason=reason):
            settled = _refused(call, gate_says.code or "blocked", reason)
        case SupplyResult(content=content):
            settled = replace(call, status=CallStatus.SUCCEEDED, content=content)
        case verdict:
            refusal = _refusal(rt, scene, ask, call.arguments)
            if refusal is None:
                return _put_aside(rt, call, verdict.question) if isinstance(verdict, SuspendCall) else call
            settled = _refused(call, *refusal)
    told = plugins.after_tool(heard, shown, settled.content or "", settled.code, None)
    return replace(settled, content=told)


def _put_aside(rt: Runtime, call: NewCall, question: Question) -> NewCall:
    return replace(call, status=CallStatus.SUSPENDED, question=question, suspension_id=rt.new_id())


def _refusal(rt: Runtime, scene: ModelRequest, ask: ToolAsk, arguments: dict[str, Any]) -> tuple[str, str] | None:
    """Why a call cannot run, in words for the model."""
    if ask.name in scene.withheld:
        return "out_of_scope", f"The tool {ask.name!r} may not be used here. Tools you may use: {_offered(scene)}."
    if ask.name not in scene.specs:
        return "unknown_tool", f"There is no tool {ask.name!r}. Tools you may use: {_offered(scene)}."
    if ask.arguments is None:
        return "invalid_arguments", f"The arguments are not a JSON object: {ask.raw[:200]}"
    wrong = model_request.invalid(rt, scene.agent, ask.name, arguments)
    return ("invalid_arguments", wrong) if wrong else None


def _offered(scene: ModelRequest) -> str:
    return ", ".join(sorted(scene.specs)) or "none"


def _refused(call: NewCall, code: str, content: str) -> NewCall:
    return replace(
        call, status=CallStatus.FAILED, code=code, content=content, question=None, suspension_id=None, parked=False
    )


def _noted(tx: Tx, scene: ModelRequest, judged: ReplyOutcome) -> list[NewCall]:
    """What plugins noted about a call is written with it; a conflict costs that call its run, and no other. What they
    noted before, about the reply, comes first: the later word stands.
    """
    plugins.note_beside(tx, scene.hearing)
    conflicts = {at.call_id: why for at in judged.hearings if (why := plugins.note(tx, at)) is not None}
    return [
        _refused(call, STATE_CONFLICT, conflicts[call.id]) if call.id in conflicts else call for call in judged.asked
    ]


def _in_line(agent: AgentSpec, asked: list[NewCall]) -> list[NewCall]:
    """In sequence, what stands behind a call that waits is parked; and a sub-agent is not asked before its turn."""
    if agent.tool_mode is not ToolMode.SEQUENTIAL:
        return asked
    waits = (place for place, call in enumerate(asked) if call.question is not None or subagents.asks_one(agent, call))
    first = next(waits, len(asked))
    return [replace(call, parked=place >= first and call.status is CallStatus.NEW) for place, call in enumerate(asked)]


def _ask_about(tx: Tx, rt: Runtime, run: Run, step: int, asked: Sequence[NewCall]) -> None:
    """A question for each call that was put aside before it started."""
    suspended = [call for call in asked if call.question is not None]
    if suspended or any(call.parked for call in asked):
        runs.mark_suspended(tx, run.id)
    for call in suspended:
        waiting.record_question(tx, rt, run, step, call)
