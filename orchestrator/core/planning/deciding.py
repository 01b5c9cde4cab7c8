"""Whether another round is planned, and whether a plan is carried out: the whole rule of the loop, without the loop.

Both questions are asked at their place, the first before the planner is: at the limit no plan is paid for that nobody
will carry out, so a limit of n rounds costs at most n plans.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from chordage.orchestrator.core.agent import OutOfScope
from chordage.orchestrator.core.planning.plan import Command, PlanDecision, PlanEnd
from chordage.orchestrator.core.planning.records import PlanRecord, PlanRound
from chordage.orchestrator.core.planning.settling import not_offered, not_run

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
