"""Records that somebody else made: a consumer that carried a round out by itself, or a program of older days.

They are repaired where that is safe, and the command at the same place fills what is missing. A record without a
status is judged by `success`, and only one that has neither by the words of its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from chordage.orchestrator.core.planning.plan import Command
from chordage.orchestrator.core.planning.records import PlanRecord, PlanStatus

T = TypeVar("T")

FAILED = "Tool execution failed."
_SAYS_IT_FAILED = ("Error:", "Can not find tool named")
_STATUSES = {status.value: status for status in PlanStatus if status is not PlanStatus.WAITING}


def supplied(raw: object, commands: Sequence[Command]) -> tuple[PlanRecord, ...]:
    """As many as were given: what is missing is not made up, what is too much is kept. No list, no records."""
    given = raw if isinstance(raw, list | tuple) else ()
    return tuple(
        _record(one, commands[place] if place < len(commands) else _unasked(place)) for place, one in enumerate(given)
    )


def _unasked(place: int) -> Command:
    return Command(purpose=f"tool_call_{place + 1}", tool_name="", kwargs={})


def _record(raw: Any, command: Command) -> PlanRecord:
    if not isinstance(raw, dict):
        return _record({"result": raw}, command)
    status = _status(raw)
    error = _error(raw)
    return PlanRecord(
        purpose=_typed(raw, "purpose", command.purpose),
        tool_name=_typed(raw, "tool_name", command.tool_name),
        kwargs=_typed(raw, "kwargs", command.kwargs),
        todo_suggestion=_typed(raw, "todo_suggestion", _typed(raw, "next", command.todo_suggestion)),
        status=status,
        result=raw.get("result"),
        error=error or (_words(raw) if status.failed else ""),
        call_id=_typed(raw, "call_id", ""),
    )


def _status(raw: dict[str, Any]) -> PlanStatus:
    stated = raw.get("status")
    if isinstance(stated, str) and stated in _STATUSES:
        return _STATUSES[stated]
    success = raw.get("success")
    if not isinstance(success, bool):
        success = not _error(raw) and not _says_it_failed(raw.get("result"))
    return PlanStatus.OK if success else PlanStatus.ERROR


def _says_it_failed(result: object) -> bool:
    return isinstance(result, str) and result.strip().startswith(_SAYS_IT_FAILED)


def _error(raw: dict[str, Any]) -> str:
    error = raw.get("error")
    return "" if error is None else str(error)


def _words(raw: dict[str, Any]) -> str:
    result = raw.get("result")
    return FAILED if result is None else str(result)


def _typed(raw: dict[str, Any], key: str, default: T) -> T:
    value = raw.get(key)
    return value if isinstance(value, type(default)) else default
