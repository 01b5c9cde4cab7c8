"""What came of the commands of a plan, round by round: for the planner, for the answer and for the logs.

A round's records are read from its calls each time, and rounds are distinguished by their number. Nothing is merged: a
call that was made twice with the same result is two records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

from chordage.orchestrator.core.planning import reading
from chordage.orchestrator.core.planning.plan import Command
from chordage.orchestrator.core.records import Answer, Call
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.transcript import AWAITING, NOT_RUN, NOT_STARTED, OUTCOME_UNKNOWN


class PlanStatus(StrEnum):
    """How a command ended. It follows from the status of its call, never from the words of a result."""

    OK = "ok"
    ERROR = "error"
    NOT_FOUND = "not_found"
    NOT_OFFERED = "not_offered"
    BAD_INPUT = "bad_input"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    DENIED = "denied"
    UNKNOWN = "unknown"  # its worker died; it may or may not have taken effect
    WAITING = "waiting"  # not carried out yet: a decision is due

    @property
    def failed(self) -> bool:
        return self not in {PlanStatus.OK, PlanStatus.WAITING}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRecord:
    purpose: str
    tool_name: str
    kwargs: dict[str, Any]  # as the tool got them
    todo_suggestion: str
    status: PlanStatus
    result: Any
    error: str = ""
    call_id: str = ""  # blank where no call was made

    @property
    def success(self) -> bool:
        return self.status is PlanStatus.OK

    def as_json(self) -> dict[str, Any]:
        return {
            "purpose": self.purpose,
            "tool_name": self.tool_name,
            "kwargs": self.kwargs,
            "todo_suggestion": self.todo_suggestion,
            "next": self.todo_suggestion,
            "success": self.success,
            "result": self.result,
            "error": self.error,
            "status": self.status.value,
            "call_id": self.call_id,
        }


def record_from(body: dict[str, Any]) -> PlanRecord:
    """A record as it was stored. `next` and `success` follow from the rest."""
    values = {name: body[name] for name in _STORED}
    return PlanRecord(**{**values, "status": PlanStatus(body["status"])})


_STORED = tuple(field.name for field in fields(PlanRecord))


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRound:
    """A round that was carried out. Its records are in the order of the commands, whichever call ended first."""

    index: int
    records: tuple[PlanRecord, ...]


def done_plans(rounds: Iterable[PlanRound]) -> tuple[PlanRecord, ...]:
    """All records so far, in the order of the rounds."""
    return tuple(record for done in sorted(rounds, key=lambda done: done.index) for record in done.records)


def last_round_records(rounds: Iterable[PlanRound], round_index: int) -> tuple[PlanRecord, ...]:
    """Of the round before this one."""
    return tuple(record for done in rounds if done.index == round_index - 1 for record in done.records)


def tool_logs(records: Iterable[PlanRecord]) -> list[dict[str, Any]]:
    """The raw records, for the planner and for `extra.tool_logs`."""
    return [record.as_json() for record in records]


def action_results(records: Iterable[PlanRecord]) -> dict[str, Any]:
    """Results by purpose, for the answer. A purpose that is taken gets a number, so that no result replaces another."""
    results: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    for place, record in enumerate(records, start=1):
        purpose = name = record.purpose if record.purpose.strip() else f"tool_call_{place}"
        while name in results:
            numbers[purpose] = numbers.get(purpose, 1) + 1
            name = f"{purpose} ({numbers[purpose]})"
        results[name] = record.result if record.success else {"error": record.error, "result": record.result}
    return results


# The records of a round, from its calls: each command has exactly one, in the order of the plan.

_BY_CODE = {
    "unknown_tool": PlanStatus.NOT_FOUND,
    "out_of_scope": PlanStatus.NOT_OFFERED,
    "invalid_arguments": PlanStatus.BAD_INPUT,
    "timeout": PlanStatus.TIMEOUT,
    "denied": PlanStatus.DENIED,
    "blocked": PlanStatus.DENIED,
    OUTCOME_UNKNOWN: PlanStatus.UNKNOWN,
}
# For a call without a result, the words that a model reads of such a call elsewhere.
_NO_RESULT_YET = {
    CallStatus.NEW: NOT_STARTED,
    CallStatus.RUNNING: "This call is still running.",
    CallStatus.SUSPENDED: AWAITING,
    CallStatus.RESUMING: AWAITING,
}


def settled(commands: Sequence[Command], calls: Iterable[Answer | Call]) -> tuple[PlanRecord, ...]:
    """`calls`: of this round alone, in any order."""
    by_place = {call.place: call for call in calls}
    return tuple(
        _of_call(command, by_place[place]) if place in by_place else not_run(command)
        for place, command in enumerate(commands)
    )


def not_offered(command: Command, offered: Iterable[str]) -> PlanRecord:
    """A command whose tool was not offered to the planner does not run, even if other agents may use the tool."""
    usable = ", ".join(sorted(offered)) or "none"
    error = f"The tool {command.tool_name!r} was not offered and was not run. Tools you may use: {usable}."
    return _record(command, PlanStatus.NOT_OFFERED, error, error)


def not_run(command: Command, why: str = NOT_RUN) -> PlanRecord:
    return _record(command, PlanStatus.CANCELLED, why, why)


def _record(
    command: Command, status: PlanStatus, result: Any, error: str, call: Answer | Call | None = None
) -> PlanRecord:
    return PlanRecord(
        purpose=command.purpose,
        tool_name=command.tool_name,
        kwargs=call.arguments if isinstance(call, Call) else command.kwargs,
        todo_suggestion=command.todo_suggestion,
        status=status,
        result=result,
        error=error,
        call_id="" if call is None else call.id,
    )


def _of_call(command: Command, call: Answer | Call) -> PlanRecord:
    """A failure has the same words as its result and as its error."""
    words = call.content or NOT_RUN
    match call.status:
        case CallStatus.SUCCEEDED:
            return _record(command, PlanStatus.OK, value_in(call.content or ""), "", call)
        case CallStatus.FAILED:
            return _record(command, _BY_CODE.get(call.code or "", PlanStatus.ERROR), words, words, call)
        case CallStatus.CANCELLED:
            return _record(command, _BY_CODE.get(call.code or "", PlanStatus.CANCELLED), words, words, call)
        case _:
            return _record(command, PlanStatus.WAITING, None, _NO_RESULT_YET[call.status], call)


def value_in(content: str) -> Any:
    """What a tool returned, as far as its text shows it: an object, a list and null are themselves again.

    Any other content remains text: "0042" and "true" may well be words.
    """
    if not content.startswith(("{", "[", "null")):
        return content
    try:
        return reading.load(content)
    except ValueError:
        return content


# Records that a tool returned which carried out a whole round.
#
# They are repaired where that is safe, and the command at the same place fills what is missing. A record without a
# status is judged by `success`, and only one that has neither by the words of its result.

T = TypeVar("T")

_FAILURE_WORDS = ("Error:", "Can not find tool named")
_SUPPLIED_STATUSES = {status.value: status for status in PlanStatus if status is not PlanStatus.WAITING}


def supplied(raw: object, commands: Sequence[Command]) -> tuple[PlanRecord, ...]:
    """As many records as `raw` has: missing ones are not invented, surplus ones are kept."""
    members = raw if isinstance(raw, list | tuple) else ()
    return tuple(
        _of_supplied(
            member if isinstance(member, dict) else {"result": member},
            commands[place]
            if place < len(commands)
            else Command(purpose=f"tool_call_{place + 1}", tool_name="", kwargs={}),
        )
        for place, member in enumerate(members)
    )


def _of_supplied(raw: dict[str, Any], command: Command) -> PlanRecord:
    result = raw.get("result")
    error = "" if raw.get("error") is None else str(raw["error"])
    status = _supplied_status(raw, error)
    if status.failed and not error:
        error = "Tool execution failed." if result is None else str(result)
    return PlanRecord(
        purpose=_typed(raw, "purpose", command.purpose),
        tool_name=_typed(raw, "tool_name", command.tool_name),
        kwargs=_typed(raw, "kwargs", command.kwargs),
        todo_suggestion=_typed(raw, "todo_suggestion", _typed(raw, "next", command.todo_suggestion)),
        status=status,
        result=result,
        error=error,
        call_id=_typed(raw, "call_id", ""),
    )


def _supplied_status(raw: dict[str, Any], error: str) -> PlanStatus:
    stated, success, result = raw.get("status"), raw.get("success"), raw.get("result")
    if isinstance(stated, str) and stated in _SUPPLIED_STATUSES:
        return _SUPPLIED_STATUSES[stated]
    if not isinstance(success, bool):
        success = not error and not (isinstance(result, str) and result.strip().startswith(_FAILURE_WORDS))
    return PlanStatus.OK if success else PlanStatus.ERROR


def _typed(raw: dict[str, Any], key: str, default: T) -> T:
    value = raw.get(key)
    return value if isinstance(value, type(default)) else default
