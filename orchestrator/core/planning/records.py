"""What became of the commands of a plan, round by round: for the planner, for the answer and for the logs.

Rounds are rows. Both lists that a planner is shown are read from them by their number each time; nothing is merged, so
a call that was made twice with the same answer is two records, and the last round is the last round only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core.planning import reading
from chordage.orchestrator.core.planning.plan import Command
from chordage.orchestrator.core.records import Answer, Call
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.transcript import AWAITING, NOT_RUN, NOT_STARTED, OUTCOME_UNKNOWN


class PlanStatus(StrEnum):
    """How a command ended. It is said by whoever carried it out, never read from the words of a result."""

    OK = "ok"
    ERROR = "error"
    NOT_FOUND = "not_found"
    NOT_OFFERED = "not_offered"
    BAD_INPUT = "bad_input"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    DENIED = "denied"
    UNKNOWN = "unknown"  # its worker died; nobody knows whether it took effect
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

    @property
    def next(self) -> str:
        return self.todo_suggestion

    def as_json(self) -> dict[str, Any]:
        return {
            "purpose": self.purpose,
            "tool_name": self.tool_name,
            "kwargs": self.kwargs,
            "todo_suggestion": self.todo_suggestion,
            "next": self.next,
            "success": self.success,
            "result": self.result,
            "error": self.error,
            "status": self.status.value,
            "call_id": self.call_id,
        }


def record_from(body: dict[str, Any]) -> PlanRecord:
    """A record as it was stored. `next` and `success` follow from the rest."""
    return PlanRecord(
        purpose=body["purpose"],
        tool_name=body["tool_name"],
        kwargs=body["kwargs"],
        todo_suggestion=body["todo_suggestion"],
        status=PlanStatus(body["status"]),
        result=body["result"],
        error=body["error"],
        call_id=body["call_id"],
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRound:
    """A round that was carried out; its records stand in the order of the commands, whatever came back first."""

    index: int
    records: tuple[PlanRecord, ...]


def done_plans(rounds: Iterable[PlanRound]) -> tuple[PlanRecord, ...]:
    """All records so far, in whatever order the rounds were read."""
    return tuple(record for one in sorted(rounds, key=lambda one: one.index) for record in one.records)


def last_round_records(rounds: Iterable[PlanRound], round_index: int) -> tuple[PlanRecord, ...]:
    """Of the round before this one, and of no other."""
    return tuple(record for one in rounds if one.index == round_index - 1 for record in one.records)


def action_results(records: Iterable[PlanRecord]) -> dict[str, Any]:
    """By purpose, for the answer. A purpose that is taken gets a number; no result ever takes another's place."""
    found: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    for place, record in enumerate(records, start=1):
        purpose = record.purpose if record.purpose.strip() else f"tool_call_{place}"
        found[_free(purpose, found, numbers)] = _told(record)
    return found


def _free(purpose: str, taken: dict[str, Any], numbers: dict[str, int]) -> str:
    name = purpose
    while name in taken:
        numbers[purpose] = numbers.get(purpose, 1) + 1
        name = f"{purpose} ({numbers[purpose]})"
    return name


def _told(record: PlanRecord) -> Any:
    return record.result if record.success else {"error": record.error, "result": record.result}


def tool_logs(records: Iterable[PlanRecord]) -> list[dict[str, Any]]:
    """The raw records, for `extra.tool_logs`."""
    return [record.as_json() for record in records]


# From the calls of a round to its records: each command has exactly one, in the order of the plan.

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
