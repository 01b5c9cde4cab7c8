"""Whether another round is planned, and whether a plan is carried out: the whole rule of the loop, without the loop.

Both questions are asked at their place, the first before the planner is: at the limit no plan is paid for that nobody
will carry out, so a limit of n rounds costs at most n plans.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from chordage.orchestrator.core.agent import OutOfScope
from chordage.orchestrator.core.planning.plan import Command, PlanDecision, PlanEnd
from chordage.orchestrator.core.planning.records import PlanRecord, PlanRound, PlanStatus, not_offered, not_run

MAX_ROUNDS = 5
BESIDE = "This call did not run: another one of the same plan names a tool that was not offered."


@dataclass(frozen=True, kw_only=True, slots=True)
class Execute:
    """Carry the commands out. Those that may not run have their record already, by their place in the plan."""

    commands: tuple[Command, ...]
    refused: dict[int, PlanRecord] = field(default_factory=dict)

    @property
    def runnable(self) -> tuple[tuple[int, Command], ...]:
        return tuple((place, one) for place, one in enumerate(self.commands) if place not in self.refused)


@dataclass(frozen=True, kw_only=True, slots=True)
class Converge:
    """Planning is over; the answer is due. `records`: of commands that this very end keeps from running."""

    reason: PlanEnd
    records: tuple[PlanRecord, ...] = ()


def before_planning(
    *,
    round_index: int,
    offered: Collection[str],
    max_rounds: int | None = MAX_ROUNDS,
    rounds: Sequence[PlanRound] = (),
    use_tool: bool = True,
    overdue: bool = False,
) -> Converge | None:
    """None: ask the planner. `use_tool`: the caller's own switch; `overdue`: the deadline of the turn is past."""
    reason = _barred(round_index, offered, max_rounds, use_tool=use_tool, overdue=overdue)
    if reason is None and is_stuck(rounds):
        reason = PlanEnd.STUCK
    return None if reason is None else Converge(reason=reason)


def decide(
    decision: PlanDecision,
    *,
    round_index: int,
    offered: Collection[str],
    max_rounds: int | None = MAX_ROUNDS,
    use_tool: bool = True,
    overdue: bool = False,
    out_of_scope: OutOfScope = OutOfScope.FAIL_COMMAND,
) -> Execute | Converge:
    """What the planner itself says comes first. The limits are asked again: a plan may have been held for long."""
    reason = decision.ends or _barred(round_index, offered, max_rounds, use_tool=use_tool, overdue=overdue)
    if reason is not None:
        return Converge(reason=reason)
    refused = {
        place: not_offered(command, offered)
        for place, command in enumerate(decision.commands)
        if command.tool_name not in offered
    }
    if refused and out_of_scope is OutOfScope.REFUSE_BATCH:
        records = tuple(refused.get(place) or not_run(one, BESIDE) for place, one in enumerate(decision.commands))
        return Converge(reason=PlanEnd.NOT_OFFERED, records=records)
    return Execute(commands=decision.commands, refused=refused)


def is_stuck(rounds: Sequence[PlanRound]) -> bool:
    """The same tool failed in the last two rounds, and nothing succeeded in either."""
    last = sorted(rounds, key=lambda one: one.index)[-2:]
    if len(last) < 2 or any(record.success for one in last for record in one.records):
        return False
    before, after = ({record.tool_name for record in one.records if record.status.failed} for one in last)
    return bool(before & after)


def _barred(
    round_index: int, offered: Collection[str], max_rounds: int | None, *, use_tool: bool, overdue: bool
) -> PlanEnd | None:
    if not use_tool:
        return PlanEnd.TOOLS_OFF
    if not offered:
        return PlanEnd.NO_TOOLS
    if max_rounds is not None and round_index >= max_rounds:
        return PlanEnd.MAX_ROUNDS
    return PlanEnd.DEADLINE if overdue else None


# Records that somebody else made: a consumer that carried a round out by itself, or a program of older days.
#
# They are repaired where that is safe, and the command at the same place fills what is missing. A record without a
# status is judged by `success`, and only one that has neither by the words of its result.

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
