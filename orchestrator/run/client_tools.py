"""Calls of tools that a caller has brought: when they are suspended, and which come first in a round.

A call is suspended, with its question, in the transaction that records the reply; after a permission that a person has
to give, in the one that applies the decision. No message about it is ever sent to a worker: a process that dies leaves
the row of the question, or the reply unrecorded.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import structlog

from chordage.orchestrator.core import subagents, transcript
from chordage.orchestrator.core.agent import AgentSpec, ToolMode
from chordage.orchestrator.core.approvals import SettledCall, Why
from chordage.orchestrator.core.client_tools import FIELD, WITH_CALLER, ClientTool, from_stored, is_with_caller
from chordage.orchestrator.core.errors import InvalidMessage, UserError
from chordage.orchestrator.core.records import Call, NewCall, Run
from chordage.orchestrator.core.status import OPEN_CALL, CallStatus
from chordage.orchestrator.gateways import schemas
from chordage.orchestrator.gateways.tools import outcomes
from chordage.orchestrator.run import waiting
from chordage.orchestrator.run.model_request import offered_tools
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import calls, journal
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.strategies import shipped

log = structlog.get_logger()

RESULT_LIMIT = 65_536  # characters that the model reads at once, as of a tool that declares no other limit

Brought = Mapping[str, ClientTool]


def check_for(rt: Runtime, agent: AgentSpec, strategy: str, tools: Sequence[ClientTool]) -> None:
    """Before the turn is admitted: what depends on its agent. Raises InvalidMessage."""
    if shipped.plans(strategy):
        problem = f"strategy {strategy!r} makes plans, which only tools of the agent carry out: leave {FIELD} out"
        raise InvalidMessage(problem, field=FIELD)
    own = {*_own_names(rt, agent), rt.tools.reader().name}
    for tool in tools:
        if tool.name in own:
            problem = f"agent {agent.name!r} has a tool {tool.name!r} of its own: give yours another name"
            raise InvalidMessage(problem, field=FIELD)
        if (fault := _fault(json.dumps(tool.schema))) is not None:
            raise InvalidMessage(f"tool {tool.name!r}: {fault}", field=FIELD)


def _own_names(rt: Runtime, agent: AgentSpec) -> Collection[str]:
    """Where its tools cannot be listed, as while a server of them is away, the turn waits for them like any other, and
    a tool of the agent comes first then.
    """
    try:
        return offered_tools(rt, agent)
    except UserError as error:
        log.info("names of a caller's tools are not compared with those of the agent", agent=agent.name, why=str(error))
        return subagents.specs(agent)


@lru_cache(maxsize=512)
def _fault(schema: str) -> str | None:
    """Clients bring the same tools with each message."""
    return schemas.fault_of_tool(json.loads(schema))


def offered(own: Collection[str], brought: Iterable[Mapping[str, Any]]) -> Brought:
    """A tool of the agent of the same name, which it has been given since then, comes first."""
    return {tool.name: tool for tool in from_stored(brought) if tool.name not in own}


def invalid(tool: ClientTool, arguments: dict[str, Any]) -> str | None:
    """What is wrong with the arguments, for the model; None when they are valid."""
    complaints = "\n".join(schemas.complaints(arguments, tool.schema, tool.name))
    return f"{tool.name} was not run, because its arguments do not fit:\n{complaints}" if complaints else None


def suspended(call: NewCall, tool: ClientTool, new_id: str) -> NewCall:
    """Where nothing else has to be decided about it first."""
    return replace(call, status=CallStatus.SUSPENDED, question=tool.question, suspension_id=new_id, placed=WITH_CALLER)


def shown(call: Call, settled: SettledCall) -> SettledCall:
    """What the model reads of a result: the beginning of a long one, which is kept whole."""
    outcome = outcomes.success(settled.content, limit=RESULT_LIMIT, call_id=call.id, seconds=None)
    return replace(settled, content=outcome.content, full=outcome.full)


def one_by_one(agent: AgentSpec, asked: Sequence[NewCall]) -> list[NewCall]:
    """In sequence, the caller is asked for a call when those before it are settled. The others are parked."""
    if agent.tool_mode is not ToolMode.SEQUENTIAL:
        return list(asked)
    in_turn: list[NewCall] = []
    for call in asked:
        is_asked = call.question is not None and call.question.why is Why.CLIENT
        if is_asked and any(other.status in OPEN_CALL for other in in_turn):
            in_turn.append(replace(call, status=CallStatus.NEW, question=None, suspension_id=None))
        else:
            in_turn.append(call)
    return in_turn


def of_call(tx: Tx, call: Call) -> ClientTool:
    """The tool of a call that its caller carries out."""
    return offered((), transcript.client_tools(call.run_id, journal.of_run(tx, call.run_id)))[call.tool]


def ask_among(unit: Unit, run: Run, sent: Sequence[Call]) -> list[Call]:
    """Ask the caller for those of these calls that it carries out; returns the others. The run is locked."""
    for call in sent:
        if is_with_caller(call):
            current = calls.load(unit.tx, call.id)  # as the decision has left it
            assert current is not None
            waiting.suspend_idle_call(unit, current, run.agent, of_call(unit.tx, call).question)
    return [call for call in sent if not is_with_caller(call)]
