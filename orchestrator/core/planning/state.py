"""Where a run stands with its plans, read from its rows each time: nothing of it is kept in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chordage.orchestrator.core.agent import PlanSpec
from chordage.orchestrator.core.model import ToolAsk
from chordage.orchestrator.core.planning.deciding import Converge, Execute, before_planning, decide, supplied
from chordage.orchestrator.core.planning.plan import Command, PlanDecision, PlanEnd, decision_from
from chordage.orchestrator.core.planning.records import (
    PlanRecord,
    PlanRound,
    done_plans,
    record_from,
    settled,
    value_in,
)
from chordage.orchestrator.core.records import Answer, Checkpoint, Entry
from chordage.orchestrator.core.status import CallStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Planning:
    spec: PlanSpec
    rounds: tuple[PlanRound, ...]
    ended: PlanEnd | None  # what a plan on record came to
    before: int = 0  # rounds older than the newest message of the run
    offered: frozenset[str] = frozenset()
    overdue: bool = False

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
        found = before_planning(
            round_index=self.round_index, offered=self.offered, max_rounds=self.spec.max_rounds,
            rounds=self.rounds[self.before :], overdue=self.overdue,
        )  # fmt: skip
        return None if found is None else found.reason

    def offering(self, tools: Iterable[str]) -> Planning:
        """The tool that carries out whole rounds is not for the planner to name."""
        return replace(self, offered=frozenset(tools) - {self.spec.executor})

    def judge(self, decision: PlanDecision) -> Execute | Converge:
        return decide(
            decision, round_index=self.round_index, offered=self.offered, max_rounds=self.spec.max_rounds,
            overdue=self.overdue, out_of_scope=self.spec.out_of_scope,
        )  # fmt: skip


def read(spec: PlanSpec, entries: Iterable[Entry], calls: Sequence[Answer], run_id: str) -> Planning:
    """`entries` and `calls`: the thread's, of which those of this run's plans count."""
    by_step: dict[int, list[Answer]] = {}
    for call in calls:
        if call.run_id == run_id:
            by_step.setdefault(call.step, []).append(call)
    rounds: list[PlanRound] = []
    ended: PlanEnd | None = None
    before = 0
    for entry in entries:
        if entry.run_id != run_id:
            continue
        if entry.kind is Checkpoint.USER_MESSAGE:  # there is something new to plan for
            ended, before = None, len(rounds)
        if entry.kind is not Checkpoint.PLAN:
            continue
        records = _records(entry.body, by_step.get(entry.step + 1, []))
        ended = PlanEnd(entry.body["ends"]) if entry.body["ends"] else None
        if ended is None or records:  # a round counts though nothing is known of what came of it
            rounds.append(PlanRound(index=len(rounds), records=records))
    return Planning(spec=spec, rounds=tuple(rounds), ended=ended, before=before)


def body_of(planning: Planning, decision: PlanDecision) -> dict[str, Any]:
    """A plan as the journal keeps it: as it was understood, and what became of it at once."""
    match planning.judge(decision):
        case Execute(refused=refused):
            ends, told = None, {str(place): record.as_json() for place, record in refused.items()}
        case Converge(reason=reason, records=records):
            ends, told = reason.value, {str(place): record.as_json() for place, record in enumerate(records)}
    offered = sorted(planning.offered)
    made = {"decision": decision.as_json(), "ends": ends, "refused": told, "offered": offered}
    return {**made, "round": planning.round_index, "executor": planning.spec.executor}


def asks_of(
    commands: Sequence[Command], refused: Collection[int], step: int, executor: str | None
) -> dict[int, ToolAsk]:
    """The commands that may run, as calls; or the one call of the tool that carries them all out."""
    runnable = {place: command for place, command in enumerate(commands) if place not in refused}
    if executor and runnable:
        whole = {"commands": [command.as_json() for command in runnable.values()]}
        return {0: ToolAsk(id=f"plan-{step}", name=executor, arguments=whole)}
    return {
        place: ToolAsk(id=f"plan-{step}-{place}", name=command.tool_name, arguments=command.kwargs)
        for place, command in runnable.items()
    }


def asks_in(body: Mapping[str, Any], step: int) -> dict[int, ToolAsk]:
    """Those of a plan as it is kept."""
    if body["ends"]:
        return {}
    commands = decision_from(body["decision"]).commands
    return asks_of(commands, {int(place) for place in body["refused"]}, step, body["executor"])


def _records(body: dict[str, Any], calls: Sequence[Answer]) -> tuple[PlanRecord, ...]:
    """Of a plan that is not carried out, those of the commands that it was refused for."""
    refused = {int(place): record_from(record) for place, record in body["refused"].items()}
    if body["ends"]:
        return tuple(refused[place] for place in sorted(refused))
    commands = decision_from(body["decision"]).commands
    if body["executor"]:
        runnable = [command for place, command in enumerate(commands) if place not in refused]
        return _at_their_places(_by_executor(runnable, calls), refused)
    return tuple(refused.get(place, record) for place, record in enumerate(settled(commands, calls)))


def _at_their_places(records: Sequence[PlanRecord], refused: Mapping[int, PlanRecord]) -> tuple[PlanRecord, ...]:
    found = list(records)
    for place in sorted(refused):
        found.insert(place, refused[place])
    return tuple(found)


def _by_executor(commands: Sequence[Command], calls: Sequence[Answer]) -> tuple[PlanRecord, ...]:
    """One call carried all of them out. Where it failed, its failure is that of each."""
    whole = calls[0] if calls else None
    if whole is not None and whole.status is CallStatus.SUCCEEDED:
        return supplied(value_in(whole.content or ""), commands)
    return settled(commands, [replace(whole, place=place) for place in range(len(commands))] if whole else ())
