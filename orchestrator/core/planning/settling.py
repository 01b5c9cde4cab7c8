"""From the calls of a round to its records: each command has exactly one, in the order of the plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from chordage.orchestrator.core.planning import reading
from chordage.orchestrator.core.planning.plan import Command
from chordage.orchestrator.core.planning.records import PlanRecord, PlanStatus
from chordage.orchestrator.core.records import Answer, Call
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.transcript import AWAITING, NOT_RUN, NOT_STARTED, OUTCOME_UNKNOWN

_BY_CODE = {
    "unknown_tool": PlanStatus.NOT_FOUND,
    "out_of_scope": PlanStatus.NOT_OFFERED,
    "invalid_arguments": PlanStatus.BAD_INPUT,
    "timeout": PlanStatus.TIMEOUT,
    "denied": PlanStatus.DENIED,
    "blocked": PlanStatus.DENIED,
    OUTCOME_UNKNOWN: PlanStatus.UNKNOWN,
}
# What has no result yet, in the words that the model reads of such a call everywhere else.
_NOT_YET = {
    CallStatus.NEW: NOT_STARTED,
    CallStatus.RUNNING: "This call is still running.",
    CallStatus.SUSPENDED: AWAITING,
    CallStatus.RESUMING: AWAITING,
}


def settled(commands: Sequence[Command], calls: Iterable[Answer | Call]) -> tuple[PlanRecord, ...]:
    """`calls`: of this round alone, in any order."""
    by_place = {call.place: call for call in calls}
    return tuple(_record(command, by_place.get(place)) for place, command in enumerate(commands))


def not_offered(command: Command, offered: Iterable[str]) -> PlanRecord:
    """A command that names a tool which the planner was not given. It does not run, whoever else may use the tool."""
    usable = ", ".join(sorted(offered)) or "none"
    said = f"The tool {command.tool_name!r} was not offered and was not run. Tools you may use: {usable}."
    return _failed(command, PlanStatus.NOT_OFFERED, said)


def not_run(command: Command, why: str = NOT_RUN) -> PlanRecord:
    return _failed(command, PlanStatus.CANCELLED, why)


def _failed(command: Command, status: PlanStatus, said: str) -> PlanRecord:
    return PlanRecord(
        purpose=command.purpose,
        tool_name=command.tool_name,
        kwargs=command.kwargs,
        todo_suggestion=command.todo_suggestion,
        status=status,
        result=said,
        error=said,
    )


def _record(command: Command, call: Answer | Call | None) -> PlanRecord:
    if call is None:
        return not_run(command)
    status = _status(call)
    result, error = _outcome(call, status)
    return PlanRecord(
        purpose=command.purpose,
        tool_name=command.tool_name,
        kwargs=call.arguments if isinstance(call, Call) else command.kwargs,
        todo_suggestion=command.todo_suggestion,
        status=status,
        result=result,
        error=error,
        call_id=call.id,
    )


def _status(call: Answer | Call) -> PlanStatus:
    match call.status:
        case CallStatus.SUCCEEDED:
            return PlanStatus.OK
        case CallStatus.FAILED:
            return _BY_CODE.get(call.code or "", PlanStatus.ERROR)
        case CallStatus.CANCELLED:
            return _BY_CODE.get(call.code or "", PlanStatus.CANCELLED)
        case _:
            return PlanStatus.WAITING


def _outcome(call: Answer | Call, status: PlanStatus) -> tuple[Any, str]:
    """Its result and its error. A failure has the same words in both places."""
    if status is PlanStatus.OK:
        return value_in(call.content or ""), ""
    if status is PlanStatus.WAITING:
        return None, _NOT_YET[call.status]
    said = call.content or NOT_RUN
    return said, said


def value_in(content: str) -> Any:
    """What a tool returned, as far as its text shows it: an object, a list and null are themselves again.

    Anything else stays text: "0042" and "true" may well be words.
    """
    if not content.startswith(("{", "[", "null")):
        return content
    try:
        return reading.load(content)
    except ValueError:
        return content
