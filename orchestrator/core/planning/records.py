"""What became of the commands of a plan, round by round: for the planner, for the answer and for the logs.

Rounds are rows. Both lists that a planner is shown are read from them by their number each time; nothing is merged, so
a call that was made twice with the same answer is two records, and the last round is the last round only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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
