"""The plans of a run, read from its rows each time: the rounds so far, and whether there is another.

The limits are checked before the planner is asked, so that no plan is paid for which would not be carried out: a limit
of n rounds costs at most n plans. They are checked again behind the plan, which may have been held for long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chordage.orchestrator.core.agent import OutOfScope, PlanSpec
from chordage.orchestrator.core.model import ToolAsk
from chordage.orchestrator.core.planning.plan import Command, PlanDecision, PlanEnd, decision_from
from chordage.orchestrator.core.planning.records import (
    PlanRecord,
    PlanRound,
    done_plans,
    not_offered,
    not_run,
    record_from,
    settled,
    supplied,
    value_in,
)
from chordage.orchestrator.core.records import Answer, Checkpoint, Entry
from chordage.orchestrator.core.status import CallStatus

REFUSED_BATCH = "This call did not run: another one of the same plan names a tool that was not offered."


@dataclass(frozen=True, kw_only=True, slots=True)
class Execute:
    """Carry the commands out. Those that may not run have their record already, by their place in the plan."""

    commands: tuple[Command, ...]
    refused: dict[int, PlanRecord] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Converge:
    """Planning is over; the answer is due. `records`: of commands that do not run for this reason."""

    reason: PlanEnd
    records: tuple[PlanRecord, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Planning:
    spec: PlanSpec
    rounds: tuple[PlanRound, ...] = ()
    ended: PlanEnd | None = None  # by the newest plan on record
    earlier: int = 0  # rounds that are older than the newest message of the run
    offered: frozenset[str] = frozenset()
    overdue: bool = False  # the deadline is past

    @property
    def round_index(self) -> int:
        return len(self.rounds)

    @property
    def records(self) -> tuple[PlanRecord, ...]:
        return done_plans(self.rounds)

    @property
    def ends(self) -> PlanEnd | None:
        """Why the answer is due; None while the planner is to be asked."""
        if self.ended is not None:
            return self.ended
        return self._limit() or (PlanEnd.STUCK if is_stuck(self.rounds[self.earlier :]) else None)

    def _limit(self) -> PlanEnd | None:
        if not self.offered:
            return PlanEnd.NO_TOOLS
        if self.spec.max_rounds is not None and self.round_index >= self.spec.max_rounds:
            return PlanEnd.MAX_ROUNDS
        return PlanEnd.DEADLINE if self.overdue else None

    def offering(self, tools: Iterable[str]) -> Planning:
        """The tool that carries out whole rounds is not for the planner to name."""
        return replace(self, offered=frozenset(tools) - {self.spec.executor})

    def judge(self, decision: PlanDecision) -> Execute | Converge:
        """The planner's own reason comes before a limit."""
        reason = decision.ends or self._limit()
        if reason is not None:
            return Converge(reason=reason)
        refused = {
            place: not_offered(command, self.offered)
            for place, command in enumerate(decision.commands)
            if command.tool_name not in self.offered
        }
        if refused and self.spec.out_of_scope is OutOfScope.REFUSE_BATCH:
            records = (
                refused.get(place) or not_run(command, REFUSED_BATCH) for place, command in enumerate(decision.commands)
            )
            return Converge(reason=PlanEnd.NOT_OFFERED, records=tuple(records))
        return Execute(commands=decision.commands, refused=refused)


def is_stuck(rounds: Sequence[PlanRound]) -> bool:
    """The same tool failed in the last two rounds, and no call succeeded in either."""
    last = sorted(rounds, key=lambda done: done.index)[-2:]
    if len(last) < 2 or any(record.success for done in last for record in done.records):
        return False
    before, after = ({record.tool_name for record in done.records if record.status.failed} for done in last)
    return bool(before & after)


# From the journal of a thread, and into it.


def read(spec: PlanSpec, entries: Iterable[Entry], calls: Sequence[Answer], run_id: str) -> Planning:
    """`entries` and `calls` are the thread's; those of this run's plans count."""
    by_step: dict[int, list[Answer]] = {}
    for call in calls:
        if call.run_id == run_id:
            by_step.setdefault(call.step, []).append(call)
    rounds: list[PlanRound] = []
    ended: PlanEnd | None = None
    earlier = 0
    for entry in entries:
        if entry.run_id != run_id:
            continue
        if entry.kind is Checkpoint.USER_MESSAGE:  # there is something new to plan for
            ended, earlier = None, len(rounds)
        if entry.kind is not Checkpoint.PLAN:
            continue
        records = _records(entry.body, by_step.get(entry.step + 1, []))
        ended = PlanEnd(entry.body["ends"]) if entry.body["ends"] else None
        if ended is None or records:  # a round counts even if it has no records
            rounds.append(PlanRound(index=len(rounds), records=records))
    return Planning(spec=spec, rounds=tuple(rounds), ended=ended, earlier=earlier)


def body_of(planning: Planning, decision: PlanDecision) -> dict[str, Any]:
    """A plan as the journal keeps it: as it was understood, and what follows from it at once."""
    match planning.judge(decision):
        case Execute(refused=refused):
            reason = None
        case Converge(reason=reason, records=records):
            refused = dict(enumerate(records))
    return {
        "decision": decision.as_json(),
        "ends": None if reason is None else reason.value,
        "refused": {str(place): record.as_json() for place, record in refused.items()},
        "offered": sorted(planning.offered),
        "round": planning.round_index,
        "executor": planning.spec.executor,
    }


def asks_of(
    commands: Sequence[Command], refused: Collection[int], step: int, executor: str | None
) -> dict[int, ToolAsk]:
    """The commands that may run, as calls; or the one call of the tool that carries them all out."""
    runnable = {place: command for place, command in enumerate(commands) if place not in refused}
    if executor and runnable:
        arguments = {"commands": [command.as_json() for command in runnable.values()]}
        return {0: ToolAsk(id=f"plan-{step}", name=executor, arguments=arguments)}
    return {
        place: ToolAsk(id=f"plan-{step}-{place}", name=command.tool_name, arguments=command.kwargs)
        for place, command in runnable.items()
    }


def asks_in(body: Mapping[str, Any], step: int) -> dict[int, ToolAsk]:
    """The calls of a plan as the journal keeps it."""
    if body["ends"]:
        return {}
    commands = decision_from(body["decision"]).commands
    return asks_of(commands, {int(place) for place in body["refused"]}, step, body["executor"])


def _records(body: dict[str, Any], calls: Sequence[Answer]) -> tuple[PlanRecord, ...]:
    """Of a plan that is not carried out, only the commands that it was refused for have records."""
    refused = {int(place): record_from(record) for place, record in body["refused"].items()}
    if body["ends"]:
        return tuple(refused[place] for place in sorted(refused))
    commands = decision_from(body["decision"]).commands
    if not body["executor"]:
        return tuple(refused.get(place, record) for place, record in enumerate(settled(commands, calls)))
    runnable = [command for place, command in enumerate(commands) if place not in refused]
    records = list(_by_executor(runnable, calls))
    for place in sorted(refused):
        records.insert(place, refused[place])
    return tuple(records)


def _by_executor(commands: Sequence[Command], calls: Sequence[Answer]) -> tuple[PlanRecord, ...]:
    """One call carried all of them out. Where it failed, its failure is that of each."""
    whole = calls[0] if calls else None
    if whole is not None and whole.status is CallStatus.SUCCEEDED:
        return supplied(value_in(whole.content or ""), commands)
    return settled(commands, [replace(whole, place=place) for place in range(len(commands))] if whole else ())
